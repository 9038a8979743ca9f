"""Count models at other image sizes than their own: the sizes that accuracies are published for."""

import csv
import io
import multiprocessing
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from engine import atomic, names
from engine.models import library
from engine.results import ProfileRow, Progress
from engine.specs import ModelName, ProfileSpec
from engine.tasks.catalogue import COLUMNS, VersionsDiffer, catalogue_row, check_versions, table
from engine.tasks.profile import profile

FOLDER = "sizes"
"""Name of a folder below the catalogue's, so that the catalogue's own files keep one row per model."""
Key = tuple[str, str, str]
"""Library, model, image size."""
Rows = dict[Key, dict[str, str]]


def build(sizes: Mapping[str, Collection[str]], catalog_dir: Path, workers: int) -> Iterator[Progress]:
    """Count the models at those of these sizes that the catalogue lacks, and yield progress.

    sizes: image sizes as the catalogue writes them, by qualified name. Models that are not installed or not in the
    catalogue are left out. Earlier rows are kept, unless they were counted with other library versions.
    Errors: VersionsDiffer if the catalogue itself was counted with other versions than are installed.
    """
    check_versions(catalog_dir)
    folder, installed = catalog_dir / FOLDER, library.families()
    rows = {key: row for key, row in _still_right(folder).items() if ModelName.of(key[0], key[1]) in installed}
    own = _read(catalog_dir)
    models = {ModelName.of(origin, model) for origin, model, _ in own} & set(installed)
    asked = {(name.library, name.model, size) for name in models & set(sizes) for size in sizes[name]}
    wanted = sorted(asked - {*rows, *own})
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield Progress(done=0, total=len(wanted))
        counting = {
            pool.submit(count, ModelName.of(origin, model), size): (origin, model, size)
            for origin, model, size in wanted
        }
        for done, future in enumerate(as_completed(counting), start=1):
            key, row = counting[future], future.result()
            rows[key] = catalogue_row(row)
            yield Progress(done=done, total=len(wanted), note=f"{row.name} at {key[2]}")
    folder.mkdir(exist_ok=True)
    for name in names.LIBRARIES:
        if mine := [rows[key] for key in sorted(rows, key=_order) if key[0] == name]:
            atomic.write(folder / f"{name}.csv", table(COLUMNS, mine))
    atomic.write(folder / "versions.json", (catalog_dir / "versions.json").read_bytes())


def count(name: str, image_size: str) -> ProfileRow:
    """Return the row of one model at this image size, counted as in the catalogue."""
    return profile(name, ProfileSpec.model_validate({"models": (name,), "image_size": image_size})).row


def _still_right(folder: Path) -> Rows:
    """Return the rows that were counted with the installed library versions."""
    try:
        check_versions(folder)
    except (FileNotFoundError, VersionsDiffer):
        return {}
    return _read(folder)


def _read(folder: Path) -> Rows:
    return {
        (row["library"], row["model"], row["image_size"]): row
        for path in sorted(folder.glob("*.csv"))
        for row in csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    }


def _order(key: Key) -> tuple[str, str, list[int]]:
    return *key[:2], [int(side) for side in key[2].split("x")]
