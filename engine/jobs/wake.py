"""The scheduler's sleep: until another process wakes it, or for a while.

Others wake it through a named pipe below `runs_dir`. Windows has none, so the scheduler wakes
at short intervals there.
"""

import logging
import os
import select
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Self

log = logging.getLogger(__name__)

NAME = "scheduler.pipe"


def nudge(runs_dir: Path) -> None:
    """Wake the scheduler. Does nothing when none listens."""
    if not hasattr(os, "mkfifo"):
        return
    try:
        pipe = os.open(runs_dir / NAME, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return  # nobody listens
    try:
        if stat.S_ISFIFO(os.fstat(pipe).st_mode):
            os.write(pipe, b"!")
    except OSError:
        pass  # full of nudges already, or its reader has just left
    finally:
        os.close(pipe)


def _open_pipe(path: Path) -> int:
    """Open the pipe, made if need be. A file of another type in its place is moved aside: reading it never waits."""
    if os.path.lexists(path) and not stat.S_ISFIFO(path.lstat().st_mode):
        aside = path.with_name(f"{path.name}.before-{time.time_ns()}")
        path.rename(aside)
        log.warning("%s was not a named pipe and has been renamed to %s", path, aside.name)
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        pass
    # read-write: with a writer of its own it never sees an end of file
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)


class Wake:
    """The scheduler's end."""

    def __init__(self, runs_dir: Path) -> None:
        self._pipe = _open_pipe(runs_dir / NAME) if hasattr(os, "mkfifo") else None

    def wait(self, seconds: float) -> None:
        """Return after a nudge, or when the time is over."""
        if self._pipe is None:
            time.sleep(seconds)
        elif select.select([self._pipe], [], [], seconds)[0]:
            os.read(self._pipe, 65536)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
