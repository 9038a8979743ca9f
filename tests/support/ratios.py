"""Calculate ratios of timings independently of the engine."""

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean, median, variance

from scipy import stats

Processes = Sequence[Sequence[float]]


def by_hand(baseline: Processes, other: Processes) -> tuple[float, float, float]:
    """Return the speed-up of `other` over `baseline`, and the lower and upper limit of its 99 % interval.

    The speed-up is the geometric mean of the processes' ratios of medians. The interval is Student's t with a prior of
    3 % that counts as 3 degrees of freedom. The variance within processes is left out.
    """
    logs = [log(median(a) / median(b)) for a, b in zip(baseline, other, strict=True)]
    freedom = len(logs) - 1 + 3
    error = sqrt((3 * 0.03**2 + (len(logs) - 1) * variance(logs)) / freedom / len(logs))
    half = float(stats.t.ppf(0.995, freedom)) * error
    return exp(fmean(logs)), exp(fmean(logs) - half), exp(fmean(logs) + half)
