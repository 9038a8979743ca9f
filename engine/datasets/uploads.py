"""Unpack uploads: a CSV, Parquet or JSON of captions, or a zip or tar of images, all checked before any is written."""

import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from io import SEEK_END
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from engine import archives
from engine.archives import DAMAGED, BadArchive, Format, Limits
from engine.datasets import images
from engine.datasets.base import DataProblem, Unreadable
from engine.datasets.formats.members import visible
from engine.datasets.formats.unpacked import check_room, forget_copy
from engine.datasets.kinds import TABLES, TEXTS, recognise
from engine.roots import Roots, file_within, files_within, scan_within, stat_within
from engine.specs.fields.clip import DataKind, split_sources
from engine.words import plural, shortened

MOST_PACKED = 1_000_000_000
"""Maximum bytes of an upload."""
ABANDONED_S = 86_400
"""Age of a temporary folder that no process uses any more: an upload is unpacked within minutes."""
LIMITS = Limits(files=100_000, total_bytes=2_000_000_000, file_bytes=50_000_000)
OWNER = ".owner"
"""File in an upload's folder with the e-mail of its owner, if it has one. Hidden files count as no data."""
FORMATS: dict[str, Format] = {
    **{".zip": "zip", ".tar": "tar", ".tgz": "gzip", ".tar.gz": "gzip"},
    **{".csv": "", ".tsv": "", ".json": "", ".parquet": "parquet"},
}
"""Format that a file with this ending must have, recognised by its first bytes."""


def unpack(upload: BinaryIO, name: str, to: Path, owner: str = "") -> tuple[Path, DataKind]:
    """Unpack an upload called `name` into the new folder `to`. Return the path of its data and their kind.

    owner: e-mail of the user who uploads; empty without sign-in.
    Only images, texts and tables are taken from an archive. Errors: DataProblem if the upload is not what its name
    says, is too large, or contains a path outside its folder; then no folder is made.
    """
    shown_name = name[:200]
    ending = next((ending for ending in FORMATS if name.lower().endswith(ending)), None)
    packed_bytes = upload.seek(0, SEEK_END)
    kind = archives.format_of(upload)
    if ending is None:
        raise DataProblem(f"{shown_name!r} is none of {', '.join(FORMATS)}")
    if packed_bytes > MOST_PACKED:
        raise DataProblem(f"{shown_name!r} has {packed_bytes:,} bytes, at most {MOST_PACKED:,} are taken")
    if kind != FORMATS[ending]:
        raise DataProblem(f"{shown_name!r} does not begin like {ending}" + (f", but like a {kind}" if kind else ""))
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(to.parent)
        with tempfile.TemporaryDirectory(prefix=f".{to.name[:50]}-", dir=to.parent) as temporary:
            partial = Path(temporary)
            if kind not in ("", "parquet"):
                check_room(partial, _check_archive(upload, kind, packed_bytes, shown_name))
                _write(upload, kind, packed_bytes, partial)
            else:
                _write_table(upload, packed_bytes, partial / (_table_name(name, ending) + ending))
            path, data_kind = _recognise(partial, shown_name)
            if owner:
                (partial / OWNER).write_text(owner)
            partial.replace(to)
    except OSError as error:
        raise DataProblem(f"{shown_name!r} cannot be written to {to}: {error.strerror or error}") from error
    return to / path.relative_to(partial), data_kind


def _remove_abandoned(uploads: Path) -> None:
    """Delete the temporary folders of processes that were killed while they unpacked, copied or deleted an upload."""
    for entry in scan_within(uploads, None):
        if not visible(entry.name) and entry.status.st_mtime < time.time() - ABANDONED_S:
            shutil.rmtree(entry.path, ignore_errors=True)


def _recognise(folder: Path, name: str) -> tuple[Path, DataKind]:
    try:
        return recognise(folder)
    except DataProblem as error:  # names the temporary folder
        raise DataProblem(str(error).replace(str(folder), name)) from error


def _check_archive(upload: BinaryIO, kind: Format, packed_bytes: int, name: str) -> int:
    """Read an archive once, and return the number of bytes to write. Errors: DataProblem."""
    names: set[str] = set()
    total = 0
    problems: list[str] = []
    try:
        for entry in archives.entries(upload, kind, packed_bytes, LIMITS):
            file_name = _checked_name(entry.name)
            if not _is_data(file_name):
                continue
            if file_name in names:
                raise DataProblem(f"it holds two files called {file_name!r}")
            names.add(file_name)
            total += entry.size
            problems += _problems_of(file_name, entry.read())
    except (DataProblem, BadArchive) as error:
        raise DataProblem(f"{name!r} is refused: {error}") from error
    except DAMAGED as error:
        raise DataProblem(f"{name!r} is damaged: {error}") from error
    if problems:
        raise DataProblem(
            f"{name!r} holds {plural(len(problems), 'file')} with contents that do not match the name: "
            f"{shortened(problems)}"
        )
    if not names:
        raise DataProblem(f"{name!r} holds no images: expected {', '.join(images.SUFFIXES)} files")
    return total


