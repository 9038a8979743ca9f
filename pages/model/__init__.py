"""Everything known about one model."""
