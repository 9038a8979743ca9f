"""Timings of vision models."""
