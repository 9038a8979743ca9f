"""Copies of packed data as plain tars, so that any image can be read at its place, and indexes of tars; made once."""

import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import IO

from engine import atomic
from engine.datasets.base import DataProblem
from engine.roots import Entry, Roots, files_within, open_within, stat_within
from engine.settings import Settings

CODECS = {".tar.gz": "gzip", ".tgz": "gzip", ".tar.zst": "zstd", ".tar.bz2": "bz2"}
TARS = (".tar", *CODECS)
PLAIN, INDEX = ".tar", ".index-1.json"
"""Endings of a plain copy and of an index. The number changes with what an index holds, and with the rules of
`members`."""
SPARE_BYTES = 1_000_000_000
"""Bytes that must stay free on the disk."""
CHUNK = 1 << 24
"""Bytes to decompress at a time."""
UNUSED_S = 30 * 86_400
"""Keep copies and indexes for 30 days after they were last opened. A run opens them when it starts."""


def is_tar(name: str) -> bool:
    """Return whether a file name has the ending of a tar, plain or compressed."""
    return name.lower().endswith(TARS)


def plain_tar(path: Path, roots: Roots) -> Path:
    """Return a tar itself, or the plain copy of a compressed one. Errors: DataProblem if it is damaged."""
    codec = next((codec for ending, codec in CODECS.items() if path.name.lower().endswith(ending)), "")
    return copy_of(path, roots, lambda packed, copy: _decompress(packed, copy, codec)) if codec else path


def write_tar(files: Iterable[tuple[str, bytes]], copy: IO[bytes]) -> None:
    """Write files, given as (name, content), as a tar. Errors: DataProblem if the disk is nearly full."""
    folder = _folder()
    with tarfile.open(fileobj=copy, mode="w") as archive:
        for name, content in files:
            check_room(folder, len(content))
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, BytesIO(content))


def copy_of(path: Path, roots: Roots, write: Callable[[IO[bytes], IO[bytes]], object], ending: str = PLAIN) -> Path:
    """Return the plain copy of a packed file. `write(file, copy)` makes it, unless a copy of the unchanged file exists.

    ending: of the copy's name; INDEX for the index of a tar. Copies are in `unpacked` in the runs folder and may be
    deleted while no run uses them. Errors: DataProblem.
    """
    if (status := stat_within(path, roots)) is None:
        raise DataProblem(f"there is no {path}")
    copy = _copy_path(path, status, ending)
    if copy.is_file():
        os.utime(copy)  # the time of its last use
        return copy
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if ending == PLAIN:  # it needs room
        delete_unused()
    try:
        with open_within(path, roots) as packed, atomic.temporary(copy) as hidden:
            with hidden.open("wb") as file:
                write(packed, file)
            hidden.replace(copy)
    except OSError as error:
        raise DataProblem(f"{path} cannot be unpacked, or is damaged: {error}") from error
    return copy


def delete_unused() -> None:
    """Delete the copies and indexes that were not opened for UNUSED_S, and what killed processes have left."""
    with suppress(OSError):  # there is no folder, or it is read-only
        for entry in files_within(_folder(), None):
            if entry.status.st_mtime < time.time() - UNUSED_S:
                entry.path.unlink(missing_ok=True)


def forget_copy(entry: Entry) -> None:
    """Delete the copy of a packed file and the index of a tar, if there are any."""
    for ending in (PLAIN, INDEX):
        _copy_path(entry.path, entry.status, ending).unlink(missing_ok=True)


def _copy_path(path: Path, status: os.stat_result, ending: str) -> Path:
    """Return the path of the copy, which differs for each file, time of change and size."""
    key = sha256(f"{os.path.realpath(path)} {status.st_mtime_ns} {status.st_size}".encode()).hexdigest()[:24]
    return _folder() / f"{path.name.partition('.')[0][:60]}-{key}{ending}"


def _decompress(packed: IO[bytes], copy: IO[bytes], codec: str) -> None:
    import pyarrow  # takes 0.1 s, so only packed data import it

    with pyarrow.CompressedInputStream(packed, codec) as stream:
        folder = _folder()
        while chunk := stream.read(CHUNK):
            check_room(folder, len(chunk))
            copy.write(chunk)


def check_room(folder: Path, needed: int) -> None:
    """Check that a disk keeps SPARE_BYTES free after `needed` bytes are written. Errors: DataProblem."""
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise DataProblem(
            f"{folder} has {free:,} bytes free, {needed:,} are to be written, and {SPARE_BYTES:,} must stay free: "
            "make room"
        )


def _folder() -> Path:
    return Settings().runs_dir / "unpacked"
