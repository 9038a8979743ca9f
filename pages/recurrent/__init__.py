"""Timings of recurrent layers."""
