"""What passes between a timing and the fresh processes it measures in: one job in, reports out, as JSON lines."""

import math
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from engine.results import Contention, Status
from engine.results.benchmark import AccuracyStatus
from engine.specs import BenchmarkSpec, RecurrentSpec

TimedSpec = BenchmarkSpec | RecurrentSpec
"""What is timed in fresh processes."""
LONGEST_ERROR = 2000


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BackToBack(_Message):
    """The samples of calls that queue up behind each other."""

    rounds: tuple[int, ...]
    ms: tuple[float, ...]
    """Per call."""
    calls: tuple[int, ...]
    """Per sample."""


class Measured(_Message):
    """One of what is timed side by side, in one process."""

    label: str
    status: Status = "ok"
    error: str = ""
    row: dict[str, Any] = Field(default_factory=dict)
    """Fields of the row that need no combining."""
    rounds: tuple[int, ...] = ()
    phases: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """ms per call, one per sample."""
    calls: tuple[int, ...] = ()
    """Per sample."""
    back_to_back: BackToBack | None = None
    """On an accelerator."""
    loop_ms: float = 0
    gc_runs: int = 0
    first_call_ms: float | None = None
    compile_ms: float | None = None
    """Capture, compilation and first call; None of eager."""
    compile_again_ms: float | None = None
    """The same a second time, with the caches of the first."""
    loading_s: float = 0
    """Loading the compiler, by the first that uses it."""
    contention: Contention | None = None
    neighbours: dict[str, float] = Field(default_factory=dict)
    """The share of the CPUs that the busiest other processes used, by name."""
    foreign: tuple[str, ...] = ()
    """Who else was on the GPU, in words."""
    throttled: str = ""
    """How a GPU was held back, in words; empty when it was not."""
    device_peak_mb: float | None = None
    process_peak_mb: float | None = None
    joules_per_call: float | None = None
    accuracy: AccuracyStatus | None = None
    notes: tuple[str, ...] = ()

    @property
    def samples_ms(self) -> list[float]:
        """Per sample: its phases together."""
        return [math.fsum(parts) for parts in zip(*self.phases.values(), strict=True)]


class Job(_Message):
    """One process's work: all that is timed side by side, but what has failed before. Subclasses name their kind."""

    kind: ClassVar[str]
    """`engine.replicates.<kind>.work` does it."""

    spec: TimedSpec
    process: int = 0
    """The first counts from 0."""
    skip: tuple[str, ...] = ()
    """Labels to leave out."""
    decays: bool = False
    """Whether something smaller is tried when the baseline runs out of memory, so that nothing else need go on."""
    parent: int
    """The process without which this one has no purpose."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The subjects timed side by side, the baseline first."""
        raise NotImplementedError

    @property
    def labels(self) -> tuple[str, ...]:
        """The subjects that are left to time."""
        return tuple(label for label in self.all_labels if label not in self.skip)

    @property
    def title(self) -> str:
        """For people who wait: `timm:resnet50: inference, batch 8`."""
        raise NotImplementedError

    def failed(self, label: str, status: Status, error: str) -> Measured:
        """Return the result of a label whose process died before it could report."""
        return Measured(label=label, status=status, error=error)


class Report(_Message):
    """One line of a process: what it is at, or what it has found."""

    doing: str = ""
    """For people: `compile: first call`."""
    label: str = ""
    """What this is about; empty: all that is timed."""
    measured: Measured | None = None
    warmup_s: float = 0
    """What the process has spent on warming up, once it has."""
    sampled_s: float = 0
    trying: int | None = None
    """Of a search: the batch size that is about to be tried, and then that it fits, or fails."""
    fits: int | None = None
    fails: int | None = None


def described(error: BaseException) -> str:
    """Return the type and the beginning of what it says."""
    text = f"{type(error).__name__}: {error}".strip()
    return text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + " ..."
