"""CLIP training."""
