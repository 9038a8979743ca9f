"""Plans and results of a timing session."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from engine.measure.gpu_watch import Watched
from engine.measure.stopwatch import Phase
from engine.results import Contention

MOST_WARMUP = 0.5
"""A warm-up ends after this share of the sampled time asked for, plateau or not: with the untimed calls before samples,
a timing then takes at most twice what was asked for. The samples show whether it was too short."""


@dataclass(frozen=True)
class Subject:
    """Something to time. One call runs its phases in turn."""

    name: str
    phases: Mapping[str, Phase]
    settings: Callable[[], AbstractContextManager[object]] = nullcontext
    """Global switches (TF32, cuDNN, gradients), entered around its calls and outside the timed region."""
    queued: bool = False
    """Time its one phase back to back, each call queued up behind the one before it; else each on an idle device."""


@dataclass(frozen=True)
class Plan:
    """How thoroughly to time. Seconds are sampled time, and the flushing that belongs to it."""

    min_samples: int = 10
    min_seconds: float = 2.0
    warmup_calls: int = 5
    warmup_seconds: float = 0.5
    block_ms: float = 1.0
    seed: int = 1337
    """Of the order of subjects in each round."""

    @property
    def most_warmup_seconds(self) -> float:
        """Seconds after which a warm-up that has its calls ends without a plateau."""
        return max(self.warmup_seconds, MOST_WARMUP * self.min_seconds)


@dataclass(frozen=True)
class Timed:
    """All samples of one subject."""

    rounds: tuple[int, ...]
    """In which round each sample was taken."""
    phases: Mapping[str, tuple[float, ...]]
    """ms per call, one for each sample."""
    calls: tuple[int, ...]
    """In each sample's block: more in later ones where a subject turned out faster than it was in the warm-up."""
    loop_ms: float
    """What the timing loop itself costs per call; it is part of the samples."""
    warmup_calls: int
    gc_runs: int
    """Garbage collections within samples: the automatic ones are off, a subject may start its own."""

    @property
    def samples_ms(self) -> tuple[float, ...]:
        """ms per call, all phases together."""
        return tuple(math.fsum(parts) for parts in zip(*self.phases.values(), strict=True))


@dataclass(frozen=True)
class Session:
    """Results of all subjects, and what the machine did meanwhile."""

    timed: dict[str, Timed]
    failed: dict[str, Exception]
    contention: Contention | None
    gpu: Watched | None
    neighbours: Mapping[str, float] = field(default_factory=dict)
    """The busiest other processes while sampling, by name, with their share of the CPUs."""
    warmup_seconds: float = 0.0
    """Of all subjects together, as the sampled ones."""
    sampled_seconds: float = 0.0
