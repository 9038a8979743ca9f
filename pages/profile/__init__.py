"""Counts of models at a chosen image size."""
