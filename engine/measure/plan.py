"""Plans and results of a timing session."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from engine.measure.gpu_watch import Watched
from engine.measure.stopwatch import Phase
from engine.results import Contention

MOST_WARMUP = 0.5
"""A warm-up ends after this share of the requested sampled time, even without a plateau. With the untimed calls before
samples, a timing then takes at most twice the requested time. The samples show whether the warm-up was too short."""


@dataclass(frozen=True)
class Subject:
    """Something to time. One call runs its phases in order."""

    name: str
    phases: Mapping[str, Phase]
    settings: Callable[[], AbstractContextManager[object]] = nullcontext
    """Sets global switches (TF32, cuDNN, gradients). Entered around the calls, outside the timed region."""
    queued: bool = False
    """Queue the calls of its only phase one behind the other, instead of timing each call on an idle device."""


@dataclass(frozen=True)
class Plan:
    """How many samples to take. Seconds are sampled time, including the flushing before samples."""

    min_samples: int = 10
    min_seconds: float = 2.0
    warmup_calls: int = 5
    warmup_seconds: float = 0.5
    """Seconds before which a warm-up does not end, even on a plateau; but at most MOST_WARMUP of min_seconds."""
    max_seconds: float = math.inf
    """Maximum wall time in s for warm-up and sampling of all subjects. A block that would end later is not started, but
    each subject gets at least one warm-up block and one sample."""
    block_ms: float = 1.0
    """Minimum ms of a block. Quick calls are repeated to fill it, because a clock has limited precision."""
    seed: int = 1337
    """Seed for the random order of subjects in each round."""


@dataclass(frozen=True)
class Timed:
    """All samples of one subject."""

    rounds: tuple[int, ...] = ()
    """Round in which each sample was taken."""
    phases: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """ms per call of each phase, one value per sample."""
    calls: tuple[int, ...] = ()
    """Calls in each sample's block. Later blocks have more when a subject proved faster than in the warm-up."""
    loop_ms: float = 0.0
    """Cost of the timing loop itself, in ms per call. The samples include it."""
    warmup_calls: int = 0
    gc_runs: int = 0
    """Garbage collections within samples. Automatic ones are off, but a subject may start its own."""
    cut_off: bool = False
    """True if max_seconds ended the sampling before the requested samples and seconds."""

    @property
    def samples_ms(self) -> tuple[float, ...]:
        """Return the ms per call of each sample, summed over all phases."""
        return tuple(math.fsum(parts) for parts in zip(*self.phases.values(), strict=True))


@dataclass(frozen=True)
class Session:
    """Results of all subjects, and the machine's load meanwhile."""

    timed: dict[str, Timed]
    failed: dict[str, Exception]
    contention: Contention | None
    gpu: Watched | None
    neighbours: Mapping[str, float] = field(default_factory=dict)
    """Share of the CPUs that the busiest other processes used while sampling, by name."""
    warmup_seconds: float = 0.0
    """Sum over all subjects, like sampled_seconds."""
    sampled_seconds: float = 0.0
