"""Parts that the pages Train and Evaluate use: the data section, uploads, checks before a run."""
