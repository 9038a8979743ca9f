"""Runs or models side by side."""
