"""Identify, check and signal processes. A pid alone is not enough: another process may have it by now."""

import json
import os
import platform
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from engine import atomic
from engine.process import signal_group
from engine.roots import READ

LINUX = platform.system() == "Linux"


@dataclass(frozen=True)
class Identity:
    """A process, identified by its pid and start time."""

    pid: int
    started: float
    """Clock ticks since boot on Linux, where the wall clock may change; elsewhere seconds since the epoch."""

    @classmethod
    def mine(cls) -> Self:
        """Return the identity of the calling process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the identity of a process, zombies included. Errors: ProcessLookupError when it does not exist."""
        if (status := _status(pid)) is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, status[0])

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse the text that `str` returned for an identity."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    def alive(self) -> bool:
        """Return whether the process runs; False for a zombie."""
        return _start_time(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process, never to another one with the same pid."""
        if self.alive():
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def send_group(self, number: signal.Signals) -> None:
        """Signal the process group that this process leads, or led before it ended: its children may live on."""
        if _start_time(self.pid) in (None, self.started):  # the system does not reuse a pid while a group has it
            signal_group(self.pid, number)


@dataclass(frozen=True)
class Processes:
    """The processes of one attempt, as stored in `process.json`."""

    supervisor: Identity
    worker: Identity
    group: bool
    """True if the worker leads its own process group; a worker in a user's terminal does not."""
    folder: str = ""
    """`RunFiles.folder_id` of the run's folder; empty in records of earlier versions."""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the recorded processes; None without a record. Errors: ValueError when the file has other content."""
        record = read_json(path)
        if record is None:
            return None
        try:
            processes = Identity(**record["supervisor"]), Identity(**record["worker"])
            return cls(*processes, group=record["group"], folder=record.get("folder", ""))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path.name} does not hold the processes of an attempt: {error!r}") from error

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        write_json(path, asdict(self))

    def signal_worker(self, number: signal.Signals) -> None:
        """Signal the worker, and its children if it leads its own process group."""
        if self.group:
            self.worker.send_group(number)
        else:
            self.worker.send(number)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the record in a file; None when the file is missing or was written only in part.

    Errors: OSError when the path is not a file; ValueError when the file does not hold a record.
    """
    try:
        with open(path, "rb", opener=lambda path, _: os.open(path, READ)) as file:  # READ does not wait for pipes
            record = json.loads(file.read())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    if not isinstance(record, dict):
        raise ValueError(f"{path.name} does not hold a record but {str(record)[:40]!r}")
    return record


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a record atomically."""
    atomic.write(path, json.dumps(record))


def _start_time(pid: int) -> float | None:
    """Return the start time of a process; None for one that has ended, zombies included."""
    status = _status(pid)
    return None if status is None or status[1] else status[0]


def _status(pid: int) -> tuple[float, bool] | None:
    """Return the start time of a process and whether it is a zombie; None when it does not exist."""
    if LINUX:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # PermissionError: another user's, hidepid=1
            return None
        fields = stat.rpartition(b")")[2].split()  # the process name before it may contain any character
        return float(fields[19]), fields[0] in (b"Z", b"X")
    try:
        process = psutil.Process(pid)
        # monotonic: psutil adds changes of the system clock since its import, so that processes would not agree
        return process._proc.create_time(monotonic=True), process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
