"""Count models at other image sizes than their own: the sizes that accuracies are published for."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from engine import atomic, names
from engine.models import library
from engine.results import Progress
from engine.specs import ModelName
from engine.tasks.catalogue import COLUMNS, VersionsDiffer, catalogue_row, check_versions, counted, read, table

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
    wanted = [(ModelName.of(origin, model), size) for origin, model, size in sorted(asked - {*rows, *own})]
    yield Progress(done=0, total=len(wanted))
    for done, ((model, size), row) in enumerate(counted(wanted, workers), start=1):
        rows[model.library, model.model, size] = catalogue_row(row)
        yield Progress(done=done, total=len(wanted), note=f"{row.name} at {size}")
    folder.mkdir(exist_ok=True)
    for name in names.LIBRARIES:
        if mine := [rows[key] for key in sorted(rows, key=_order) if key[0] == name]:
            atomic.write(folder / f"{name}.csv", table(COLUMNS, mine))
    atomic.write(folder / "versions.json", (catalog_dir / "versions.json").read_bytes())


def _still_right(folder: Path) -> Rows:
    """Return the rows that were counted with the installed library versions."""
    try:
        check_versions(folder)
    except (FileNotFoundError, VersionsDiffer):
        return {}
    return _read(folder)


def _read(folder: Path) -> Rows:
    return {(row["library"], row["model"], row["image_size"]): row for row in read(folder)}


def _order(key: Key) -> tuple[str, str, list[int]]:
    return *key[:2], [int(side) for side in key[2].split("x")]
