"""Checkpoints that are written completely or not at all, and are verified before they are loaded.

epoch_3.pt        output of torch.save, with the keys of open_clip's own training: epoch, name, state_dict, optimizer,
                  scaler. Everything else that resuming needs is under `vitals`
epoch_3.pt.json   its manifest: size, SHA-256, epoch, step, date. While a file of the same name is being replaced, the
                  manifest also describes the old file, under `before`. So one of the two matches the file at any
                  time, even if writing is interrupted

torch.load does not notice flipped bits, so every file is compared with its manifest. One process writes into a folder
at a time; any number may read.
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
from engine.results.checkpoints import manifest_path
from engine.roots import Roots, file_within, open_within, scan_within, stat_within
from engine.specs import Refused

NUMBERED = re.compile(r"\w+_\d+\.pt")
"""Names of the checkpoints that `prune` may remove. `latest.pt` and `best.pt` are overwritten instead."""
State = dict[str, Any]


class Corrupt(Refused):
    """A checkpoint is damaged or incomplete, or a file is not a checkpoint."""


class NotSaved(OSError):
    """A checkpoint could not be written. The existing ones are unchanged."""


class Entry(BaseModel):
    """The description of one checkpoint file: the content of `NAME.pt.json`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0)
    epoch: int = Field(0, ge=0)
    step: int = Field(ge=0)
    date: str
    before: "Entry | None" = None
    """The file that is being replaced."""


def save(folder: Path, name: str, state: State, *, about: dict[str, Any]) -> Path:
    """Write a checkpoint and replace one of the same name. Return its path.

    about: fields for the manifest, with at least the `step`, which orders checkpoints.
    Errors: NotSaved, caused by the system's error; TypeError if the state could not be loaded again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with atomic.temporary(path) as data:
        try:
            digest, size = _write(data, state)
            written = {"sha256": digest, "size": size, "date": datetime.now(UTC).isoformat()}
            entry = Entry.model_validate({**about, **written})
            old = _entry_or_none(path)
            _write_manifest(path, entry.model_copy(update={"before": old}))
            atomic.rename(data, path)
            if old is not None:
                _write_manifest(path, entry)
        except OSError as error:
            free = shutil.disk_usage(folder).free / 1e9
            raise NotSaved(
                f"checkpoint {name} could not be written to {folder}: {error.strerror or error}; "
                f"{free:.1f} GB are free there, and the checkpoints there are as they were"
            ) from error
    return path


def load(path: Path, roots: Roots = None) -> State:
    """Return a checkpoint's contents, on the CPU, after comparing the file with its manifest.

    A file without a manifest may be one of open_clip's own training. roots: the folders that must contain the file and
    its manifest. Errors: Corrupt.
    """
    with _open(path, roots) as file:
        if file_within(manifest_path(path), roots):
            _matching_entry(path, file, roots)  # raises Corrupt if there is none
        file.seek(0)
        return _read(path, file)


def verify(path: Path, roots: Roots = None) -> Entry:
    """Compare a file with its manifest without loading it, and return the matching entry. Errors: Corrupt."""
    with _open(path, roots) as file:
        return _matching_entry(path, file, roots)


def load_latest(folder: Path, roots: Roots = None) -> tuple[State, Path, list[str]] | None:
    """Return the content and path of the valid checkpoint with the highest step, and notes; None if there is none.

    The notes say which checkpoints were skipped, and why. roots: the folders that must contain all files.
    """
    entries, notes = [], []
    for path in _paths(folder, roots):
        try:
            entry = _entry(path, roots)
            entries.append((entry.step, entry.date, path))
        except Corrupt as problem:
            notes.append(str(problem))
    for *_, path in sorted(entries, reverse=True):
        try:
            return load(path, roots), path, notes
        except Corrupt as problem:
            notes.append(str(problem))
    return None


def prune(folder: Path, keep_last: int, keep: set[str]) -> None:
    """Remove the files of interrupted writes, and all numbered checkpoints except the newest `keep_last`; 0 keeps all.

    keep: names that are never removed. Damaged checkpoints are kept, so that they can be inspected.
    """
    for leftover in atomic.leftovers(folder):
        leftover.unlink(missing_ok=True)
    numbered = [path for path in _paths(folder) if NUMBERED.fullmatch(path.name)]
    entries = [(entry.step, entry.date, path) for path in numbered if (entry := _entry_or_none(path)) is not None]
    newest_first = [path for *_, path in sorted(entries, reverse=True)]
    removed = [path for path in newest_first[keep_last:] if path.name not in keep] if keep_last else []
    for path in removed:
        path.unlink(missing_ok=True)
        manifest_path(path).unlink(missing_ok=True)


def _paths(folder: Path, roots: Roots = None) -> list[Path]:
    """Return the paths of all checkpoints that have a file or a manifest, sorted by name."""
    names = [entry.name for entry in scan_within(folder, roots)] if stat_within(folder, roots) else []
    checkpoints = {name.removesuffix(".json") for name in names if name.endswith((".pt", ".pt.json"))}
    return sorted(folder / name for name in checkpoints if not name.startswith("."))


def _entry(path: Path, roots: Roots = None) -> Entry:
    """Return the description of a file, which is read only if its manifest describes two files. Errors: Corrupt."""
    with _open(path, roots) as file:
        manifest = _manifest(path, roots)
        return manifest if manifest.before is None else _matching_entry(path, file, roots)


def _entry_or_none(path: Path) -> Entry | None:
    try:
        return _entry(path)
    except Corrupt:
        return None


def _matching_entry(path: Path, file: BufferedReader, roots: Roots) -> Entry:
    """Return the entry of the manifest that matches the file's size and SHA-256. Errors: Corrupt."""
    manifest = _manifest(path, roots)
    claims = [claim for claim in (manifest, manifest.before) if claim is not None]
    size = os.fstat(file.fileno()).st_size
    if size in {claim.size for claim in claims}:
        file.seek(0)
        digest = file_digest(file, "sha256").hexdigest()
        for claim in claims:
            if (claim.size, claim.sha256) == (size, digest):
                return claim.model_copy(update={"before": None})
    raise Corrupt(f"{path.name} is damaged: its {size:,} bytes are not those that were written ({path.parent})")


