"""Count the models of the shipped catalogue in worker processes.

One row per model at its own image size, and in a folder of their own the sizes that accuracies are published for.
"""

import gzip
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import open_clip
import pandas as pd
import torch

from engine import atomic, names, shipped
from engine.measure import environment
from engine.models import library
from engine.replicates.child import Ended
from engine.results import OperatorCount, ProfileRow, Progress
from engine.specs import ModelName, ProfileSpec, Refused
from engine.tasks.profile import lost, profile
from engine.tasks.shards import spread

FIGURES = """
library model family image_size test_size context_length image_width text_width embed_dim
mparams image_mparams text_mparams other_mparams trainable_mparams mbuffers
gmacs image_gmacs text_gmacs other_gmacs gflops image_gflops text_gflops other_gflops
macts image_macts text_macts other_macts traffic_mb intensity weights_mb inference_peak_mb
complete uncounted notes status error
"""
COLUMNS = FIGURES.split()
OPERATOR_COLUMNS = ["library", "model", "image_size", *OperatorCount.model_fields]
Wanted = tuple[ModelName, str]
"""A model and an image size; empty for its own."""
SIZES = "sizes"
"""Folder below the catalogue's for other image sizes, so that the catalogue's own files keep one row per model."""


class VersionsDiffer(Refused):
    """Part of a catalogue would be counted with other library versions than the rest."""


def build(models: Sequence[str], out_dir: Path, workers: int) -> Iterator[Progress]:
    """Count models (names or patterns), yield progress, and write the catalogue's files. Rows of other models are kept.

    Errors: ModelNotFound; VersionsDiffer if only some models are recounted and library versions have changed.
    """
    families = library.families()
    wanted = names.resolve(models, families)
    out_dir.mkdir(parents=True, exist_ok=True)
    rows, operators = read(out_dir), pd.DataFrame(columns=OPERATOR_COLUMNS)
    rows = rows[_names(rows).isin(set(families) - set(wanted))]
    if len(rows):
        check_versions(out_dir)
        operators = _read_csv(out_dir / "operators.csv.gz")
        operators = operators[_names(operators).isin(_names(rows))]
    new_rows, new_operators = [], []
    yield Progress(done=0, total=len(wanted))
    for done, (_, row) in enumerate(counted([(name, "") for name in wanted], workers), start=1):
        new_rows.append(catalogue_row(row))
        for operator in row.operators:
            place = {"library": row.library, "model": row.model, "image_size": row.image_size}
            new_operators.append(place | {name: str(value) for name, value in operator.model_dump().items()})
        yield Progress(done=done, total=len(wanted), note=row.name)
    _write(out_dir, pd.concat([rows, _frame(new_rows)]))
    operators = pd.concat([operators, pd.DataFrame(new_operators, columns=OPERATOR_COLUMNS)])
    text = _text(operators.sort_values(["library", "model"], kind="stable"))
    atomic.write(out_dir / "operators.csv.gz", gzip.compress(text.encode(), mtime=0))
    atomic.write(out_dir / shipped.WEIGHTS, json.dumps(weights(), indent=1) + "\n")
    versions = environment.versions() | {"counted_on": datetime.now(UTC).date().isoformat()}
    atomic.write(out_dir / "versions.json", json.dumps(versions, indent=2) + "\n")


