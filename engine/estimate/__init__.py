"""Estimate latencies of models from their counted operators, on published devices and on one timed here."""

BUDGET_S = 300
"""Default seconds of samples of a calibration."""
