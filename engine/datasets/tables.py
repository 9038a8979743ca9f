"""Read a CSV with a column of image paths and a column of captions."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import TextIO

from PIL import Image

from engine.datasets import images
from engine.datasets.base import DataProblem
from engine.roots import Roots, open_within
from engine.words import shortened

SEPARATORS = {"tab": "\t", "comma": ",", "semicolon": ";", "bar": "|"}
LONGEST_HEADER = 100_000


@dataclass(frozen=True, eq=False)
class Table:
    """The images of a CSV. Rows with the same image become its captions, so that no image is in both parts of a
    split."""

    name: str
    folder: Path
    """Folder of the CSV, to which image paths are relative."""
    files: list[str]
    texts: list[tuple[str, ...]]
    roots: Roots = None
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def image(self, index: int) -> Image.Image:
        return images.read(self.folder / self.files[index], self.roots)

    def captions(self, index: int) -> tuple[str, ...]:
        return self.texts[index]

    def label(self, index: int) -> None:
        return None

    def source(self, index: int) -> str:
        return str(self.folder / self.files[index])


def open_table(path: Path, *, separator: str, image_column: str, caption_column: str, roots: Roots = None) -> Table:
    """Return the images and captions of a CSV in UTF-8 with a header. separator: if empty, the header decides.

    Errors: DataProblem for another encoding or missing columns, and, with line numbers, for rows with too few or many
    cells or without a path or caption.
    """
    captions: dict[str, dict[str, None]] = {}  # the inner dicts are ordered sets
    rows = 0
    incomplete: list[str] = []
    try:
        with TextIOWrapper(open_within(path, roots), newline="", encoding="utf-8-sig") as file:
            for line, file_name, caption in _rows(file, path.name, separator, image_column, caption_column):
                rows += 1
                if file_name and caption:
                    captions.setdefault(file_name, {})[caption] = None
                else:
                    incomplete.append(str(line))
    except UnicodeDecodeError as error:
        raise DataProblem(f"{path.name} is not in UTF-8 ({error.reason}): save it as CSV UTF-8") from error
    except OSError as error:
        raise DataProblem(f"{path.name} cannot be read: {error.strerror}") from error
    if incomplete:
        raise DataProblem(
            f"{path.name} has {len(incomplete)} rows without an image or a caption, on lines "
            f"{shortened(tuple(incomplete))}: fill them in or take them out"
        )
    if not captions:
        raise DataProblem(f"{path.name} has a header and no rows")
    several = f"{rows:,} rows are captions of {len(captions):,} images"
    return Table(
        name=path.stem,
        folder=path.parent,
        files=list(captions),
        texts=[tuple(found) for found in captions.values()],
        roots=roots,
        notes=(several,) if rows > len(captions) else (),
    )


def _rows(
    file: TextIO, name: str, separator: str, image_column: str, caption_column: str
) -> Iterator[tuple[int, str, str]]:
    """Yield each row's first line number, image path and caption. Errors: DataProblem."""
    columns = (image_column, caption_column)
    line = 1
    try:
        first = file.readline(LONGEST_HEADER)
        sign = _sign(separator) if separator else _told_by(first, columns)
        header = _cells(first, sign)
        _check_header(header, columns, sign, name)
        # strict: without it, a quote that is never closed would swallow all following rows
        reader = csv.reader(chain([first], file), delimiter=sign, strict=True)
        next(reader)
        line = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(header):
                raise DataProblem(
                    f"{name} has {len(row)} cells on line {line} and {len(header)} in its header: "
                    f"a cell with a {sign!r} or a line break in it stands in quotes"
                )
            if row:
                yield line, row[header.index(image_column)].strip(), row[header.index(caption_column)].strip()
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataProblem(
            f"{name}, in the row that begins on line {line}: {error}. "
            'A cell that begins with a quote ends with one, and quotes inside it are doubled: "He said ""hi"""'
        ) from error


def _check_header(header: list[str], columns: tuple[str, ...], sign: str, name: str) -> None:
    for column in columns:
        if header.count(column) != 1:
            found = ", ".join(repr(cell[:40]) for cell in header[:20]) or "nothing"
            raise DataProblem(
                f"{name} needs one column called {column!r} and has {header.count(column)}: "
                f"separated by {sign!r}, its header names {found}"
            )


def _sign(separator: str) -> str:
    sign = {"\\t": "\t", **SEPARATORS}.get(separator, separator)
    if len(sign) != 1 or sign in '"\r\n':
        raise DataProblem(f"{separator!r} cannot separate columns: give one character, or {', '.join(SEPARATORS)}")
    return sign


def _told_by(header: str, columns: tuple[str, ...]) -> str:
    """Return the separator that gives all columns in the header; if there is none, the one that gives most columns."""
    signs = SEPARATORS.values()
    return max(signs, key=lambda sign: (set(columns) <= set(_cells(header, sign)), len(_cells(header, sign))))


def _cells(header: str, sign: str) -> list[str]:
    return [cell.strip() for row in csv.reader([header], delimiter=sign) for cell in row]
