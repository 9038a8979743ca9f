"""Checkpoints that are whole or not there, and are checked before they are loaded.

epoch_3.pt        what torch.save writes, with the keys of open_clip's own training: epoch, name, state_dict, optimizer,
                  scaler. Whatever else resuming needs lies under `vitals`
epoch_3.pt.json   its manifest: size, SHA-256, epoch, step, date; and, while a file of the same name is being replaced,
                  the old one's under `before`, so that one of the two fits whenever writing is cut off

torch.load does not notice flipped bits, which is why every file is held against its manifest. One process writes into a
folder at a time; any number may read.
"""

import os
import pickle
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import file_digest
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine import atomic
from engine.models.built import out_of_memory
from engine.roots import Roots, file_within, open_within, scan_within
from engine.specs import Refused

NAME = re.compile(r"[A-Za-z0-9][\w-]{0,99}\.pt")
NUMBERED = re.compile(r"\w+_\d+\.pt")
"""What `prune` may remove: `latest.pt` and `best.pt` replace themselves."""
State = dict[str, Any]


class Corrupt(Refused):
    """A checkpoint that is damaged, incomplete, or none."""


class NotSaved(OSError):
    """A checkpoint could not be written; those there are as they were."""


class Entry(BaseModel):
    """The type and shape that an entry of a checkpoint must have."""

    model_config = ConfigDict(extra="allow", frozen=True)

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0)
    epoch: int = Field(0, ge=0)
    step: int = Field(ge=0)
    date: str


class Manifest(Entry):
    """`NAME.pt.json`."""

    before: Entry | None = None


def save(folder: Path, name: str, state: State, *, about: dict[str, Any]) -> Path:
    """Write a checkpoint, in place of one of the same name.

    about: goes into the manifest, with at least the `step`, by which checkpoints are ordered.
    Errors: NotSaved, caused by what the system said; TypeError of a state that could not be loaded again.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a checkpoint, such as epoch_3.pt")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with atomic.temporary(path) as data:
        try:
            digest, size = _write(data, state)
            written = {"sha256": digest, "size": size, "date": datetime.now(UTC).isoformat()}
            entry = Entry.model_validate({**about, **written})
            old = _entry_or_none(path)
            _publish(path, Manifest(**entry.model_dump(), before=old))
            atomic.rename(data, path)
            if old is not None:
                _publish(path, Manifest(**entry.model_dump()))
        except OSError as error:
            free = shutil.disk_usage(folder).free / 1e9
            raise NotSaved(
                f"checkpoint {name} could not be written to {folder}: {error.strerror or error}; "
                f"{free:.1f} GB are free there, and the checkpoints there are as they were"
            ) from error
    return path


def load(path: Path, *, foreign: bool = False, roots: Roots = None) -> State:
    """Return a checkpoint's contents, on the CPU, once they have been found to be what was written.

    foreign: take a file without a manifest too, such as one of open_clip's own training.
    roots: below which the file and its manifest must lie. Errors: Corrupt.
    """
    with _opened(path, roots) as file:
        if not (foreign and not file_within(manifest_path(path), roots)):
            _agreeing(path, file, roots)
        file.seek(0)
        return _read(path, file)


def verify(path: Path, roots: Roots = None) -> Entry:
    """Hold a file against its manifest without loading it. Errors: Corrupt."""
    with _opened(path, roots) as file:
        return _agreeing(path, file, roots)


def load_latest(folder: Path, roots: Roots = None) -> tuple[State, Path, list[str]] | None:
    """Return the good checkpoint of the latest step; None where there is none.

    The notes say which were passed over, and why. roots: below which all files must lie.
    """
    found, notes = [], []
    for path in _named(folder, roots):
        try:
            found.append((_entry(path, roots), path))
        except Corrupt as problem:
            notes.append(str(problem))
    for _, path in sorted(found, key=_age, reverse=True):
        try:
            return load(path, roots=roots), path, notes
        except Corrupt as problem:
            notes.append(str(problem))
    return None


def request(path: Path, roots: Roots = None) -> dict[str, Any]:
    """Return what was asked for when a checkpoint was written, as its manifest tells; empty where none does."""
    try:
        told = (_manifest(path, roots).model_extra or {}).get("spec")
    except Corrupt:
        return {}
    return told if isinstance(told, dict) else {}


def prune(folder: Path, keep_last: int, keep: set[str]) -> list[str]:
    """Remove what an interrupted writing has left, and all numbered checkpoints but the last `keep_last`; 0 keeps all.

    keep: names that stay in any case. The newest stays too, and what is damaged is left to be looked at.
    Returns the names of what was removed.
    """
    for left in atomic.leftovers(folder):
        left.unlink(missing_ok=True)
    numbered = [path for path in _named(folder) if NUMBERED.fullmatch(path.name)]
    held = [(entry, path) for path in numbered if (entry := _entry_or_none(path)) is not None]
    newest_first = [path for _, path in sorted(held, key=_age, reverse=True)]
    removed = [path for path in newest_first[keep_last:] if path.name not in keep] if keep_last else []
    for path in removed:
        path.unlink(missing_ok=True)
        manifest_path(path).unlink(missing_ok=True)
    return [path.name for path in removed]


def manifest_path(path: Path) -> Path:
    """Return where a checkpoint's manifest lies."""
    return path.with_name(f"{path.name}.json")


