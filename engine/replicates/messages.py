"""What passes between a benchmark and the fresh processes it measures in: one job in, reports out, as JSON lines."""

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from engine.results import Contention, Status
from engine.results.benchmark import AccuracyStatus
from engine.specs import BenchmarkSpec
from engine.specs.benchmark import Mode

LONGEST_ERROR = 2000


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Job(_Message):
    """One process's work: one model, mode and batch size, in all variants but those that have failed before."""

    spec: BenchmarkSpec
    model: str
    """Qualified, `timm:resnet50`."""
    mode: Mode
    batch_size: int
    process: int = 0
    """The first counts from 0."""
    skip: tuple[str, ...] = ()
    """Labels of variants to leave out."""
    decays: bool = False
    """Whether a smaller batch is tried when the baseline runs out of memory, so that no variant need go on."""
    search: tuple[int, int | None] | None = None
    """Search for the largest batch size up to batch_size instead: what is known to fit (0: nothing), and not to."""
    parent: int
    """The process without which this one has no purpose."""


class Measured(_Message):
    """One variant in one process."""

    variant: str
    status: Status = "ok"
    error: str = ""
    row: dict[str, Any] = Field(default_factory=dict)
    """Fields of the row that need no combining."""
    rounds: tuple[int, ...] = ()
    phases: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """ms per call, one per sample."""
    calls: int = 0
    loop_ms: float = 0
    gc_runs: int = 0
    first_call_ms: float | None = None
    compile_ms: float | None = None
    """Capture, compilation and first call; None of eager."""
    compile_again_ms: float | None = None
    """The same a second time, with the caches of the first."""
    contention: Contention | None = None
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


class Report(_Message):
    """One line of a process: what it is at, or what it has found."""

    doing: str = ""
    """For people: `compile: first call`."""
    variant: str = ""
    """The label of the variant this is about; empty: all of them."""
    measured: Measured | None = None
    trying: int | None = None
    """Of a search: the batch size that is about to be tried, and then that it fits, or fails."""
    fits: int | None = None
    fails: int | None = None


def described(error: BaseException) -> str:
    """The type and the beginning of what it says."""
    text = f"{type(error).__name__}: {error}".strip()
    return text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + " ..."