def build_sizes(sizes: Mapping[str, Collection[str]], catalog_dir: Path, workers: int) -> Iterator[Progress]:
    """Count the models at those of these sizes that the catalogue lacks, and yield progress.

    sizes: image sizes as the catalogue writes them, by qualified name. Models that are not installed or not in the
    catalogue are left out. Earlier rows are kept, unless they were counted with other library versions.
    Errors: VersionsDiffer if the catalogue itself was counted with other versions than are installed.
    """
    check_versions(catalog_dir)
    folder, own, rows = catalog_dir / SIZES, read(catalog_dir), _frame([])
    try:
        check_versions(folder)
        rows = read(folder)
    except (FileNotFoundError, VersionsDiffer):
        pass
    models = set(_names(own)) & set(library.families())
    rows = rows[_names(rows).isin(library.families())]
    known = {place for frame in (own, rows) for place in zip(_names(frame), frame["image_size"], strict=True)}
    asked = {(name, size) for name in models & set(sizes) for size in sizes[name]}
    wanted = [(ModelName(name), size) for name, size in sorted(asked - known)]
    new_rows = []
    yield Progress(done=0, total=len(wanted))
    for done, ((_, size), row) in enumerate(counted(wanted, workers), start=1):
        new_rows.append(catalogue_row(row))
        yield Progress(done=done, total=len(wanted), note=f"{row.name} at {size}")
    folder.mkdir(exist_ok=True)
    _write(folder, pd.concat([rows, _frame(new_rows)]))
    atomic.write(folder / "versions.json", (catalog_dir / "versions.json").read_bytes())


def counted(wanted: Sequence[Wanted], workers: int) -> Iterator[tuple[Wanted, ProfileRow]]:
    """Count models in worker processes, and yield each with its row as soon as it is counted."""
    for found in spread(_count, wanted, workers):
        if found:
            place, row = found
            name, image_size = wanted[place]
            yield wanted[place], lost(ModelName(name), _spec(name, image_size), row) if isinstance(row, Ended) else row


def count(name: str, image_size: str = "") -> ProfileRow:
    """Return the row of one model: on meta, with a batch of one and float32. image_size: its own by default."""
    return profile(name, _spec(name, image_size)).row


def _count(wanted: Wanted) -> ProfileRow:
    torch.set_num_threads(1)
    return count(*wanted)


def _spec(name: str, image_size: str) -> ProfileSpec:
    return ProfileSpec.model_validate({"models": (name,), "image_size": image_size or None})


def catalogue_row(row: ProfileRow) -> dict[str, str]:
    """Return a row's cells as in the CSV: numbers with up to six decimals, missing values empty."""
    return {column: _cell(getattr(row, column)) for column in COLUMNS}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    if isinstance(value, dict | tuple):
        return json.dumps(value)
    return str(value)


def _names(frame: pd.DataFrame) -> "pd.Series[str]":
    """Return the qualified name of each row's model."""
    return frame["library"] + ":" + frame["model"]


def _frame(rows: Sequence[Mapping[Any, str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS, dtype=str)


def read(folder: Path) -> pd.DataFrame:
    """Return the rows of a folder's CSV files, as text."""
    return pd.concat([_frame([]), *(_read_csv(path) for path in sorted(folder.glob("*.csv")))])


def _read_csv(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def _text(frame: pd.DataFrame) -> str:
    return str(frame.to_csv(index=False, lineterminator="\n"))


def check_versions(out_dir: Path) -> None:
    """Refuse a folder that was counted with other library versions than are installed. Errors: VersionsDiffer."""
    before = json.loads((out_dir / "versions.json").read_text())
    if changed := [name for name, version in environment.versions().items() if before.get(name, version) != version]:
        raise VersionsDiffer(
            f"the catalogue was counted with other versions of {', '.join(changed)}: recount all of it"
        )


def _write(folder: Path, rows: pd.DataFrame) -> None:
    """Write a file per library, sorted by model and image size."""
    for name, mine in rows.groupby("library"):
        lines = mine.to_dict("records")
        lines.sort(key=lambda row: (row["model"], [int(side) for side in row["image_size"].split("x") if side]))
        atomic.write(folder / f"{name}.csv", _text(_frame(lines)))


def weights() -> dict[str, list[str]]:
    """Return the tags of published weights of every open_clip model that has any."""
    tags = {model: open_clip.list_pretrained_tags_by_model(model) for model in sorted(open_clip.list_models())}
    return {model: own for model, own in tags.items() if own}
