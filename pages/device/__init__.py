"""This machine's hardware and its measured peak rates."""
