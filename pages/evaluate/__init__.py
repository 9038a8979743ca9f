"""Evaluation of a model or a training."""
