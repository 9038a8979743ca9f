"""Open the pairs that a spec's data names."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from engine.datasets import kinds
from engine.datasets.base import DataProblem
from engine.datasets.derived import mixed, sample
from engine.datasets.formats import captions_json, folders, parquet, shards, tables
from engine.datasets.formats.digits import COUNT, digits, synthetic
from engine.datasets.formats.members import entries_in
from engine.datasets.formats.unpacked import is_tar
from engine.datasets.pairs import Pairs
from engine.roots import Roots, expand_home, file_within, stat_within
from engine.specs.fields.clip import EMBEDDED, DataKind, JsonSplit, split_sources
from engine.specs.train import TrainSpec

Open = Callable[[Path], Pairs]
FIELDS = {
    "kind": "data_kind",
    "part": "json_split",
    "separator": "csv_separator",
    "image_column": "csv_img_key",
    "caption_column": "csv_caption_key",
    "class_column": "csv_class_key",
    "seed": "seed",
}
"""Fields of a request by the parameter of `open_pairs` that takes their value."""


def open_pairs(
    data: str,
    kind: DataKind = "auto",
    *,
    separator: str = "",
    image_column: str = "",
    caption_column: str = "",
    class_column: str = "",
    part: JsonSplit = "auto",
    samples: int | None = None,
    seed: int = 0,
    roots: Roots = None,
) -> Pairs:
    """Return the pairs of `digits`, `synthetic` or paths separated by `::`. No image is opened.

    samples: maximum number of pairs, drawn at random with the seed; for synthetic data, the number to make.
    roots: the folders that paths, also those in tables and behind links, may lead to. Errors: DataProblem.
    """
    columns = tables.Columns(image_column, caption_column, class_column)
    sources = split_sources(data)
    count = samples if samples and len(sources) == 1 else COUNT
    openers: dict[DataKind, Open] = {
        "digits": lambda _: digits(),
        "synthetic": lambda _: synthetic(count, seed),
        "csv": partial(tables.open_table, columns=columns, separator=separator, roots=roots),
        "parquet": partial(parquet.open_parquet, columns=columns, roots=roots),
        "coco": partial(captions_json.open_captions, part=part, roots=roots),
    }
    parts = [_open(source, kind, openers, roots) for source in sources]
    if not parts:
        raise DataProblem("no data are named: give digits, synthetic, or the path of a CSV, a folder or shards")
    pairs = parts[0] if len(parts) == 1 else mixed(parts, roots)
    return sample(pairs, samples, seed) if samples and samples < len(pairs) else pairs


def columns_of(data: str, kind: DataKind = "auto", *, separator: str = "", roots: Roots = None) -> list[str]:
    """Return the names of the columns if the data, or their first source, are a CSV or Parquet. Errors: DataProblem."""
    source = next(iter(split_sources(data)), "")
    path = expand_home(source)
    if source in EMBEDDED or not stat_within(path, roots):
        return []
    if kind == "auto":
        path, kind = kinds.recognise(path, roots)
    if kind == "parquet":
        return parquet.header(path, roots)
    return tables.header(path, separator, roots) if kind == "csv" else []


def check_columns(spec: TrainSpec, roots: Roots = None) -> None:
    """Check that the tables of a training have the columns that it names. Errors: DataProblem.

    Only the headers of files are read. Folders, whose tables take longer to find, and other data are not checked.
    """
    columns = tables.Columns(spec.csv_img_key, spec.csv_caption_key, spec.pairs_class_key)
    for source in split_sources(spec.data) + split_sources(spec.val_data):
        path = expand_home(source)
        if source in EMBEDDED or not file_within(path, roots):
            continue
        kind = kinds.of_name(path.name) if spec.data_kind == "auto" else spec.data_kind
        if kind == "csv":
            tables.check_columns(path, columns, spec.csv_separator, roots)
        elif kind == "parquet":
            tables.choose_columns(parquet.header(path, roots), columns, path.name)


def columns_used(spec: Any, roots: Roots = None) -> dict[str, str]:
    """Return the columns of images and captions of a CSV or Parquet, by field of the request; empty for other data.

    A column that the request does not name is recognised by common names. spec: a TrainSpec or EvaluateSpec.
    Errors: DataProblem.
    """
    names = columns_of(spec.data, spec.data_kind, separator=spec.csv_separator, roots=roots)
    common = {"csv_img_key": tables.IMAGE_NAMES, "csv_caption_key": tables.CAPTION_NAMES}
    return {field: getattr(spec, field) or tables.recognised(names, known) for field, known in common.items() if names}


def columns_of_zeroshot(
    data: str, given: Mapping[str, str], *, separator: str = "", roots: Roots = None
) -> dict[str, str]:
    """Return the columns of zero-shot data, by field of the request. Errors: DataProblem.

    The class column is the given one, else one with a common name, or empty if there is none. The columns of images and
    captions are those given for the training data. If the table lacks one of them, it is empty: `open_pairs` then looks
    for a common name.
    """
    names = columns_of(data, separator=separator, roots=roots)
    shared = {field: given[field] for field in ("csv_img_key", "csv_caption_key")}
    found = {field: column if not names or column in names else "" for field, column in shared.items()}
    return found | {"csv_class_key": given["csv_class_key"] or tables.recognised(names, tables.CLASS_NAMES)}


def _open(source: str, kind: DataKind, openers: Mapping[DataKind, Open], roots: Roots) -> Pairs:
    if kind == "auto" and source in EMBEDDED:
        kind = "digits" if source == "digits" else "synthetic"
    if kind in EMBEDDED and source not in EMBEDDED:
        raise DataProblem(f"{source} is a path, and the format {kind} needs no path: leave one of the two out")
    path = expand_home(source)
    if kind in EMBEDDED:
        return openers[kind](path)
    if "://" in source or source.startswith("pipe:"):
        raise DataProblem(f"{source} is not a file on this machine: download it first, because data are read from disk")
    if not stat_within(path, roots):
        if kind in ("auto", "webdataset") and is_tar(source):
            return shards.open_shards(source, roots)
        raise DataProblem(
            f"there is no {source}: give digits, synthetic, or the path of a CSV, Parquet, captions JSON, a folder or "
            "shards ({00..07}.tar)"
        )
    if kind == "auto":
        path, kind = kinds.recognise(path, roots)
    if kind == "webdataset":
        if file_within(path, roots):
            return shards.open_tars([path], path.stem, roots)
        tars = [entry.path for entry in entries_in(path, roots) if is_tar(entry.name) and not entry.is_folder]
        return shards.open_tars(tars, path.name, roots) if tars else shards.open_unpacked(path, roots)
    if file_within(path, roots) == (kind == "folder"):
        wanted = "a folder with one folder per class" if kind == "folder" else f"a file, so not {kind}"
        raise DataProblem(f"{source} is not {wanted}: choose another format (--data-kind)")
    return folders.open_folder(path, roots) if kind == "folder" else openers[kind](path)
