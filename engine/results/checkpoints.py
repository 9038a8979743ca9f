"""The names of a training's checkpoints, and their manifests, which tell about a checkpoint without loading it."""

import json
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


def read_manifest(checkpoint: Path, roots: Roots) -> dict[str, Any]:
    """Return the manifest of a checkpoint; {} when it cannot be read."""
    try:
        with open_within(manifest_path(checkpoint), roots) as file:
            manifest = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}
