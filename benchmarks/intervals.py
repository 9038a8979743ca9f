"""Intervals of the benchmarks' results."""

import math
import statistics


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Return (low, median, high): a confidence interval of the median of at least 99 %, by the sign test.

    Errors: ValueError for fewer than 8 values.
    """
    ordered, n = sorted(values), len(values)
    outside, below = 0, 0
    while 200 * (outside + math.comb(n, below)) <= 2**n:
        outside += math.comb(n, below)
        below += 1
    if not below:
        raise ValueError(f"{n} rounds are too few for an interval of 99 %: give at least 8")
    return ordered[below - 1], statistics.median(ordered), ordered[n - below]
