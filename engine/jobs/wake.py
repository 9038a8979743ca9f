"""Let the scheduler sleep until another process wakes it through a named pipe below `runs_dir`, or until a timeout.

Containers that share a runs folder on one machine share its pipe. A wake-up then reaches one of their schedulers, and
the others find what has changed after the timeout, a second later at most.
"""

import logging
import os
import select
import stat
import time
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

NAME = "scheduler.pipe"


def nudge(runs_dir: Path) -> None:
    """Wake the scheduler. Does nothing when none listens."""
    with suppress(OSError):  # none listens, or the pipe is full of wake-ups already
        pipe = os.open(runs_dir / NAME, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.write(pipe, b"!")
        finally:
            os.close(pipe)


def _open_pipe(path: Path) -> int:
    """Open the pipe, created if needed, for reads that never wait. A file of another type at its path is renamed."""
    if os.path.lexists(path) and not stat.S_ISFIFO(path.lstat().st_mode):
        aside = path.with_name(f"{path.name}.before-{time.time_ns()}")
        path.rename(aside)
        log.warning("%s was not a named pipe and has been renamed to %s", path, aside.name)
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    # read-write: a pipe with its own writer never reports end of file
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)


class Wake:
    """The scheduler's end of the pipe."""

    def __init__(self, runs_dir: Path) -> None:
        self._pipe = _open_pipe(runs_dir / NAME)

    def wait(self, seconds: float) -> bool:
        """Return True after a wake-up, or False after the given seconds."""
        if select.select([self._pipe], [], [], seconds)[0]:
            with suppress(BlockingIOError):  # a scheduler that is being replaced may have read it first
                return bool(os.read(self._pipe, 65536))
            return True
        return False

    def close(self) -> None:
        """Close the pipe. It stays in its folder for the next scheduler."""
        os.close(self._pipe)
