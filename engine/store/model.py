"""Objects that the store returns: runs, their states and causes, tags, attempts."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from pydantic.dataclasses import dataclass as checked_dataclass

from engine.results import Artifact, Environment
from engine.specs import Refused, Spec
from engine.words import plural


class State(StrEnum):
    """The states of a run. `store.attempts` and `store.queue` make the transitions."""

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
        """Return whether the state is final."""
        return self in ENDED


ACTIVE = (State.STARTING, State.RUNNING, State.STOPPING, State.VANISHED)
"""An attempt is open in these states."""
UNFINISHED = (State.QUEUED, *ACTIVE)
ENDED = (State.FINISHED, State.FAILED, State.CANCELLED)
RETRYABLE = (State.FAILED, State.CANCELLED)
"""An ended run in one of these states can be queued again."""


class Cause(StrEnum):
    """The reasons why a run can fail."""

    ERROR = "error"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    KILLED = "killed"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    STORE_UNAVAILABLE = "store_unavailable"


LONGEST_TAG, MOST_TAGS, LONGEST_NOTES = 40, 20, 10_000


def tag(text: str) -> str:
    """Return a tag in its stored form, with single spaces. Errors: Refused."""
    stored = " ".join(text.split())
    if not stored or len(stored) > LONGEST_TAG or "," in stored or not stored.isprintable():
        raise Refused(f"a tag has 1 to {LONGEST_TAG} characters and no comma, unlike {text[: 2 * LONGEST_TAG]!r}")
    return stored


class QueueFull(Refused):
    """Raised when too many runs wait already."""


class StaleAttempt(RuntimeError):
    """Raised when an attempt must not write: a newer one has replaced it, or the run has ended."""


@dataclass(frozen=True)
class Results:
    """A summary of the rows of a run that has ended."""

    rows: int = 0
    failed: int = 0
    """Number of rows whose status is not `ok`."""
    loss: float | None = None
    """Mean training loss of the last epoch."""
    held_out_loss: float | None = None
    """Loss of a training on the held-out pairs at its last validation."""
    accuracy: float | None = None
    """Top-1 accuracy: zero-shot where it was measured. None for an evaluation of several models or data sets."""
    mean_average_precision: float | None = None
    """Mean average precision of zero-shot, if images have several classes.

    None for an evaluation of several models or data sets.
    """
    latency_ms: float | None = None
    """Median latency of the only timed row. None for a run of several models or variants."""
    flags: tuple[str, ...] = ()


@checked_dataclass(frozen=True)  # checked, because SQLite does not check types and a damaged store may hold any value
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
    """The number of attempts so far."""
    done: int
    total: int | None
    note: str
    environment: Environment | None
    revision: int
    """Increases with every stored event and every change of state."""
    notes: str = ""
    owner: str = ""
    """E-mail of the user who submitted it; empty without sign-in and from the command line."""
    tags: tuple[str, ...] = ()
    estimated_s_left: float | None = None
    """Seconds left at the last progress as the task estimates them; None if it does not."""
    progressed_at: datetime | None = None
    """When `done` last changed."""
    earlier_s: float = 0.0
    """Seconds of earlier attempts."""
    results: Results = Results()

    @property
    def all_failed(self) -> bool:
        """Return whether the run finished and none of its rows is a result."""
        return self.state is State.FINISHED and 0 < self.results.rows == self.results.failed

    @property
    def outcome(self) -> str:
        """Return the state in words: `finished`, `finished, 2 errors` or `all failed` for a finished run."""
        if self.state is not State.FINISHED or not self.results.failed:
            return self.state.value
        return "all failed" if self.all_failed else f"finished, {plural(self.results.failed, 'error')}"

    @property
    def host(self) -> str:
        """Return the host on which the run ran; empty if it has not begun."""
        return self.environment.host if self.environment else ""

    def seconds(self, now: datetime | None = None) -> float | None:
        """Return the seconds since its start, or its duration once it has ended; None before its start.

        If the run continues the work of its earlier attempts, their seconds are included, without the pauses.
        """
        if self.started_at is None:
            return None
        seconds = ((self.ended_at or now or datetime.now(UTC)) - self.started_at).total_seconds()
        earlier = self.earlier_s if self.spec.continues else 0.0
        return max(seconds, 0.0) + earlier  # the clock may have been set back meanwhile

    def seconds_left(self, now: datetime | None = None) -> float | None:
        """Return the seconds left by the task's estimate, else at the pace so far.

        They are counted down since the last progress. None before the first progress and after the end; also after
        one unit of more than ten, because the first unit is often the slowest.
        """
        elapsed = self.seconds(self.progressed_at or now)
        if self.state.ended or elapsed is None or not self.total or not self.done:
            return None
        if self.done == 1 and self.total > 10:
            return None
        at_progress = self.estimated_s_left
        if at_progress is None:
            at_progress = elapsed / self.done * (self.total - self.done)
        now = now or datetime.now(UTC)
        return max(at_progress - (now - (self.progressed_at or now)).total_seconds(), 0.0)


@dataclass(frozen=True)
class Attempt:
    """One execution of a run by a worker."""

    token: int
    """Fencing token: a later attempt has a greater one, and only the latest attempt may write."""
    run_id: int
    number: int
    """1 for a run's first attempt."""
    host: str
    created_at: float
    begun_at: float | None
    heartbeat_at: float
    stop_at: float | None
    cancel_requested: bool


@dataclass(frozen=True)
class Exit:
    """The end of an attempt's process."""

    code: int | None = None
    """Exit code; negative: the number of the signal that killed it; None: nobody saw its end."""
    out_of_memory: bool = False
    """True if the kernel killed a process for lack of memory during the attempt."""
    note: str = ""
    host_lost: bool = False
    """True if the whole host ended, which is no fault of the run and uses up no try."""


class StoredArtifact(Artifact):
    """An artifact with the size and hash that prove it complete."""

    size: int
    """Size in bytes."""
    sha256: str
