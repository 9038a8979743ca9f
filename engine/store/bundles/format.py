"""The members of a run bundle, and the limits of each.

manifest.json       format, version, size and SHA-256 of every other member
run.json            the request, its outcome and the host
rows.jsonl          one result per line
metrics.jsonl       one point of a curve per line
artifacts.json      kind of every file below artifacts/
log.txt             the run's log; of one above 20 MB, its end
artifacts/...       files of the run up to 50 MB: the best checkpoint, the latest one, then the smallest others; and the
                    manifest of each checkpoint
"""

import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Annotated, Any, BinaryIO

from pydantic import AfterValidator, BaseModel, Field, FiniteFloat

from engine import archives
from engine.results import Environment, Metric
from engine.specs import Refused
from engine.store.files import is_own_file
from engine.store.model import LONGEST_NOTES, MOST_TAGS, Cause, State, tag
from engine.store.records import LONGEST_TEXT

FORMAT, VERSION = "model-vitals-run", 1
ROWS, METRICS = "rows.jsonl", "metrics.jsonl"
MEMBERS = ("manifest.json", "run.json", ROWS, METRICS, "artifacts.json", "log.txt")
"""The members that every bundle has."""
MOST_LINES = {ROWS: 100_000, METRICS: 10_000_000}
"""A training of a million steps that logs nine values at each of them has 9,000,000 metrics of 600 MB."""
MOST_BYTES = {ROWS: 100_000_000, METRICS: 1_000_000_000}
FILE_BYTES, TEXT_BYTES = 50_000_000, 20_000_000
"""At most this many bytes for each file of the run, and for every other member."""
HELD_BYTES = 500_000_000
"""At most this many bytes for all members but the metrics, because an import holds them in memory."""
LIMITS = archives.Limits(files=10_000, total_bytes=HELD_BYTES + MOST_BYTES[METRICS], file_bytes=MOST_BYTES[METRICS])
LONGEST_PATH = 300
"""Characters of a file name, as many as its column takes."""
LARGEST_INTEGER = 10**18
"""Below the largest 64-bit integer, also after a conversion to float and back."""
MAYBE_ZERO = ("std_ms", "loop_ms")
"""Ends of the names of times that may be 0."""
LIBRARY = re.compile(r"[\w-]{1,40}")
"""Allowed names of a row's library, which become part of file names."""


def is_plain(name: str) -> bool:
    """Return whether a file name stays below its folder on any operating system."""
    parts = PurePosixPath(name).parts
    return (
        0 < len(name) <= LONGEST_PATH
        and name.isprintable()
        and not set(name) & set('\\:*?"<>|')
        and not name.startswith("/")
        and name == "/".join(parts)
        and not {"..", "."} & set(parts)
    )


def _check_file(name: str) -> str:
    if not is_plain(name):
        raise ValueError("not the name of a file below the run's folder")
    if is_own_file(name):
        raise ValueError(f"{name} is the name of a file that the run itself keeps, not of an artifact")
    return name


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("control characters are not allowed")
    return text


def _check_environment(environment: Environment) -> Environment:
    if (size := len(environment.model_dump_json())) > LONGEST_TEXT:
        raise ValueError(f"at most {LONGEST_TEXT:,} characters are allowed, and there are {size:,}")
    return environment


Moment = Annotated[float, Field(ge=0, le=4e9, allow_inf_nan=False)]
"""Seconds since the epoch. The limit keeps times displayable as dates."""
Count = Annotated[int, Field(ge=0, lt=2**31)]
"""A number that fits an integer column."""
LongText = Annotated[str, Field(max_length=LONGEST_TEXT)]
"""An error or a note. The store cuts the texts of its own runs to the same length."""
Label = Annotated[str, Field(min_length=1), AfterValidator(_check_printable)]
"""A text in one line, which is not empty."""


