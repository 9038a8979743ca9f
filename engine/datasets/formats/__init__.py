"""The formats of training data, each read as a set of pairs."""
