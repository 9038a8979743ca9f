"""Count the models of the shipped catalogue in worker processes.

The catalogue has one row per model, at its own image size. A folder below it has rows at the other image sizes for
which accuracies are published.
"""

import csv
import gzip
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import open_clip
import torch

from engine import atomic, names, shipped
from engine.measure import environment
from engine.measure.counting import flops, memory
from engine.measure.counting.live import state, tensor_bytes
from engine.models import built as building
from engine.models import library
from engine.replicates.child import Ended
from engine.results import OperatorCount, ProfileRow, Progress
from engine.specs import ModelName, ProfileSpec, Refused, parse_image_size
from engine.tasks.profile import failed_row, memory_notes, profile
from engine.tasks.shards import spread

OPERATOR_COLUMNS = ["library", "model", "image_size", *OperatorCount.model_fields]
Wanted = tuple[ModelName, str]
"""A model and an image size; empty for its own."""
CatalogueRow = dict[str, str]
"""The cells of a row by column, as in the CSV."""
LARGE_BATCH = 64
"""Batch size for `live_mb` and `kept_mb`. What does not grow with the batch, such as standardised weights, hardly
counts then, and reshapes copy what they copy of several images, but not of one."""


class VersionsDiffer(Refused):
    """Part of a catalogue would be counted with other library versions than the rest."""


def build(models: Sequence[str], out_dir: Path, workers: int) -> Iterator[Progress]:
    """Count models (names or patterns), yield progress, and write the catalogue's files. Rows of other models are kept.

    Errors: ModelNotFound; VersionsDiffer if only some models are recounted and library versions have changed.
    """
    families = library.families()
    wanted = names.resolve(models, families)
    out_dir.mkdir(parents=True, exist_ok=True)
    rows, operators = _read_others(out_dir, set(families) - set(wanted))
    yield Progress(done=0, total=len(wanted))
    for done, row in enumerate(counted([(name, "") for name in wanted], workers), start=1):
        rows.append(catalogue_row(row))
        place = {"library": row.library, "model": row.model, "image_size": row.image_size}
        operators += [place | operator.model_dump() for operator in row.operators]
        yield Progress(done=done, total=len(wanted), note=row.name)
    _write_rows(out_dir, rows)
    operators.sort(key=lambda row: (row["library"], row["model"]))
    atomic.write(out_dir / "operators.csv.gz", gzip.compress(table(OPERATOR_COLUMNS, operators).encode(), mtime=0))
    atomic.write(out_dir / shipped.WEIGHTS, json.dumps(weights(), indent=1) + "\n")
    versions = environment.versions() | {"counted_on": datetime.now(UTC).date().isoformat()}
    atomic.write(out_dir / "versions.json", json.dumps(versions, indent=2) + "\n")


def build_sizes(sizes: Mapping[str, Collection[str]], catalog_dir: Path, workers: int) -> Iterator[Progress]:
    """Count models at those of the given image sizes that the catalogue lacks, and yield progress.

    sizes: image sizes as the catalogue writes them, by qualified name. Models that are not installed or not in the
    catalogue are left out. Earlier rows are kept, unless they were counted with other library versions.
    Errors: VersionsDiffer if the catalogue itself was counted with other versions than are installed.
    """
    check_versions(catalog_dir)
    folder, installed = catalog_dir / shipped.SIZES, library.families()
    rows = [] if _changed_libraries(folder) else [row for row in read(folder) if _model(row) in installed]
    catalogue = list(read(catalog_dir))
    models = {_model(row) for row in catalogue} & set(installed)
    known = {(_model(row), row["image_size"]) for row in [*catalogue, *rows]}
    wanted = sorted({(model, size) for model in models for size in sizes.get(model, ())} - known)
    yield Progress(done=0, total=len(wanted))
    for done, row in enumerate(counted(wanted, workers), start=1):
        rows.append(catalogue_row(row))
        yield Progress(done=done, total=len(wanted), note=f"{row.name} at {row.image_size}")
    folder.mkdir(exist_ok=True)
    _write_rows(folder, rows)
    atomic.write(folder / "versions.json", (catalog_dir / "versions.json").read_bytes())


def _model(row: CatalogueRow) -> ModelName:
    return ModelName.of(row["library"], row["model"])