class RunRecord(BaseModel, extra="forbid"):
    """The content of `run.json`: a run that has ended. `run_values` limits its name, as for every run of the store."""

    kind: Annotated[Label, Field(max_length=40)]
    name: str
    spec: dict[str, Any]
    state: State
    cause: Cause | None
    error: LongText
    created_at: Moment
    started_at: Moment | None
    ended_at: Moment
    done: Count
    total: Count | None
    note: LongText
    environment: Annotated[Environment, AfterValidator(_check_environment)] | None
    notes: Annotated[str, Field(max_length=LONGEST_NOTES)] = ""
    tags: Annotated[tuple[Annotated[str, AfterValidator(tag)], ...], Field(max_length=MOST_TAGS)] = ()
    """Notes and tags are omitted when empty, as in bundles of older versions."""

    def model_post_init(self, _context: Any) -> None:
        if not self.state.ended:
            raise ValueError(f"the run is {self.state}; only a run that has ended can be imported")
        if (self.cause is not None) != (self.state is State.FAILED):
            cause = self.cause or "no cause"
            raise ValueError(
                f"the run is {self.state} with {cause}; a failed run has a cause, and no other run has one"
            )
        if self.total is not None and self.done > self.total:
            raise ValueError(f"done is {self.done}, which is more than the total of {self.total}")
        if self.state is State.FINISHED and self.started_at is None:
            raise ValueError("the run is finished without started_at")
        started_at = self.created_at if self.started_at is None else self.started_at
        if not self.created_at <= started_at <= self.ended_at:
            raise ValueError("created_at, started_at and ended_at are not in this order")


class BundledMetric(Metric):
    """One line of `metrics.jsonl`: a metric that fits its table."""

    step: Count
    name: Annotated[Label, Field(max_length=100)]
    value: FiniteFloat


class Listed(BaseModel):
    """One entry of `artifacts.json`: a file below the run's folder."""

    name: Annotated[str, AfterValidator(_check_file)]
    kind: Annotated[Label, Field(max_length=40)]


class Member(BaseModel):
    """One entry of the manifest."""

    size: int
    sha256: str


class Manifest(BaseModel):
    """The content of `manifest.json`."""

    format: Annotated[str, Field(max_length=100)]
    version: int
    files: dict[str, Member]


def check_numbers(value: Any, name: str = "") -> None:
    """Check the numbers in a row, with all that it contains. name: the field. Errors: ValueError.

    An integer above LARGEST_INTEGER fits no column of a table. A time of zero or less has no ratio to others, and a
    timing is compared with runs of other users too.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            check_numbers(item, key)
    elif isinstance(value, list):
        for item in value:
            check_numbers(item, name)
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise ValueError(f"a row's {name} is an integer above {LARGEST_INTEGER:,}")
    elif isinstance(value, int | float) and name.endswith("_ms") and value <= 0 and not name.endswith(MAYBE_ZERO):
        raise ValueError(f"a row's {name} is {value}, and a time is above 0")


def limited(name: str, lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a member. Errors: Refused when there are more than its limits."""
    size = 0
    for count, line in enumerate(lines, start=1):
        size += len(line)
        if count > MOST_LINES[name] or size > MOST_BYTES[name]:
            raise Refused(
                f"{name} is too long: at most {MOST_LINES[name]:,} lines of {MOST_BYTES[name]:,} bytes are taken"
            )
        yield line


def measure(pieces: Iterable[bytes], take: Callable[[bytes], object] = lambda piece: None) -> Member:
    """Pass each piece of a member to `take`, and return size and hash of all of them."""
    hashed, size = sha256(), 0
    for piece in pieces:
        take(piece)
        hashed.update(piece)
        size += len(piece)
    return Member(size=size, sha256=hashed.hexdigest())


def check_members(file: BinaryIO, packed_size: int) -> None:
    """Check everything that is visible without unpacking a bundle.

    Errors: ValueError when one of MEMBERS is missing; Refused when a member is not allowed; archives.DAMAGED.
    """
    listed = list(archives.entries(file, "zip", packed_size, LIMITS))
    names = {entry.name for entry in listed}
    if missing := [name for name in MEMBERS if name not in names]:
        raise ValueError(f"it has no {missing[0]}")
    for entry in listed:
        if not is_plain(entry.name):
            raise Refused(f"the bundle holds {entry.name[:100]!r}, which is not a plain file of a run")
        most = MOST_BYTES.get(entry.name, FILE_BYTES if "/" in entry.name else TEXT_BYTES)
        if entry.size > most:
            raise Refused(f"{entry.name} has {entry.size:,} bytes, at most {most:,} are taken")
    if (held := sum(entry.size for entry in listed if entry.name != METRICS)) > HELD_BYTES:
        raise Refused(f"the bundle holds {held:,} bytes besides its metrics, at most {HELD_BYTES:,} are taken")
    if len(names) < len(listed):
        raise Refused("the bundle holds two files of one name")
