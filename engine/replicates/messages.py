"""Messages between a timing and its fresh processes: one job in, reports out, as JSON lines."""

import tempfile
from typing import Any

from pydantic import Field

from engine.measure.plan import Timed
from engine.results import Contention, Status
from engine.results.benchmark import AccuracyStatus
from engine.specs import BenchmarkSpec, RecurrentSpec, error_message
from engine.specs.base import Closed

TimedSpec = BenchmarkSpec | RecurrentSpec
"""Requests that are timed in fresh processes."""
LONGEST_ERROR = 2000
NEEDED_TO_COMPILE = {
    "Python.h: No such file": "Python's headers: install python3-dev, on Fedora python3-devel",
    "No working C++ compiler": "a C++ compiler: install g++, or set CXX to another one",
    "Failed to find C compiler": "a C compiler: install gcc, or set CC to another one",
}
"""Remedies for what torch.compile lacks, by a part of its error."""


class Measured(Closed):
    """Result of one subject in one process."""

    label: str
    status: Status = "ok"
    error: str = ""
    row: dict[str, Any] = Field(default_factory=dict)
    """Fields of the row that are not combined over processes."""
    timed: Timed = Timed()
    """Without samples if the subject was not timed."""
    back_to_back: Timed | None = None
    """Samples of calls that are queued without waiting for each other; None on a CPU."""
    first_call_ms: float | None = None
    compile_ms: float | None = None
    """Capture, compilation and first call; None for eager."""
    compile_again_ms: float | None = None
    """The same for a second compilation, with the caches that the first has filled."""
    loading_s: float = 0
    """Seconds to load the compiler, for the first subject that uses it."""
    contention: Contention | None = None
    neighbours: dict[str, float] = Field(default_factory=dict)
    """Share of the CPUs used by the busiest other processes, by name."""
    foreign: tuple[str, ...] = ()
    """Descriptions of other processes on the GPU."""
    throttled: str = ""
    """Reason why the GPU was throttled; empty if it was not."""
    device_peak_mb: float | None = None
    process_peak_mb: float | None = None
    joules_per_call: float | None = None
    accuracy: AccuracyStatus | None = None
    notes: tuple[str, ...] = ()


class Job(Closed):
    """One process's work: all subjects except those that have failed before. Subclasses define the subjects."""

    spec: TimedSpec
    """Its kind names the module that does the work: `engine.replicates.<kind>.work`."""
    process: int = 0
    """Number of the process, from 0."""
    skip: tuple[str, ...] = ()
    """Labels to leave out."""
    decays: bool = False
    """True if a smaller job is tried when the baseline runs out of memory, so that this one need not go on."""
    parent: int
    """Id of the process that started this one. This one ends with it."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Return the labels of the subjects timed side by side, the baseline first."""
        raise NotImplementedError

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels of the subjects that are left to time."""
        return tuple(label for label in self.all_labels if label not in self.skip)

    @property
    def title(self) -> str:
        """Return a short description to show as progress, such as `timm:resnet50: inference, batch 8`."""
        raise NotImplementedError

    def failed(self, label: str, status: Status, error: str) -> Measured:
        """Return the result of a label whose process died before it could report."""
        return Measured(label=label, status=status, error=error)


class Report(Closed):
    """One line of a process: its progress or a result."""

    doing: str = ""
    """Progress to show, such as `compile: first call`."""
    label: str = ""
    """The subject of this report; empty for all of them."""
    measured: Measured | None = None
    warmup_s: float = 0
    """Seconds spent on warming up, reported once."""
    sampled_s: float = 0
    trying: int | None = None
    """When finding the largest batch: the size to be tried next, then the size as `fits` or `fails`."""
    fits: int | None = None
    fails: int | None = None


def error_text(error: BaseException) -> str:
    """Return the message of an error, shortened to LONGEST_ERROR characters, with the remedy if a compiler failed."""
    text, folder = error_message(error).strip(), tempfile.gettempdir()
    needed = next((needed for sign, needed in NEEDED_TO_COMPILE.items() if sign in text), "")
    if not needed and "C++ compile error" in text and " " in folder:
        needed = f"a temporary folder without blanks, unlike {folder!r}: set TMPDIR"
    if needed:
        text = f"torch.compile needs {needed}. {text}"
    return text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + " ..."
