"""Bundles: runs as zip files, to bring them to another machine."""
