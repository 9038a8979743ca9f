"""Who a process is, whether it still is, and how it is ended. A pid alone says nothing: it may be another's by now."""

import json
import os
import platform
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import psutil

LINUX = platform.system() == "Linux"


@dataclass(frozen=True)
class Identity:
    """A process, by its pid and the moment it started."""

    pid: int
    started: float
    """Clock ticks since boot on Linux, where the wall clock may be set meanwhile; seconds since the epoch elsewhere."""

    @classmethod
    def mine(cls) -> Self:
        """Return the identity of the calling process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the identity of a process, also of a zombie. Errors: ProcessLookupError."""
        if (found := _look(pid)) is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, found[0])

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse what `str` wrote."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    def alive(self) -> bool:
        """A zombie is not."""
        return _started(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Signal this process and no other that got its pid."""
        if self.alive():
            _quietly(os.kill, self.pid, number)

    def send_group(self, number: signal.Signals) -> None:
        """Signal the process group it leads, or led: its children live on in it."""
        if _started(self.pid) in (None, self.started):  # a pid is not given again while it names a group
            _quietly(os.killpg, self.pid, number)


@dataclass(frozen=True)
class Processes:
    """The processes of one attempt, as `process.json` holds them."""

    supervisor: Identity
    worker: Identity
    group: bool
    """Whether the worker leads a process group of its own; one in somebody's terminal does not."""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the processes on record, None while there is no record. Errors: ValueError of any other content."""
        record = read_json(path)
        if record is None:
            return None
        try:
            return cls(Identity(**record["supervisor"]), Identity(**record["worker"]), record["group"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path.name} does not hold the processes of an attempt: {error!r}") from error

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        write_json(path, asdict(self))

    def signal_worker(self, number: signal.Signals) -> None:
        """Signal the worker and its children, where they can be told from other processes."""
        if self.group:
            self.worker.send_group(number)
        else:
            self.worker.send(number)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the record in a file, None where there is no such file or its writing was cut off.

    Errors: OSError of what is no file; ValueError of other content.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            record = json.loads(file.read())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    if not isinstance(record, dict):
        raise ValueError(f"{path.name} does not hold a record but {str(record)[:40]!r}")
    return record


def _without_waiting(path: str, flags: int) -> int:
    """Open as `open` does, but never wait for a writer where somebody has put a named pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all: under a temporary name, then renamed."""
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _quietly(send: Any, pid: int, number: signal.Signals) -> None:
    try:
        send(pid, number)
    except ProcessLookupError:
        pass  # it has just ended


def _started(pid: int) -> float | None:
    """Return when a process started; None for one that has ended, a zombie included."""
    found = _look(pid)
    return None if found is None or found[1] else found[0]


def _look(pid: int) -> tuple[float, bool] | None:
    """When a process started, and whether it is a zombie."""
    if LINUX:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(b")")[2].split()  # the name before it may hold anything
        return float(fields[19]), fields[0] in (b"Z", b"X")
    try:
        process = psutil.Process(pid)
        return process.create_time(), process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
