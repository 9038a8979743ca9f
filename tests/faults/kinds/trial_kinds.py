"""Kinds of run that count to a number and misbehave on the way."""

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
    """Count to `steps`, a row each; at step `at` the trouble begins, or after the last step if `at` is larger."""

    steps: int = 3
    seconds: float = 0.0
    """Per step."""
    trouble: Trouble = ""
    at: int = 1
    limit: int = 0
    """Of address space, memory or file size, in bytes, for the troubles that need one."""
    device: str = "cpu"
    batch_size: int = 8

    @property
    def devices(self) -> tuple[str, ...]:
        return (self.device,)


class TrialSpec(Steps, Spec):
    """Tried once."""

    kind: ClassVar[str] = "trial"


class RetriedSpec(Steps, Spec):
    """Tried three times."""

    kind: ClassVar[str] = "retried"
    attempts: ClassVar[int] = 3


class TimingSpec(Steps, Spec):
    """Wants the host for itself, as timings do."""

    kind: ClassVar[str] = "timing"
    exclusive: ClassVar[bool] = True


class TrialRow(Row):
    """A step, and the process that made it."""

    kind: ClassVar[str] = "trial"
    step: int
    pid: int


class RetriedRow(Row):
    """The same of the other kind."""

    kind: ClassVar[str] = "retried"
    step: int
    pid: int


class TimingRow(Row):
    """The same of the kind that wants the host for itself."""

    kind: ClassVar[str] = "timing"
    step: int
    pid: int
