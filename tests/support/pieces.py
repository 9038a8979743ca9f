"""Work for processes of their own, in a module that imports nothing heavy."""

import os
import signal
from pathlib import Path


def square(folder: Path, number: int) -> int:
    """Die at 3 in the first process that comes to it, and at 5 in every process."""
    if number == 5 or (number == 3 and not (folder / "seen").exists()):
        (folder / "seen").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2
