"""Whether samples drift: a difference between their beginning and their end that noise does not explain."""

import math
from collections.abc import Sequence

import numpy as np

LEAST = 0.02
"""Smaller differences, as a share of the last third's median, are no drift: no verdict rests on less than 2 %."""
SEGMENTS = 12
"""Segments whose medians tell the noise: long ones, because neighbouring samples are alike on a busy machine."""
NOISE = 3.5
"""Standard errors that a difference must exceed. Student's t with the about 7 degrees of freedom that 11 differences of
neighbours have exceeds it by chance in 1 % of cases."""


def drifting(samples: Sequence[float]) -> bool:
    """Return whether the first and the last third differ by 2 % or more, and by more than noise explains.

    Medians of the thirds are compared. The noise is that between neighbouring segments, which a slow drift hardly
    changes (von Neumann's mean square successive difference). Fewer than 6 samples show no drift.
    """
    third = len(samples) // 3
    if third < 2:
        return False
    first, last = float(np.median(samples[:third])), float(np.median(samples[-third:]))
    segments = [float(np.median(part)) for part in np.array_split(samples, min(len(samples), SEGMENTS))]
    noise = float(np.sqrt(np.mean(np.square(np.diff(segments))) / 2))
    standard_error: float = noise * math.sqrt(6 / len(segments))
    return bool(abs(first - last) >= max(LEAST * last, NOISE * standard_error))
