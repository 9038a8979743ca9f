"""Read the shipped catalogue without pandas: its models, their published weights, and the versions of libraries."""

import csv
import json
from functools import cache
from importlib import metadata
from pathlib import Path

from engine.specs import ModelName

COLUMNS = """
library model family image_size test_size context_length image_width text_width embed_dim
mparams image_mparams text_mparams other_mparams trainable_mparams mbuffers
gmacs image_gmacs text_gmacs other_gmacs gflops image_gflops text_gflops other_gflops
macts image_macts text_macts other_macts traffic_mb intensity weights_mb inference_peak_mb live_mb kept_mb
complete uncounted notes status error
""".split()
"""Columns of the catalogue's files: fields of ProfileRow."""
SIZES = "sizes"
"""Subfolder for image sizes other than the models' own, so that the main files keep one row per model."""
WEIGHTS = "open_clip_weights.json"
"""File of the catalogue with the tags of published weights, by open_clip model."""


def families(catalog_dir: Path) -> dict[ModelName, str]:
    """Return every model of the catalogue with its family."""
    family_of: dict[ModelName, str] = {}
    for path in sorted(catalog_dir.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            family_of |= {ModelName.of(row["library"], row["model"]): row["family"] for row in csv.DictReader(file)}
    return family_of


def weights(catalog_dir: Path) -> dict[str, list[str]]:
    """Return the tags of the published weights of every open_clip model that has any. Empty when unknown."""
    path = catalog_dir / WEIGHTS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def versions(catalog_dir: Path) -> dict[str, str]:
    """Return the versions of the catalogue: by distribution, and `counted_on`. Empty when unknown."""
    path = catalog_dir / "versions.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def mismatches(counted_with: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return the distributions whose version differs from the catalogue's: {name: (counted with, installed)}.

    Reads the installed metadata only and imports nothing. Local suffixes such as `+cpu` are ignored.
    """
    differing: dict[str, tuple[str, str]] = {}
    for name, version in counted_with.items():
        if name == "counted_on":
            continue
        installed_version = installed(name) or "not installed"
        if installed_version.partition("+")[0] != version.partition("+")[0]:
            differing[name] = (version, installed_version)
    return differing


@cache
def installed(distribution: str) -> str | None:
    """Return the installed version, if any. Cached, because a running process does not use later installations."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
