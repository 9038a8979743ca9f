"""The commands of `python -m engine`, one module per part of the program they speak to."""