def _manifest(path: Path, roots: Roots) -> Entry:
    try:
        with open_within(manifest_path(path), roots) as file:
            return Entry.model_validate_json(file.read())
    except FileNotFoundError as error:
        raise Corrupt(f"{path.name} has no manifest, so nothing says whether it is whole ({path.parent})") from error
    except (OSError, ValidationError) as error:
        raise Corrupt(f"{path.name} cannot be checked, because its manifest is damaged ({path.parent})") from error


@contextmanager
def _open(path: Path, roots: Roots) -> Iterator[BufferedReader]:
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
    except Exception as error:  # torch.load raises many types of errors for damaged files
        if out_of_memory(error):
            raise
        raise Corrupt(f"{path.name} is no checkpoint that can be loaded: {error}") from error
    if not isinstance(state, dict):
        raise Corrupt(f"{path.name} holds a {type(state).__name__}, and a checkpoint is a dict")
    return state


def _write(path: Path, state: State) -> tuple[str, int]:
    """Return the SHA-256 and size of the written file. Errors: OSError; TypeError if it could not be loaded again."""
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
        torch.load(path, map_location="meta", weights_only=True)  # on meta, no tensors are read, so it is fast
    except pickle.UnpicklingError as error:
        raise TypeError(
            f"this state could not be loaded again, as it holds more than tensors and texts: {error}"
        ) from error
    return hashed.sha256.hexdigest(), hashed.size


def _write_manifest(path: Path, manifest: Entry) -> None:
    atomic.write(manifest_path(path), manifest.model_dump_json(exclude_none=True))
