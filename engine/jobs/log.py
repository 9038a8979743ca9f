"""A log of bounded size that never stops its writer, and failures that are logged once however often they recur."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import BinaryIO, Self

from engine.store import Unavailable
from engine.store.files import RunFiles

REPEAT_S = 600.0
"""Seconds after which a cause is logged again: a log of a day has it 144 times, not 86,400 times."""


class BoundedLog:
    """Keeps the newest bytes: at half the limit the log becomes the older log, in place of the one before."""

    def __init__(self, files: RunFiles, limit_bytes: int) -> None:
        self._files = files
        self._half = max(limit_bytes // 2, 1)
        self._file: BinaryIO = files.log.open("ab", buffering=0)  # what was written is there even after SIGKILL
        self._size = files.log.stat().st_size

    def write(self, data: bytes) -> None:
        """Append; what the disk does not take is dropped, for a worker blocked on its own output would be worse."""
        try:
            while data:
                if self._size >= self._half:
                    self._turn()
                piece = data[: self._half - self._size]
                written = self._file.write(piece) or 0
                self._size += written
                data = data[len(piece) :]
        except OSError:
            pass

    def _turn(self) -> None:
        self._file.close()
        self._files.log.replace(self._files.older_log)
        self._file = self._files.log.open("ab", buffering=0)
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


class FailureLog:
    """Lets a loop go on after failures, and logs each cause at most once in REPEAT_S."""

    def __init__(self, log: logging.Logger, work: str) -> None:
        self._log = log
        self._work = work
        """What the loop does, to begin each line with."""
        self._logged: dict[str, float] = {}
        """By cause: when it was last logged, by the monotonic clock."""

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Catch and log any failure. One of the store needs no trace: its message names the cause and the remedy."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  the loop looks after more than what failed
            cause, now = f"{type(error).__name__}: {error}", time.monotonic()
            self._logged = {known: at for known, at in self._logged.items() if now - at < REPEAT_S}
            if cause not in self._logged:
                self._logged[cause] = now
                trace = None if isinstance(error, Unavailable) else error
                self._log.error("%s failed: %s", self._work, error, exc_info=trace)
