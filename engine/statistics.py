"""Statistics of samples: percentiles, drift, spread between processes, and the ratio of two medians."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

NEEDED = {90: 64, 95: 130, 99: 662}
"""Fewest samples from which each percentile is given. A timing has a field for each, such as `p90_ms`.

With that many independent samples, at least two lie above the true percentile with a probability of 99 %, so the second
largest sample is an upper bound: MLPerf Inference's criterion for early stopping (LoadGen), P(at most one of n lies
above) <= 1 %. If neighbours correlate with 0.5, 0.9 or 0.98, the probability is 98, 79 or 38 % for p99.
benchmarks/documented_shares.py simulates these shares and those of drifts."""
UNSTABLE = 0.05
"""Spread between processes above which a result should not be quoted."""
DRIFT = 0.02
"""Smallest difference that counts as drift, as a share of the last third's median. No verdict depends on less."""
DRIFT_SEGMENTS = 12
"""Segments whose medians measure the noise. Few long ones, because neighbours correlate on a busy machine."""
DRIFT_ERRORS = 3.5
"""A drift must exceed this many standard errors. Student's t with about 7 degrees of freedom, which 11 differences of
neighbours have, exceeds it by chance in about 1 % of cases; with fewer than 12 samples in up to 2.3 %.

Samples that wander in a machine's noise look like a drift: with a correlation of 0.9 between neighbours and a standard
deviation of 5 %, 46 % of series of 20 samples, 24 % of 60 and 2 % of 300 are flagged."""
MARGIN = 0.02
"""Times whose relative difference is at most this are treated as equal. It affects the verdict, not the interval."""
CONFIDENCE = 0.99
LEAST_PROCESSES = 3
"""A ratio from fewer processes gets no verdict: they say too little about the differences between processes."""
LEAST_RUNS = 3
"""A comparison of runs with fewer runs on either side gets no verdict: they say too little about their differences."""
PRIOR_SD, PRIOR_DF = 0.03, 3
"""Prior of the standard deviation between processes, and its weight in degrees of freedom.

Processes on a quiet machine differ by 3 %. benchmarks/interval_coverage.py simulates the coverage of the interval."""
WIDE_SD = 0.06
"""Above this standard deviation between processes the prior does not hold, and plain Student's t is used."""
RESAMPLES = 200
"""Bootstrap resamples per process: enough to estimate a variance."""
LEAST_FOR_RATIO = 8
"""With fewer samples all can lie on one side of the median by chance (over 1 %, 2 x 2^-7): no interval then."""
LONGEST_STRETCH = 0.2
"""Largest share of a process's samples in one bootstrap block."""
MOST_DRAWN = 1000
"""Most values per resample. From more samples only every second, third, ... of a block is drawn. Their median scatters
a little more, which makes the interval wider, not narrower."""

Floats = NDArray[np.float64]


def percentile(samples: Sequence[float], q: int) -> float | None:
    """Return the q-th percentile, interpolated linearly between two samples (numpy's default, Hyndman-Fan 7).

    q: a key of NEEDED. Returns None for fewer than NEEDED[q] samples.
    """
    return float(np.percentile(samples, q)) if len(samples) >= NEEDED[q] else None


def drifting(samples: Sequence[float]) -> bool:
    """Return whether the medians of the first and the last third differ by 2 % or more, and by more than noise
    explains.

    The noise is that between neighbouring segments, which a slow drift hardly changes (von Neumann's mean square
    successive difference). Fewer than 6 samples never count as drift.
    """
    third = len(samples) // 3
    if third < 2:
        return False
    first, last = float(np.median(samples[:third])), float(np.median(samples[-third:]))
    segments = [float(np.median(part)) for part in np.array_split(samples, min(len(samples), DRIFT_SEGMENTS))]
    noise = float(np.sqrt(np.mean(np.square(np.diff(segments))) / 2))
    standard_error: float = noise * math.sqrt(6 / len(segments))
    return bool(abs(first - last) >= max(DRIFT * last, DRIFT_ERRORS * standard_error))


def spread(medians: Sequence[float]) -> float | None:
    """Return (largest - smallest) / median of the processes' medians; None for fewer than 2 processes."""
    return (max(medians) - min(medians)) / float(np.median(medians)) if len(medians) > 1 else None


@dataclass(frozen=True)
class Ratio:
    """A ratio of times, baseline / other: above 1 the other is faster. With a 99 % interval."""

    value: float
    low: float
    high: float
    processes: int

    @property
    def verdict(self) -> Literal["faster", "slower", "no difference", "undecided", "needs 3 processes"]:
        """Return the conclusion from the interval. Differences of up to 2 % count as no difference."""
        if self.processes < LEAST_PROCESSES:
            return "needs 3 processes"
        if self.low > 1 + MARGIN:
            return "faster"
        if self.high < 1 - MARGIN:
            return "slower"
        if self.low >= 1 - MARGIN and self.high <= 1 + MARGIN:
            return "no difference"
        return "undecided"


