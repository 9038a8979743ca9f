"""What can be said of samples: percentiles, drift, spread between processes, and the ratio of two medians."""
