"""Copies of runs' files and of uploads, for machines that share the store but no runs folder."""
