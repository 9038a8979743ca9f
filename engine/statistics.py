"""What can be said of samples: percentiles, drift, spread between processes, and the ratio of two medians."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

NEEDED = {50: 1, 90: 64, 95: 130, 99: 662}
"""Samples below which a percentile is not given: its interval would be too wide to mean much (MLPerf LoadGen)."""
UNSTABLE = 0.05
"""A spread between processes above which a result is not to be quoted."""
DRIFT = 0.02
MARGIN = 0.02
"""What two medians may differ by and still count as the same."""
CONFIDENCE = 0.99
RESAMPLES = 2000
LEAST_FOR_RATIO = 8
"""Of fewer samples all may lie on one side of the median by chance more than once in a hundred: 2 x 2^-7."""
FEW_RESAMPLES = 200
"""Enough for a variance."""
LONGEST_STRETCH = 0.2
"""Of a process, that one block takes up."""
MOST_DRAWN = 1000
"""Values per process and resample. Of more samples every second, third, ... of a block is drawn: their median scatters
a little more, which errs on the safe side."""
MOST_ELEMENTS = 500_000
"""Resampled values held at once."""

Floats = NDArray[np.float64]


def percentile(samples: Sequence[float], q: int) -> float | None:
    """The q-th percentile, linearly interpolated between the two nearest samples (numpy's default, Hyndman-Fan 7).

    q is one of NEEDED; None of fewer samples than NEEDED[q].
    """
    return float(np.percentile(samples, q)) if len(samples) >= NEEDED[q] else None


def drifting(samples: Sequence[float]) -> bool:
    """Whether the medians of the first and the last third differ by 2 % of the last, or more.

    Fewer than 6 samples show no drift.
    """
    third = len(samples) // 3
    if third < 2:
        return False
    first, last = float(np.median(samples[:third])), float(np.median(samples[-third:]))
    return abs(first - last) >= DRIFT * last


def spread(medians: Sequence[float]) -> float | None:
    """(largest - smallest) / median of the processes' medians; None of fewer than 2 processes."""
    return (max(medians) - min(medians)) / float(np.median(medians)) if len(medians) > 1 else None


@dataclass(frozen=True)
class Ratio:
    """How many times faster one is than a baseline, with the interval that holds the true value (99 %)."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> Literal["faster", "slower", "no difference", "undecided"]:
        """Differences of up to 2 % are none."""
        if self.low > 1 + MARGIN:
            return "faster"
        if self.high < 1 - MARGIN:
            return "slower"
        if self.low >= 1 - MARGIN and self.high <= 1 + MARGIN:
            return "no difference"
        return "undecided"


def ratio(baseline: Sequence[Sequence[float]], other: Sequence[Sequence[float]], *, seed: int = 1337) -> Ratio:
    """median(baseline) / median(other) of all samples, above 1 if `other` is faster, with its bootstrap interval.

    Takes times: one sequence per process, in the order they were sampled, the same processes for both. Samples of one
    process cover the same stretch of time for both, but need not be equally many.

    Two levels of chance are resampled: the processes, and within each, blocks of consecutive samples (neighbours in
    time are alike), of the same stretches of time for both (what disturbs one disturbs the other). Three processes that
    disagree lie on one side of the truth by chance once in four, and resampled they stay there. So the interval is
    widened, by Student's t, for as much as their own ratios differ by more than samples and half the margin explain.
    The interval of one process holds for that process only, and that of two, which often agree by chance, for little
    more; of fewer than 8 samples nothing follows, and it is 0 to infinity.

    Errors: ValueError for unequal numbers of processes, or one without samples.
    """
    if len(baseline) != len(other) or not baseline or any(len(process) == 0 for process in (*baseline, *other)):
        raise ValueError("both need the same processes, at least one, each with samples")
    generator = np.random.default_rng(seed)
    sides = [[np.asarray(process, float) for process in side] for side in (baseline, other)]
    blocks = round(1 / max(_stretch(side) for side in sides))
    above, below = (float(np.median(np.concatenate(side))) for side in sides)
    value = above / below
    if min(sum(map(len, side)) for side in sides) < LEAST_FOR_RATIO:
        return Ratio(value, 0.0, float("inf"))
    drawn = _resampled(sides, blocks, RESAMPLES, generator)
    drawn += _disagreement(sides, blocks, generator) * generator.standard_t(max(1, len(baseline) - 1), RESAMPLES)
    low, high = np.exp(np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    return Ratio(value, min(float(low), value), max(float(high), value))


def _stretch(processes: Sequence[Floats]) -> float:
    """What part of a process one block takes up: the square root of its samples, more where neighbours are much alike.

    With a correlation of r between neighbours, (3/2 n)^(1/3) (2 r / (1 - r^2))^(2/3) samples (Carlstein 1986); r is
    taken from how often neighbours lie on the same side of the median, which outliers do not sway.
    """
    n = float(np.mean([len(process) for process in processes]))
    signs = [np.sign(process - np.median(process)) for process in processes if len(process) > 2]
    alike = float(np.mean([np.mean(sign[1:] * sign[:-1]) for sign in signs])) if signs else 0.0
    r = float(np.sin(np.pi / 2 * np.clip(alike, 0, 0.99)))
    length = max(n**0.5, (1.5 * n) ** (1 / 3) * (2 * r / (1 - r * r)) ** (2 / 3))
    return float(min(length / n, LONGEST_STRETCH))


def _resampled(
    sides: Sequence[Sequence[Floats]], blocks: int, resamples: int, generator: np.random.Generator
) -> Floats:
    """Log ratios of the two sides' medians, with processes and blocks of their samples drawn anew."""
    processes = len(sides[0])
    most = max(len(process) for side in sides for process in side)
    step = max(1, MOST_ELEMENTS // (processes * min(most, MOST_DRAWN)))
    found = []
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        chosen = generator.integers(processes, size=(size, processes, 1, 1))
        starts = generator.random((size, processes, blocks, 1), dtype=np.float32)
        above, below = (_medians(side, chosen, starts) for side in sides)
        found.append(np.log(above / below))
    return np.concatenate(found)


def _medians(side: Sequence[Floats], chosen: NDArray[np.int64], starts: NDArray[np.float32]) -> Floats:
    """The median of each resample: of the chosen processes, blocks that begin at those fractions of their length."""
    lengths = np.array([len(process) for process in side])
    offsets = np.cumsum(lengths) - lengths
    typical, blocks = int(lengths.mean()), starts.shape[2]
    every = -(-typical // MOST_DRAWN)
    within = np.arange(0, -(-typical // blocks), every)
    length = lengths[chosen]
    index = offsets[chosen] + ((starts * length).astype(np.int64) + within) % length
    values = np.concatenate(side).astype(np.float32)[index].reshape(len(chosen), -1)
    middle = values.shape[1] // 2
    return np.partition(values, middle, axis=1)[:, middle].astype(float)


def _disagreement(sides: Sequence[Sequence[Floats]], blocks: int, generator: np.random.Generator) -> float:
    """Standard error of the processes' log ratios, beyond what their samples and half the margin explain."""
    pairs = list(zip(*sides, strict=True))
    if len(pairs) < 2:
        return 0.0
    found = np.var([np.log(np.median(a) / np.median(b)) for a, b in pairs], ddof=1)
    explained = np.mean([np.var(_resampled([[a], [b]], blocks, FEW_RESAMPLES, generator)) for a, b in pairs])
    return float(np.sqrt(max(0.0, found - explained - (MARGIN / 2) ** 2) / len(pairs)))
