"""What training and evaluation share: the form of the data, uploads, checks before the start."""
