"""How a scheduler sleeps: until somebody has something for it, or for a while.

A named pipe below `runs_dir`. Where there are none (Windows) the scheduler looks at short intervals instead.
"""

import os
import select
import time
from pathlib import Path
from types import TracebackType
from typing import Self

NAME = "scheduler.pipe"


def nudge(runs_dir: Path) -> None:
    """Wake the scheduler; without one nothing happens."""
    if not hasattr(os, "mkfifo"):
        return
    try:
        pipe = os.open(runs_dir / NAME, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return  # nobody listens
    try:
        os.write(pipe, b"!")
    except OSError:
        pass  # full of nudges already, or its reader has just left
    finally:
        os.close(pipe)


class Wake:
    """The scheduler's end."""

    def __init__(self, runs_dir: Path) -> None:
        self._pipe: int | None = None
        if hasattr(os, "mkfifo"):
            try:
                os.mkfifo(runs_dir / NAME)
            except FileExistsError:
                pass
            # read-write: with a writer of its own it never sees an end of file
            self._pipe = os.open(runs_dir / NAME, os.O_RDWR | os.O_NONBLOCK)

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
