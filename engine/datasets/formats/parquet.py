"""Read Parquet with a column of images, as paths or as files' contents, and a column of captions or classes."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from engine.archives import MOST_RATIO
from engine.datasets.base import DataProblem, distinct, reading
from engine.datasets.formats import members, unpacked
from engine.datasets.formats.members import Member
from engine.datasets.formats.tables import Columns, Row, assemble, choose_columns
from engine.datasets.pairs import Pairs
from engine.roots import Roots, open_within

BATCH = 64
"""Rows whose images are in memory at the same time."""
FREE_BYTES, ROW_BYTES = 200_000_000, 20
"""A file is a bomb if its values take more than FREE_BYTES and more than MOST_RATIO times its own size. Each row counts
ROW_BYTES more, for its objects in Python. Without FREE_BYTES, honest files would be refused: a numbered path with a
class can take less than a byte."""


def open_parquet(path: Path, columns: Columns, roots: Roots = None) -> Pairs:
    """Return the pairs of a Parquet file. Images are paths, contents, or structs of both as Hugging Face's.

    columns: as for `choose_columns`. Contents are unpacked once, into a copy. Classes are texts, or numbers whose names
    are in the file's metadata. Errors: DataProblem.
    """
    from pyarrow import parquet, types

    with _open(path, roots) as file:
        schema = parquet.read_schema(file)
        image, caption, label = choose_columns(schema.names, columns, path.name)
        image_type = schema.field(image).type
        fields = {image_type.field(place).name for place in range(image_type.num_fields)}
        packed = "bytes" in fields or types.is_binary(image_type) or types.is_large_binary(image_type)
        needed = [name for name in ("" if packed else image, caption, label) if name]
        table: dict[str, list[Any]] = {name: [] for name in needed}
        for batch in _batches(file, needed):
            for name, values in batch.to_pydict().items():
                table[name] += values
        found: list[Member] = []
        if packed:
            copy = unpacked.copy_of(path, roots, lambda file, copy: unpacked.write_tar(_contents(file, image), copy))
            found, _ = members.in_tar(path, copy)
    cells = {name: [_without_nan(value) for value in values] for name, values in table.items()}
    images = [member.name for member in found] if packed else [str(value or "").strip() for value in cells[image]]
    if lengths := {len(values) for values in cells.values()} - {len(images)}:
        raise DataProblem(f"{path.name} is damaged: it has {len(images)} images, but {lengths.pop()} texts")
    class_names = _class_names(schema.metadata or {}, label)
    rows = [
        Row(
            f"row index {index}",
            name,
            _captions(cells[caption][index]) if caption else None,
            _class(cells[label][index], class_names) if label else "",
        )
        for index, name in enumerate(images)
    ]
    return assemble(path, rows, columns, members=found, roots=roots)


def header(path: Path, roots: Roots = None) -> list[str]:
    """Return the names of the columns. Errors: DataProblem."""
    from pyarrow import parquet

    with _open(path, roots) as file:
        return list(parquet.read_schema(file).names)


@contextmanager
def _open(path: Path, roots: Roots) -> Iterator[IO[bytes]]:
    """Open a Parquet file. Errors while it is open: DataProblem if it cannot be read or is damaged."""
    import pyarrow

    try:
        with reading(path.name), open_within(path, roots) as file:
            yield file
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:  # the latter for a text that is not UTF-8
        raise DataProblem(f"{path.name} is no Parquet file, or is damaged: {error}") from error


def _batches(file: IO[bytes], columns: Sequence[str]) -> Iterator[Any]:
    """Yield the rows of a Parquet file in batches. Errors: DataProblem if it is a bomb, as for zips in `archives`."""
    from pyarrow import DictionaryArray, parquet

    unpacked_bytes, packed_bytes = 0, os.fstat(file.fileno()).st_size
    for batch in parquet.ParquetFile(file).iter_batches(BATCH, columns=columns):
        for values in batch.columns:  # a dictionary is shared by all rows of the file, and read again with each batch
            unpacked_bytes += (values.dictionary_decode() if isinstance(values, DictionaryArray) else values).nbytes
        unpacked_bytes += ROW_BYTES * batch.num_rows
        if unpacked_bytes > max(FREE_BYTES, MOST_RATIO * packed_bytes):
            raise DataProblem(
                f"a Parquet file of {packed_bytes:,} bytes would unpack to {unpacked_bytes:,} bytes or more: at most "
                f"{MOST_RATIO} times its own size are taken"
            )
        yield batch


def _contents(file: IO[bytes], column: str) -> Iterator[tuple[str, bytes]]:
    """Yield the content of each image of a Parquet file, named by its row."""
    row = 0
    for batch in _batches(file, [column]):
        for value in batch.column(0).to_pylist():
            content = value.get("bytes") if isinstance(value, dict) else value
            yield f"row {row}", content or b""
            row += 1


def _without_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _captions(value: Any) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [value]
    return distinct(str(text) for text in texts if text is not None)


def _class(value: Any, names: Sequence[str]) -> str:
    if isinstance(value, float) and value.is_integer():  # as pandas stores numbers with a gap
        value = int(value)
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return "" if value is None else str(value).strip()


def _class_names(metadata: dict[bytes, bytes], column: str) -> list[str]:
    """Return the class names of a column from Hugging Face's metadata; empty if there are none."""
    try:
        feature = json.loads(metadata[b"huggingface"])["info"]["features"][column]
        return [str(name) for name in feature["names"]]
    except (KeyError, TypeError, ValueError):
        return []
