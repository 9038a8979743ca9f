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
MOST_ELEMENTS = 2_000_000
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

    Two levels of chance are resampled. Within a process, blocks of consecutive samples, of the same stretches of time
    for both: neighbours in time are alike, and what disturbs one disturbs the other. Between processes, a draw from
    Student's t with the spread of the processes' own ratios: resampling 3 processes would know but 10 different sets,
    and calls a difference certain as soon as all 3 happen to lie on one side. The interval of one process holds for
    that process only. Errors: ValueError for unequal numbers of processes, or one without samples.
    """
    if len(baseline) != len(other) or not baseline or any(len(process) == 0 for process in (*baseline, *other)):
        raise ValueError("both need the same processes, at least one, each with samples")
    generator = np.random.default_rng(seed)
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(baseline, other, strict=True)]
    value = _median_ratio(pairs)
    drawn = np.log(_resampled(pairs, generator)) + _between(pairs) * generator.standard_t(
        max(1, len(pairs) - 1), RESAMPLES
    )
    low, high = np.exp(np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    return Ratio(value, min(float(low), value), max(float(high), value))


def _median_ratio(pairs: Sequence[tuple[Floats, Floats]]) -> float:
    above, below = (np.median(np.concatenate([pair[side] for pair in pairs])) for side in (0, 1))
    return float(above / below)


def _between(pairs: Sequence[tuple[Floats, Floats]]) -> float:
    """Standard error of the mean of the processes' log ratios; 0 of one process."""
    if len(pairs) < 2:
        return 0.0
    logs = [np.log(np.median(a) / np.median(b)) for a, b in pairs]
    return float(np.std(logs, ddof=1) / np.sqrt(len(logs)))


def _resampled(pairs: Sequence[tuple[Floats, Floats]], generator: np.random.Generator) -> Floats:
    """RESAMPLES ratios of medians of block-resampled processes."""
    total = sum(len(a) + len(b) for a, b in pairs)
    step = max(1, min(RESAMPLES, MOST_ELEMENTS // total))
    found = []
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        drawn = [_blocks(pair, size, generator) for pair in pairs]
        above, below = (np.median(np.concatenate([d[side] for d in drawn], axis=1), axis=1) for side in (0, 1))
        found.append(above / below)
    return np.concatenate(found)


def _blocks(pair: tuple[Floats, Floats], size: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Both streams resampled `size` times in circular moving blocks that begin at the same times."""
    fewer = min(len(stream) for stream in pair)
    blocks = max(1, round(fewer ** (2 / 3)))
    starts = generator.random((size, blocks, 1))
    a, b = (_gathered(stream, starts) for stream in pair)
    return a, b


def _gathered(stream: Floats, starts: Floats) -> Floats:
    length = -(-len(stream) // starts.shape[1])
    index = (starts * len(stream)).astype(np.int64) + np.arange(length)
    return stream[index % len(stream)].reshape(len(starts), -1)
