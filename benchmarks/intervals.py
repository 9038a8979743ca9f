"""Intervals that the benchmarks' figures come with."""

import math
import statistics


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """The median between the two order statistics that hold the true one with at least 99 % (the sign test's)."""
    ordered, n = sorted(values), len(values)
    outside, below = 0, 0
    while 200 * (outside + math.comb(n, below)) <= 2**n:
        outside += math.comb(n, below)
        below += 1
    if not below:
        raise ValueError(f"{n} rounds are too few for an interval of 99 %: give at least 8")
    return ordered[below - 1], statistics.median(ordered), ordered[n - below]
