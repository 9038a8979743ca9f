"""A cache of features on disk. Evaluations with the same weights, files and settings reuse them."""

import hashlib
import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from torch import nn

from engine import atomic
from engine.datasets import Pairs, Unreadable
from engine.roots import Roots, files_within, stat_within
from engine.training.evaluation.encode import Features

MOST_BYTES = 5_000_000_000
"""Maximum size of the cache: 2.4 million features of 512 numbers. Beyond it, the least recently used are deleted."""


def key(model: nn.Module, pairs: Pairs, settings: Any, roots: Roots) -> str:
    """Return a hash of everything that features depend on: weights, images, captions and settings (a JSON value).

    Files are identified by path, size and modification time, so that they need not be read. Images without a file are
    hashed by content.
    """
    digest = hashlib.sha256(json.dumps([settings, torch.__version__, open_clip.__version__]).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    statuses: dict[Path, os.stat_result | None] = {}
    for index in range(len(pairs)):
        source = pairs.source(index)
        digest.update(json.dumps([source, *pairs.captions(index)]).encode())
        if status := _status(Path(source), statuses, roots):
            digest.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
            continue
        try:
            digest.update(pairs.image(index).tobytes())
        except Unreadable as error:
            digest.update(str(error).encode())
    return digest.hexdigest()


def _status(path: Path, statuses: dict[Path, os.stat_result | None], roots: Roots) -> os.stat_result | None:
    """Return the status of an image's file, or of the tar that contains it; None if there is no file."""
    for candidate in (path, *path.parents) if path.is_absolute() else ():
        if candidate not in statuses:
            statuses[candidate] = stat_within(candidate, roots)
        if (status := statuses[candidate]) and stat.S_ISREG(status.st_mode):
            return status
    return None


def load(folder: Path, name: str) -> tuple[Features, str] | None:
    """Return cached features and the time of their encoding; None without any. name: from `key`."""
    path = folder / f"{name}.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            images, read, texts = (torch.from_numpy(arrays[part]) for part in ("images", "read", "texts"))
            found = Features(images, read, texts, float(arrays["scale"]))
            encoded = str(arrays["encoded"])
        os.utime(path)  # the time of its last use
    except Exception:  # noqa: BLE001 - damaged files raise errors of many kinds; features can be computed again
        return None
    return found, encoded


def save(folder: Path, name: str, found: Features, *, spare_bytes: float) -> None:
    """Store features if `spare_bytes` stay free, and delete old ones beyond MOST_BYTES. Errors: OSError."""
    size = sum(tensor.nbytes for tensor in (found.images, found.read, found.texts))
    folder.mkdir(parents=True, exist_ok=True)
    if size > MOST_BYTES or shutil.disk_usage(folder).free - size < spare_bytes:
        return
    with atomic.temporary(folder / f"{name}.npz") as temporary:
        with temporary.open("wb") as file:
            date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            arrays: dict[str, Any] = {part: np.asarray(value) for part, value in vars(found).items()}
            np.savez(file, **arrays, encoded=np.array(date))
        temporary.replace(folder / f"{name}.npz")
    total = 0
    for entry in sorted(files_within(folder, None), key=lambda entry: -entry.status.st_mtime_ns):
        total += entry.status.st_size
        if total > MOST_BYTES:
            entry.path.unlink(missing_ok=True)
