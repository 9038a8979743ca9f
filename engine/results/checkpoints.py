"""The names of a training's checkpoints, and their manifests, which tell about a checkpoint without loading it."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from engine.roots import Roots, open_within

FOLDER = "checkpoints"
"""Folder of the checkpoints below the run's folder."""
BEST = "best.pt"
"""Name of the checkpoint with the best metric so far."""


def manifest_path(checkpoint: Path) -> Path:
    """Return the path of a checkpoint's manifest."""
    return Path(f"{checkpoint}.json")


def mark_lost(paths: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the checkpoints of a training's rows, in their order, with a mark at each one that is no longer there.

    paths: as in `TrainRow.checkpoint`. names: of the files that exist. A later row may name the same file: then the
    checkpoint of the earlier row was replaced.
    """
    latest = {path: place for place, path in enumerate(paths)}

    def marked(place: int, path: str) -> str:
        if path and Path(path).name not in names:
            return f"{path} (removed)"
        return f"{path} (replaced)" if path and latest[path] > place else path

    return [marked(place, path) for place, path in enumerate(paths)]


def read_manifest(checkpoint: Path, roots: Roots) -> dict[str, Any]:
    """Return the manifest of a checkpoint; {} when it cannot be read."""
    try:
        with open_within(manifest_path(checkpoint), roots) as file:
            manifest = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}
