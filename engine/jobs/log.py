"""A log of bounded size that never stops its writer, why a run has no log, and failures that are not logged again."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from engine.store import Run, State, Unavailable
from engine.store.files import RunFiles

REPEAT_S = 600.0
"""Log the same failure again after this many seconds: 144 times a day, not once a second (86,400 times)."""


def why_no_log(run: Run, files: RunFiles) -> str:
    """Return why a run's log has no lines, in words that continue `run 7`."""
    if run.state is State.QUEUED:
        return "has no log yet: it is queued"
    if files.log.exists():
        return "has an empty log"
    if run.started_at is None:
        return "has no log: it never started" if run.state.ended else "has no log yet: it is starting"
    return "has no log here: it ran in a terminal, or on a host with another runs folder"


class BoundedLog:
    """Keeps the newest bytes: a log that reaches half the limit becomes the older log and replaces the previous one."""

    def __init__(self, files: RunFiles, limit_bytes: int) -> None:
        self._files = files
        self._half = max(limit_bytes // 2, 1)
        self._open()

    def _open(self) -> None:
        self._file: BinaryIO = self._files.log.open("ab", buffering=0)  # unbuffered, so that bytes survive SIGKILL
        self._opened = os.fstat(self._file.fileno())
        self._size = self._opened.st_size

    def write(self, data: bytes) -> None:
        """Append data. Bytes that the disk cannot take are dropped: to block the worker would be worse."""
        with suppress(OSError):
            if not (self._files.log.exists() and os.path.samestat(self._files.log.stat(), self._opened)):
                self.close()
                self._open()  # it was deleted, or replaced by an earlier attempt's log that the worker has fetched
            while data:
                if self._size >= self._half:
                    self._rotate()
                piece = data[: self._half - self._size]
                if not (written := self._file.write(piece)):
                    return  # the disk takes no more
                self._size += written
                data = data[written:]

    def _rotate(self) -> None:
        self._file.close()
        self._files.log.replace(self._files.older_log)
        self._open()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class FailureLog:
    """Lets a loop go on after failures, and logs each cause at most once in REPEAT_S."""

    def __init__(self, log: logging.Logger, work: str) -> None:
        self._log = log
        self._work = work
        """The loop's work, which begins each log line."""
        self._logged: dict[str, float] = {}
        """The monotonic time at which each cause was last logged, by cause."""

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Catch and log any failure. Unavailable is logged without traceback: its message names cause and remedy."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  one failure must not end the loop
            cause, now = f"{type(error).__name__}: {error}", time.monotonic()
            self._logged = {logged: at for logged, at in self._logged.items() if now - at < REPEAT_S}
            if cause not in self._logged:
                self._logged[cause] = now
                trace = None if isinstance(error, Unavailable) else error
                self._log.error("%s failed: %s", self._work, error, exc_info=trace)
