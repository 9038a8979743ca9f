"""Work for worker processes in tests. Imports nothing heavy."""

import os
import signal
from pathlib import Path


def square(folder: Path, number: int) -> int:
    """Return the square of a number. The process is killed at every 5, and at 3 if none was killed before."""
    if number == 5 or (number == 3 and not (folder / "seen").exists()):
        (folder / "seen").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2
