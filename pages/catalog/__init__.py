"""The catalogue: the cost of every model."""
