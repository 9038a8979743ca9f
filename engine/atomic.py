"""Write files atomically: write under another name, sync, rename."""

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk or a quota that is full, and of a file at the limit of its size."""


def why_failed(error: OSError) -> str:
    """Return the reason of an error in words, without its number and file."""
    return "the disk is full" if error.errno in DISK_FULL else error.strerror or str(error)


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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes and threads that ask for the lock of this folder waiting."""
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
    """Create a file, or replace it and keep its mode. A reader sees the old content or the new one. Errors: OSError."""
    with temporary(path) as hidden:
        with hidden.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            sync(file)
        with suppress(FileNotFoundError):
            shutil.copymode(path, hidden)
        rename(hidden, path)


def export(path: Path, content: str | bytes) -> None:
    """Write a file that the user named. If that fails, an existing file keeps its content.

    A link, a pipe or a device is written directly, because a new file would replace it.
    Errors: OSError, with a message that names the file.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        else:
            write(path, content)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {why_failed(error)}") from error