def _age(held: tuple[Entry, Path]) -> tuple[int, str]:
    return held[0].step, held[0].date


def _named(folder: Path, roots: Roots = None) -> list[Path]:
    """Return every checkpoint that has a file or a manifest."""
    try:
        names = [entry.path.name for entry in scan_within(folder, roots)]
    except FileNotFoundError:
        return []
    found = {name.removesuffix(".json") for name in names if name.endswith((".pt", ".pt.json"))}
    return sorted(folder / name for name in found if not name.startswith("."))


def _entry(path: Path, roots: Roots = None) -> Entry:
    """Return what a checkpoint says of itself.

    The file is read only where its manifest leaves open which of two it is. Errors: Corrupt.
    """
    with _opened(path, roots) as file:
        manifest = _manifest(path, roots)
        return manifest if manifest.before is None else _agreeing(path, file, roots)


def _entry_or_none(path: Path) -> Entry | None:
    try:
        return _entry(path)
    except Corrupt:
        return None


def _agreeing(path: Path, file: BufferedReader, roots: Roots) -> Entry:
    """Return the entry of the manifest that the file agrees with. Errors: Corrupt."""
    manifest = _manifest(path, roots)
    claims = [claim for claim in (manifest, manifest.before) if claim is not None]
    size = os.fstat(file.fileno()).st_size
    if size in {claim.size for claim in claims}:
        file.seek(0)
        digest = file_digest(file, "sha256").hexdigest()
        for claim in claims:
            if (claim.size, claim.sha256) == (size, digest):
                return Entry(**claim.model_dump(exclude={"before"}))
    raise Corrupt(f"{path.name} is damaged: its {size:,} bytes are not those that were written ({path.parent})")


def _manifest(path: Path, roots: Roots) -> Manifest:
    try:
        with open_within(manifest_path(path), roots) as file:
            return Manifest.model_validate_json(file.read())
    except FileNotFoundError as error:
        raise Corrupt(f"{path.name} has no manifest, so nothing says whether it is whole ({path.parent})") from error
    except (OSError, ValidationError) as error:
        raise Corrupt(f"{path.name} cannot be checked, because its manifest is damaged ({path.parent})") from error


@contextmanager
def _opened(path: Path, roots: Roots) -> Iterator[BufferedReader]:
    try:
        file = open_within(path, roots)
    except OSError as error:
        raise Corrupt(f"{path.name} cannot be read: {error.strerror} ({path.parent})") from error
    with file:
        yield file


def _read(path: Path, file: BufferedReader) -> State:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise Corrupt(
            f"{path.name} is not made of tensors, numbers and texts alone, and loading anything else can run any code"
        ) from error
    except Exception as error:  # torch.load raises whatever the bytes lead it to
        if out_of_memory(error):
            raise
        raise Corrupt(f"{path.name} is no checkpoint that can be loaded: {error}") from error
    if not isinstance(state, dict):
        raise Corrupt(f"{path.name} holds a {type(state).__name__}, and a checkpoint is a dict")
    return state


def _write(path: Path, state: State) -> tuple[str, int]:
    """SHA-256 and size of what now lies on the disk. Errors: OSError; TypeError of what would not be loaded again."""
    with path.open("wb") as file:
        hashed = atomic.Hashed(file)
        try:
            torch.save(state, hashed)  # type: ignore[arg-type]
        except Exception:
            if hashed.error is not None:
                raise hashed.error from None
            raise
        atomic.sync(file)
    try:
        torch.load(path, map_location="meta", weights_only=True)  # reads no tensors, so it takes no time
    except pickle.UnpicklingError as error:
        raise TypeError(
            f"this state could not be loaded again, as it holds more than tensors and texts: {error}"
        ) from error
    return hashed.sha256.hexdigest(), hashed.size


def _publish(path: Path, manifest: Manifest) -> None:
    atomic.write(manifest_path(path), manifest.model_dump_json(exclude_none=True))
