"""Work for worker processes in tests, without slow imports."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any


def square(folder: Path, number: int) -> int:
    """Return the square of a number. 5 always kills the process; 3 kills it if no process was killed before."""
    if number == 5 or (number == 3 and not (folder / "seen").exists()):
        (folder / "seen").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


def wait_long(folder: Path, number: int) -> None:
    """Write a file named after the number, and wait for an hour."""
    (folder / str(number)).touch()
    time.sleep(3600)


def spread_here(work: Callable[[Any], Any], pieces: Sequence[Any], processes: int) -> Iterator[tuple[int, Any] | None]:
    """Do what `engine.tasks.shards.spread` does, in this process."""
    for place, piece in enumerate(pieces):
        yield None
        yield place, work(piece)
