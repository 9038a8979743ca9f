"""Estimate latencies of models from their counted operators, on published devices and on one timed here."""
