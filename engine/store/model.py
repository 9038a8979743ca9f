"""Objects that the store returns: runs, their states and causes, attempts."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from pydantic.dataclasses import dataclass as checked_dataclass

from engine.results import Artifact, Environment
from engine.specs import Refused, Spec


class State(StrEnum):
    """The states of a run; the ways between them are those of `store.attempts` and `store.queue`."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    VANISHED = "vanished"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the run is in a final state."""
        return self in ENDED


ACTIVE = (State.STARTING, State.RUNNING, State.STOPPING, State.VANISHED)
"""An attempt is under way."""
ENDED = (State.FINISHED, State.FAILED, State.CANCELLED)
RETRYABLE = (State.FAILED, State.CANCELLED)
"""An ended run in one of these states can be queued again."""


class Cause(StrEnum):
    """Why a run failed."""

    ERROR = "error"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    KILLED = "killed"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    STORE_UNAVAILABLE = "store_unavailable"


class QueueFull(Refused):
    """Too many runs wait already."""


class StaleAttempt(RuntimeError):
    """This attempt is no longer the run's: another took its place, or the run has ended. It must write nothing."""


@checked_dataclass(frozen=True)  # of values that SQLite does not check: a damaged store may hold any
class Run:
    """One execution of a spec."""

    id: int
    kind: str
    name: str
    spec: Spec
    state: State
    cause: Cause | None
    error: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    cancel_requested: bool
    attempt: int
    """How many attempts there have been."""
    done: int
    total: int | None
    note: str
    environment: Environment | None
    revision: int
    """Grows with every stored event and every change of state."""
    notes: str = ""
    tags: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """The host it ran on; empty if it has not begun."""
        return self.environment.host if self.environment else ""

    def seconds(self, now: datetime | None = None) -> float | None:
        """Return how long it has run, or ran; None before its start."""
        if self.started_at is None:
            return None
        seconds = ((self.ended_at or now or datetime.now(UTC)) - self.started_at).total_seconds()
        return max(seconds, 0.0)  # the clock may have been set back meanwhile

    def seconds_left(self, now: datetime | None = None) -> float | None:
        """Return an estimate from the pace so far; None where there is none."""
        elapsed = self.seconds(now)
        if self.state.ended or elapsed is None or not self.total or not self.done:
            return None
        return elapsed / self.done * max(self.total - self.done, 0)


@dataclass(frozen=True)
class Attempt:
    """One try of a run."""

    token: int
    """Fences: later attempts have greater ones, and only the latest may write."""
    run_id: int
    number: int
    """1 for a run's first."""
    host: str
    created_at: float
    begun_at: float | None
    heartbeat_at: float
    stop_at: float | None
    cancel_requested: bool


@dataclass(frozen=True)
class Exit:
    """How an attempt's process ended."""

    code: int | None = None
    """Exit code; negative: the signal that killed it; None: nobody saw it end."""
    out_of_memory: bool = False
    """The kernel killed something for want of memory meanwhile."""
    note: str = ""


class StoredArtifact(Artifact):
    """An artifact with what proves it whole."""

    size: int
    """Bytes."""
    sha256: str
