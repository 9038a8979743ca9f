"""Count the models of the shipped catalogue in worker processes.

One row per model at its own image size, and in a folder of their own the sizes that accuracies are published for.
"""

import csv
import gzip
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import open_clip
import torch

from engine import atomic, names, shipped
from engine.measure import environment
from engine.models import library
from engine.replicates.child import Ended
from engine.results import OperatorCount, ProfileRow, Progress
from engine.specs import ModelName, ProfileSpec, Refused
from engine.tasks.profile import lost, profile
from engine.tasks.shards import spread

COLUMNS = """
library model family image_size test_size context_length image_width text_width embed_dim
mparams image_mparams text_mparams other_mparams trainable_mparams mbuffers
gmacs image_gmacs text_gmacs other_gmacs gflops image_gflops text_gflops other_gflops
macts image_macts text_macts other_macts traffic_mb intensity weights_mb inference_peak_mb
complete uncounted notes status error
""".split()
OPERATOR_COLUMNS = ["library", "model", "image_size", *OperatorCount.model_fields]
Wanted = tuple[ModelName, str]
"""A model and an image size; empty for its own."""
Table = dict[tuple[str, str], dict[str, str]]
SIZES = "sizes"
"""Folder below the catalogue's for other image sizes, so that the catalogue's own files keep one row per model."""
Key = tuple[str, str, str]
"""Library, model, image size."""


class VersionsDiffer(Refused):
    """Part of a catalogue would be counted with other library versions than the rest."""


def build(models: Sequence[str], out_dir: Path, workers: int) -> Iterator[Progress]:
    """Count models (names or patterns), yield progress, and write the catalogue's files. Rows of other models are kept.

    Errors: ModelNotFound; VersionsDiffer if only some models are recounted and library versions have changed.
    """
    families = library.families()
    wanted = names.resolve(models, families)
    out_dir.mkdir(parents=True, exist_ok=True)
    rows, operators = _kept(out_dir, set(families) - set(wanted))
    yield Progress(done=0, total=len(wanted))
    for done, (_, row) in enumerate(counted([(name, "") for name in wanted], workers), start=1):
        rows[row.library, row.model] = catalogue_row(row)
        operators[row.library, row.model] = [_operator_row(row, operator) for operator in row.operators]
        yield Progress(done=done, total=len(wanted), note=row.name)
    _write(out_dir, rows, operators)


def build_sizes(sizes: Mapping[str, Collection[str]], catalog_dir: Path, workers: int) -> Iterator[Progress]:
    """Count the models at those of these sizes that the catalogue lacks, and yield progress.

    sizes: image sizes as the catalogue writes them, by qualified name. Models that are not installed or not in the
    catalogue are left out. Earlier rows are kept, unless they were counted with other library versions.
    Errors: VersionsDiffer if the catalogue itself was counted with other versions than are installed.
    """
    check_versions(catalog_dir)
    folder, installed = catalog_dir / SIZES, library.families()
    rows = {key: row for key, row in _still_right(folder).items() if ModelName.of(key[0], key[1]) in installed}
    own = _by_size(catalog_dir)
    models = {ModelName.of(origin, model) for origin, model, _ in own} & set(installed)
    published_sizes = {(name.library, name.model, size) for name in models for size in sizes.get(name, ())}
    wanted = [(ModelName.of(origin, model), size) for origin, model, size in sorted(published_sizes - {*rows, *own})]
    yield Progress(done=0, total=len(wanted))
    for done, ((model, size), row) in enumerate(counted(wanted, workers), start=1):
        rows[model.library, model.model, size] = catalogue_row(row)
        yield Progress(done=done, total=len(wanted), note=f"{row.name} at {size}")
    folder.mkdir(exist_ok=True)
    for name in names.LIBRARIES:
        if mine := [rows[key] for key in sorted(rows, key=_order) if key[0] == name]:
            atomic.write(folder / f"{name}.csv", table(COLUMNS, mine))
    atomic.write(folder / "versions.json", (catalog_dir / "versions.json").read_bytes())


def _still_right(folder: Path) -> dict[Key, dict[str, str]]:
    """Return the rows that were counted with the installed library versions."""
    try:
        check_versions(folder)
    except (FileNotFoundError, VersionsDiffer):
        return {}
    return _by_size(folder)


def _by_size(folder: Path) -> dict[Key, dict[str, str]]:
    return {(row["library"], row["model"], row["image_size"]): row for row in read(folder)}


def _order(key: Key) -> tuple[str, str, list[int]]:
    return *key[:2], [int(side) for side in key[2].split("x")]


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


def _operator_row(row: ProfileRow, operator: OperatorCount) -> dict[str, str]:
    figures = {name: str(value) for name, value in operator.model_dump().items()}
    return {"library": row.library, "model": row.model, "image_size": row.image_size, **figures}


def _kept(out_dir: Path, models: set[ModelName]) -> tuple[Table, dict[tuple[str, str], list[dict[str, str]]]]:
    """Return the existing rows and operators of these models, which are not recounted."""
    rows = {
        (row["library"], row["model"]): row
        for row in read(out_dir)
        if ModelName.of(row["library"], row["model"]) in models
    }
    if not rows:
        return {}, {}
    check_versions(out_dir)
    operators: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in csv.DictReader(io.StringIO(gzip.decompress((out_dir / "operators.csv.gz").read_bytes()).decode())):
        if (key := (row["library"], row["model"])) in rows:
            operators.setdefault(key, []).append(row)
    return rows, operators


def read(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a folder's CSV files."""
    for path in sorted(folder.glob("*.csv")):
        yield from csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))


def check_versions(out_dir: Path) -> None:
    """Refuse a folder that was counted with other library versions than are installed. Errors: VersionsDiffer."""
    before = json.loads((out_dir / "versions.json").read_text())
    if changed := [name for name, version in environment.versions().items() if before.get(name, version) != version]:
        raise VersionsDiffer(
            f"the catalogue was counted with other versions of {', '.join(changed)}: recount all of it"
        )


def _write(out_dir: Path, rows: Table, operators: dict[tuple[str, str], list[dict[str, str]]]) -> None:
    for name in names.LIBRARIES:
        mine = [rows[key] for key in sorted(rows) if key[0] == name]
        atomic.write(out_dir / f"{name}.csv", table(COLUMNS, mine))
    every = (row for key in sorted(operators) for row in operators[key])
    atomic.write(out_dir / "operators.csv.gz", gzip.compress(table(OPERATOR_COLUMNS, every).encode(), mtime=0))
    atomic.write(out_dir / shipped.WEIGHTS, json.dumps(weights(), indent=1) + "\n")
    versions = environment.versions() | {"counted_on": datetime.now(UTC).date().isoformat()}
    atomic.write(out_dir / "versions.json", json.dumps(versions, indent=2) + "\n")


def weights() -> dict[str, list[str]]:
    """Return the tags of published weights of every open_clip model that has any."""
    tags = {model: open_clip.list_pretrained_tags_by_model(model) for model in sorted(open_clip.list_models())}
    return {model: own for model, own in tags.items() if own}


def table(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """Return the text of a CSV file with these columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