def counted(wanted: Sequence[Wanted], workers: int) -> Iterator[ProfileRow]:
    """Count models in worker processes, and yield each row as soon as it is counted."""
    for result in spread(_count, wanted, workers):
        if result:
            place, row = result
            name, image_size = wanted[place]
            yield failed_row(ModelName(name), _spec(name, image_size), row) if isinstance(row, Ended) else row


def count(name: str, image_size: str = "") -> ProfileRow:
    """Return the row of one model: on meta, with a batch of one and float32. image_size: its own by default."""
    row = profile(name, _spec(name, image_size)).row
    return row.model_copy(update=_per_image(ModelName(name), image_size, row.notes)) if row.status == "ok" else row


def _per_image(name: ModelName, image_size: str, notes: tuple[str, ...]) -> dict[str, Any]:
    """Return `live_mb`, `kept_mb` and the notes of a row with them; without kept_mb if the model cannot be trained.

    image_size: empty for its own. notes: those of the row so far.
    """
    size = parse_image_size(image_size) if image_size else None
    wanted = building.Wanted(device="meta", batch_size=LARGE_BATCH, image_size=size)
    found: dict[str, Any] = {}
    with suppress(Exception):  # any error of a model; its other counts are valid
        built = library.build(name, wanted)
        with torch.no_grad():
            counted = flops.count(built.model, built.inputs, run=lambda: library.run(name, built))
        peak = memory.inference_peak_bytes(built.model, built.inputs, counted)
        found["live_mb"] = (peak - tensor_bytes(state(built.model))) / LARGE_BATCH / 1e6
        built = library.build(name, wanted)  # anew: ConViTs keep tensors of their first call
        found["kept_mb"] = memory.kept_bytes(built.model, built.inputs) / LARGE_BATCH / 1e6
        found["notes"] = (*notes, *memory_notes(built.model))
    return found


def _count(wanted: Wanted) -> ProfileRow:
    torch.set_num_threads(1)
    return count(*wanted)


def _spec(name: str, image_size: str) -> ProfileSpec:
    return ProfileSpec.model_validate({"models": (name,), "image_size": image_size or None})


def catalogue_row(row: ProfileRow) -> CatalogueRow:
    """Return a row's cells as in the CSV: numbers with up to six decimals, missing values empty."""
    return {column: _cell(getattr(row, column)) for column in shipped.COLUMNS}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return json.dumps(value) if isinstance(value, dict | tuple) else str(value)


def _read_others(out_dir: Path, models: set[ModelName]) -> tuple[list[CatalogueRow], list[dict[str, Any]]]:
    """Return the existing rows and operators of these models, which are not recounted."""
    rows = [row for row in read(out_dir) if _model(row) in models]
    if not rows:
        return [], []
    check_versions(out_dir)
    kept = {_model(row) for row in rows}
    operators = csv.DictReader(io.StringIO(gzip.decompress((out_dir / "operators.csv.gz").read_bytes()).decode()))
    return rows, [row for row in operators if _model(row) in kept]


def read(folder: Path) -> Iterator[CatalogueRow]:
    """Yield the rows of a folder's CSV files."""
    for path in sorted(folder.glob("*.csv")):
        yield from csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))


def _write_rows(folder: Path, rows: Iterable[CatalogueRow]) -> None:
    """Write a CSV file per library, sorted by model and image size."""
    rows = sorted(rows, key=lambda row: (row["model"], [int(side) for side in row["image_size"].split("x") if side]))
    for name in names.LIBRARIES:
        rows_of_library = [row for row in rows if row["library"] == name]
        if rows_of_library or (folder / f"{name}.csv").exists():
            atomic.write(folder / f"{name}.csv", table(shipped.COLUMNS, rows_of_library))


def check_versions(out_dir: Path) -> None:
    """Refuse a folder that was counted with other library versions than are installed. Errors: VersionsDiffer."""
    if changed := _changed_libraries(out_dir):
        raise VersionsDiffer(
            f"the catalogue was counted with other versions of {', '.join(changed)}: recount all of it"
        )


def _changed_libraries(folder: Path) -> Collection[str]:
    """Return the libraries whose version differs from the one that a folder was counted with."""
    return shipped.mismatches(shipped.versions(folder))


def weights() -> dict[str, list[str]]:
    """Return the tags of published weights of every open_clip model that has any."""
    tags = {model: open_clip.list_pretrained_tags_by_model(model) for model in sorted(open_clip.list_models())}
    return {model: tags_of_model for model, tags_of_model in tags.items() if tags_of_model}


def table(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """Return the text of a CSV file with these columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