def _write(upload: BinaryIO, kind: Format, packed_bytes: int, folder: Path) -> None:
    for entry in archives.entries(upload, kind, packed_bytes, LIMITS):
        if _is_data(file_name := _checked_name(entry.name)):
            target = folder / file_name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(entry.read())


def _write_table(upload: BinaryIO, packed_bytes: int, target: Path) -> None:
    check_room(target.parent, packed_bytes)
    upload.seek(0)
    blank = True
    with target.open("wb") as file:
        while chunk := upload.read(1 << 20):
            blank = blank and not chunk.strip()
            if target.suffix != ".parquet" and b"\0" in chunk:
                raise DataProblem(f"{target.name} is no text: expected UTF-8")
            file.write(chunk)
    if blank:
        raise DataProblem(f"{target.name} is empty")


def _checked_name(name: str) -> str:
    """Return the name without `./`. Errors: DataProblem for an invalid name, or one that leaves its folder on any
    system."""
    path = PurePosixPath(name)
    if (
        not 0 < len(name) <= 300
        or not name.isprintable()
        or set(name) & {"\\", "\0"}
        or path.is_absolute()
        or ".." in path.parts
        or re.match(r"[A-Za-z]:", name)
    ):
        raise DataProblem(f"it holds {name[:300]!r}, which is not the name of a file below a folder")
    return str(path)


def _is_data(name: str) -> bool:
    return visible(name) and name.lower().endswith((*images.SUFFIXES, *TEXTS, *TABLES))


def _problems_of(name: str, content: bytes) -> list[str]:
    """Return the problem of a file, if it has one: an invalid or too large image, or a text that is not text."""
    if name.lower().endswith(images.SUFFIXES):
        try:
            images.check(content, name)
        except Unreadable as error:
            return [f"{name} ({error.reason})"]
    elif name.lower().endswith(".parquet"):
        return [] if content.startswith(archives.PARQUET) else [f"{name} (it is no Parquet file)"]
    elif b"\0" in content:
        return [f"{name} (it is no text)"]
    return []


def _table_name(name: str, ending: str) -> str:
    """Return the name of a table without folder and ending, with only letters, digits, `_` and `-`.

    It has at most 60 characters of up to 4 bytes, because a system takes names of up to 255 bytes.
    """
    stem = PurePosixPath(name.replace("\\", "/")).name[: -len(ending)]
    return re.sub(r"[^\w-]+", "_", stem).strip("_")[:60] or "table"


@dataclass(frozen=True)
class Kept:
    """A folder with an unpacked upload."""

    folder: Path
    data: Path
    """Path of the data: the folder itself, a folder in it, or a table."""
    kind: DataKind
    size: int
    """Bytes of all files."""
    owner: str = ""
    """E-mail of its owner; empty if it was uploaded without sign-in."""

    def of(self, data: str) -> bool:
        """Return whether any of these data, as named in requests, is in the folder."""
        return any(Path(part).is_relative_to(self.folder) for part in split_sources(data))


def kept(uploads: Path, roots: Roots = None) -> list[Kept]:
    """Return the uploads in the folder of all uploads, newest first. roots: the folders that links may lead to."""
    entries = scan_within(uploads, roots) if stat_within(uploads, roots) else []
    folders = [entry for entry in entries if entry.is_folder and visible(entry.name)]
    return [_describe(entry.path, roots) for entry in sorted(folders, key=lambda entry: -entry.status.st_mtime_ns)]


def forget(upload: Kept) -> None:
    """Delete an upload with all its files and their copies, if it still exists. Errors: DataProblem."""
    hidden = upload.folder.with_name(f".{upload.folder.name}")
    try:
        copied = list(files_within(upload.folder, None))
        shutil.rmtree(hidden, ignore_errors=True)  # of a deletion that was interrupted
        upload.folder.rename(hidden)  # so that half an upload is never offered
        for entry in copied:
            forget_copy(entry)
        shutil.rmtree(hidden)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataProblem(f"{upload.folder} cannot be deleted: {error.strerror or error}") from error


def _describe(folder: Path, roots: Roots) -> Kept:
    size = sum(entry.status.st_size for entry in files_within(folder, roots))
    try:
        data, kind = recognise(folder, roots)
    except DataProblem:  # the folder was changed by hand
        data, kind = folder, "auto"
    owner = folder / OWNER
    return Kept(folder, data, kind, size, owner.read_text() if file_within(owner, roots) else "")
