"""Servers that tests start: nginx, PostgreSQL, S3, Ray and an OpenID Connect provider."""
