"""Kinds of run that count to a number and misbehave on request."""

from typing import ClassVar, Literal

from pydantic import BaseModel

from engine.results import Row
from engine.specs import Spec

Trouble = Literal[
    "",
    "raise",
    "refuse",
    "kill itself",
    "stop itself",
    "send itself SIGTERM",
    "exit 137",
    "eat memory",
    "eat all memory",
    "fill the disk",
    "flood the log",
    "ignore SIGTERM",
    "leave children",
    "write outside",
    "write an artifact",
    "say nothing new",
]


class Steps(BaseModel):
    """Count to `steps`, one row per step. The trouble starts at step `at`, or after the last step if `at` is larger."""

    steps: int = 3
    seconds: float = 0.0
    """Seconds that each step takes."""
    trouble: Trouble = ""
    at: int = 1
    limit: int = 0
    """Limit of address space, memory, file or log size in bytes, for the troubles that need one."""
    device: str = "cpu"
    batch_size: int = 8

    @property
    def devices(self) -> tuple[str, ...]:
        return (self.device,)


class TrialSpec(Steps, Spec):
    """A run with one attempt."""

    kind: ClassVar[str] = "trial"


class RetriedSpec(Steps, Spec):
    """A run with up to three attempts."""

    kind: ClassVar[str] = "retried"
    attempts: ClassVar[int] = 3


class TimingSpec(Steps, Spec):
    """A run that needs the whole host, as timings do."""

    kind: ClassVar[str] = "timing"
    exclusive: ClassVar[bool] = True


class ImportingSpec(Steps, Spec):
    """A run whose task takes an hour to import."""

    kind: ClassVar[str] = "importing"


class TrialRow(Row):
    """One step and the process that counted it."""

    kind: ClassVar[str] = "trial"
    step: int
    pid: int


class RetriedRow(Row):
    """One step of a `retried` run."""

    kind: ClassVar[str] = "retried"
    step: int
    pid: int


class TimingRow(Row):
    """One step of a `timing` run."""

    kind: ClassVar[str] = "timing"
    step: int
    pid: int


class ImportingRow(Row):
    """A row of a run that never makes one."""

    kind: ClassVar[str] = "importing"
