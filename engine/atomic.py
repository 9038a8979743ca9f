"""Write files atomically: write under another name, sync, rename."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO


class Hashed:
    """A file that keeps the hash and size of its content, and the error of a failed write, which torch hides."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256, self.size = file, sha256(), 0
        self.error: OSError | None = None

    def write(self, data: memoryview) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Yield a hidden path to write to. No other process or thread uses it, and it is removed afterwards."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")
    try:
        yield hidden
    finally:
        hidden.unlink(missing_ok=True)


def leftovers(folder: Path) -> Iterator[Path]:
    """Yield the temporary files that interrupted writes have left in a folder."""
    yield from folder.glob(".*.tmp")


def sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def rename(path: Path, target: Path) -> None:
    """Rename a file and sync its folder, so that the new name is on the disk before later writes. Errors: OSError."""
    path.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write(path: Path, content: str | bytes) -> None:
    """Create or replace a file atomically: a reader sees the old content or the new one. Errors: OSError."""
    with temporary(path) as hidden:
        with hidden.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            sync(file)
        rename(hidden, path)
