"""Make tables of timings: stored ones, their samples, measured rates, and what a timing needs."""
