"""Start, follow, compare and delete runs."""
