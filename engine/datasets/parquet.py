"""Read Parquet with a column of images, as paths or as files' contents, and a column of captions or classes."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from engine.datasets import members, unpacked
from engine.datasets.base import DataProblem, distinct, reading
from engine.datasets.members import Listed, Member
from engine.datasets.tables import Columns, Row, assemble, choose_columns
from engine.roots import Roots, open_within

BATCH = 64
"""Rows whose images are in memory at the same time."""


def open_parquet(path: Path, columns: Columns, roots: Roots = None) -> Listed:
    """Return the pairs of a Parquet file. Images are paths, contents, or structs of both as Hugging Face's.

    columns: as for `choose_columns`. Contents are unpacked once, into a copy. Classes are texts, or numbers whose names
    are in the file's metadata. Errors: DataProblem.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with reading(path.name), open_within(path, roots) as file:
            schema = parquet.read_schema(file)
            image, caption, label = choose_columns(schema.names, columns, path.name)
            kind = schema.field(image).type
            fields = {kind.field(place).name for place in range(kind.num_fields)}
            packed = "bytes" in fields or pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)
            needed = list(filter(None, ("" if packed else image, caption, label)))
            table = parquet.read_table(file, columns=needed).to_pydict()
            texts = {name: [_without_nan(value) for value in values] for name, values in table.items()}
    except pyarrow.ArrowException as error:
        raise DataProblem(f"{path.name} is no Parquet file, or is damaged: {error}") from error
    found: list[Member] = []
    if packed:
        copy = unpacked.copy_of(path, roots, lambda file, copy: _unpack(file, copy, image))
        found = [member._replace(origin=str(path)) for member in members.in_tar(copy)]
    names = _class_names(schema.metadata or {}, label)
    count = len(found) if packed else len(texts[image])
    rows = [
        Row(
            f"row index {row}",
            found[row].name if packed else str(texts[image][row] or "").strip(),
            _captions(texts[caption][row]) if caption else None,
            _class(texts[label][row], names) if label else "",
        )
        for row in range(count)
    ]
    return assemble(path, rows, columns, members=found, roots=roots)


def header(path: Path, roots: Roots = None) -> list[str]:
    """Return the names of the columns. Errors: DataProblem."""
    import pyarrow
    from pyarrow import parquet

    try:
        with open_within(path, roots) as file:
            return list(parquet.read_schema(file).names)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataProblem(f"{path.name} cannot be read: {error}") from error


def _unpack(file: IO[bytes], copy: IO[bytes], column: str) -> None:
    """Write each image of a Parquet file into a tar, named by its row."""
    from pyarrow import parquet

    def images() -> Iterator[tuple[str, bytes]]:
        row = 0
        for batch in parquet.ParquetFile(file).iter_batches(BATCH, columns=[column]):
            for value in batch.column(0).to_pylist():
                content = value.get("bytes") if isinstance(value, dict) else value
                yield f"row {row}", content or b""
                row += 1

    unpacked.write_tar(images(), copy)


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
