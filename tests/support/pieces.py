"""Work for worker processes in tests, without slow imports."""

import os
import signal
from pathlib import Path


def square(folder: Path, number: int) -> int:
    """Return the square of a number. 5 always kills the process; 3 kills it if no process was killed before."""
    if number == 5 or (number == 3 and not (folder / "seen").exists()):
        (folder / "seen").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2