def ratio(
    baseline: Sequence[Sequence[float]],
    other: Sequence[Sequence[float]],
    *,
    seed: int = 1337,
    publishable: bool = False,
) -> Ratio:
    """Return how many times as fast `other` is as `baseline`, with its 99 % interval.

    baseline, other: times, one sequence per process in sampling order, from the same processes. In one process the
    samples of both cover the same stretch of time, but their numbers may differ.

    The value is the geometric mean of the processes' ratios of medians. The interval is Student's t over the processes'
    log ratios. Their variance is moderated by a prior (PRIOR_SD, worth PRIOR_DF degrees of freedom; Smyth 2004, "Linear
    models and empirical Bayes methods", eq. 3.1), because three processes often agree by chance. It is never less than
    the variance within processes, which comes from a block bootstrap. If processes differ by more than WIDE_SD, and for
    publishable results, which have 5 processes or more, it is plain Student's t without the prior. With fewer than
    LEAST_FOR_RATIO samples the interval is 0 to infinity.

    Errors: ValueError for different numbers of processes, or a process without samples.
    """
    if len(baseline) != len(other) or not baseline or any(len(process) == 0 for process in (*baseline, *other)):
        raise ValueError("both need the same processes, at least one, each with samples")
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(baseline, other, strict=True)]
    logs = np.array([np.log(np.median(a) / np.median(b)) for a, b in pairs])
    mean = float(np.mean(logs))
    if min(sum(map(len, side)) for side in (baseline, other)) < LEAST_FOR_RATIO:
        return Ratio(float(np.exp(mean)), 0.0, float("inf"), len(pairs))
    generator = np.random.default_rng(seed)
    within = float(np.mean([_variance_within(a, b, generator) for a, b in pairs]))
    half = half_width(logs, within, publishable=publishable)
    return Ratio(float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half)), len(pairs))


def ratio_of_runs(baseline: Sequence[float], other: Sequence[float]) -> Ratio | None:
    """Return how many times as fast `other` is, from whole runs of both; None with fewer than LEAST_RUNS of either.

    baseline, other: one time per independent run, in any unit. Runs are not paired: the variance between runs of one
    request is used. The 99 % interval is Student's t for two means of logarithms with a common variance.
    """
    from scipy.special import stdtrit

    if min(len(baseline), len(other)) < LEAST_RUNS:
        return None
    sides = [np.log(np.asarray(side, float)) for side in (baseline, other)]
    mean = float(sides[0].mean() - sides[1].mean())
    freedom = sum(len(side) - 1 for side in sides)
    variance = sum(float(((side - side.mean()) ** 2).sum()) for side in sides) / freedom
    error = (variance * sum(1 / len(side) for side in sides)) ** 0.5
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return Ratio(float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half)), LEAST_PROCESSES)


def half_width(logs: Floats, within: float, *, publishable: bool = False) -> float:
    """Return half the width of the 99 % interval of the mean log ratio, as described in `ratio`.

    logs: (P,) log ratios, one per process. within: mean variance of a log ratio within a process.
    """
    from scipy.special import stdtrit  # imported late: takes 0.2 s, and most commands do not need it

    count = len(logs)
    between = float(np.var(logs, ddof=1)) if count > 1 else 0.0
    if count > 1 and (publishable or between > WIDE_SD**2):
        variance, freedom = between, count - 1
    else:
        freedom = count - 1 + PRIOR_DF
        variance = (PRIOR_DF * (PRIOR_SD**2 + within) + (count - 1) * between) / freedom
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.sqrt(max(variance, within) / count))


def _variance_within(baseline: Floats, other: Floats, generator: np.random.Generator) -> float:
    """Return the bootstrap variance of the log ratio of two medians in one process.

    Blocks of consecutive samples are drawn, because neighbours in time are correlated. Both sides use the same
    stretches of time, because a disturbance affects both.
    """
    blocks = round(1 / max(_stretch(baseline), _stretch(other)))
    starts = generator.random((RESAMPLES, blocks, 1), dtype=np.float32)
    return float(np.var(np.log(_medians(baseline, starts) / _medians(other, starts))))


def _stretch(process: Floats) -> float:
    """Return the length of a block as a share of a process's n samples, at most LONGEST_STRETCH.

    A block has n^(1/2) samples, or (3/2 n)^(1/3) (2 r / (1 - r^2))^(2/3) if that is more, with a correlation of r
    between neighbours (Carlstein 1986). r is estimated from how often neighbours lie on the same side of the median,
    which outliers do not affect.
    """
    n = len(process)
    sign = np.sign(process - np.median(process))
    alike = float(np.mean(sign[1:] * sign[:-1])) if n > 2 else 0.0
    r = float(np.sin(np.pi / 2 * np.clip(alike, 0, 0.99)))
    length = max(n**0.5, (1.5 * n) ** (1 / 3) * (2 * r / (1 - r * r)) ** (2 / 3))
    return float(min(length / n, LONGEST_STRETCH))


def _medians(process: Floats, starts: NDArray[np.float32]) -> Floats:
    """Return the median of each resample. starts: (resamples, blocks, 1), start of each block as a share of n."""
    n, blocks = len(process), starts.shape[1]
    within = np.arange(0, -(-n // blocks), -(-n // MOST_DRAWN))
    index = ((starts * n).astype(np.int64) + within) % n
    values = process[index].reshape(len(starts), -1)
    middle = values.shape[1] // 2
    return np.partition(values, middle, axis=1)[:, middle]
