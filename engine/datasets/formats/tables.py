"""Read a CSV with columns of image paths, captions and, if given, class names."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

from engine.datasets.base import DataProblem, file_identifier, reading
from engine.datasets.formats.folders import TEMPLATES
from engine.datasets.formats.members import Member
from engine.datasets.pairs import Pairs
from engine.roots import Roots, open_within
from engine.words import plural, shortened

SEPARATORS = {"tab": "\t", "comma": ",", "semicolon": ";", "bar": "|"}
LONGEST_HEADER = 100_000
"""Read at most this many characters as the header, because a file may have no line breaks."""
IMAGE_NAMES = ("filepath", "filename", "file_name", "image_path", "image", "img", "path", "file")
CAPTION_NAMES = ("title", "caption", "captions", "text", "description")
CLASS_NAMES = ("class", "label", "class_name", "classname", "category")
"""Common names of columns, the preferred first. A column of classes is chosen by its name only in zero-shot data."""


class Columns(NamedTuple):
    """Names of a table's columns; empty for a column that is missing, or that is to be recognised by a common name."""

    image: str = ""
    caption: str = ""
    label: str = ""


class Row(NamedTuple):
    """A row of a table."""

    place: str
    """Its place in the file, or the image's path, for messages: "line 2"."""
    image: str
    captions: tuple[str, ...] | None
    """None if the table has no column of captions."""
    label: str = ""


def open_table(path: Path, columns: Columns, separator: str, roots: Roots = None) -> Pairs:
    """Return the images and captions of a CSV in UTF-8 with a header. separator: if empty, found by the header.

    columns: as for `choose_columns`. Classes are sorted by name, or by number if all names are numbers. A CSV with
    classes may lack the caption column; captions are then made of the class names.
    Errors: DataProblem for another encoding or missing columns, for an image of two classes, and, with line numbers,
    for rows with too few or many cells or without a path, caption or class.
    """
    with _open_text(path, roots) as file:
        return assemble(path, _rows(file, path.name, separator, columns), columns, roots=roots)


def header(path: Path, separator: str = "", roots: Roots = None) -> list[str]:
    """Return the names of a CSV's columns. Errors: DataProblem."""
    with _open_text(path, roots) as file:
        first = file.readline(LONGEST_HEADER)
        return _cells(first, _delimiter(separator, first))


def check_columns(path: Path, columns: Columns, separator: str, roots: Roots = None) -> None:
    """Check the header and the first row of a CSV. Errors: DataProblem, as of `open_table`."""
    with _open_text(path, roots) as file:
        next(_rows(file, path.name, separator, columns), None)


@contextmanager
def _open_text(path: Path, roots: Roots) -> Iterator[TextIO]:
    try:
        with reading(path.name), TextIOWrapper(open_within(path, roots), newline="", encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as error:
        raise DataProblem(f"{path.name} is not in UTF-8 ({error.reason}): save it as CSV UTF-8") from error


def assemble(
    path: Path,
    rows: Iterable[Row],
    columns: Columns,
    *,
    members: Sequence[Member] = (),
    held: tuple[bool, ...] = (),
    notes: Sequence[str] = (),
    roots: Roots = None,
) -> Pairs:
    """Return the pairs of a table. Rows with the same image are captions of one pair, so that no image is in both parts
    of a split. The path of an image may be spelled in several ways.

    members: the image of each row inside another file, all different; empty if images are files of their own. held:
    True for each pair that the data's own split holds out.
    Errors: DataProblem for incomplete rows and for an image of two classes.
    """
    identify, folder = file_identifier(), str(path.parent / "-").removesuffix("-")

    def placed(image: str) -> str:
        return image if image.startswith("/") else folder + image  # as pathlib does, which takes 10 µs

    # All keys are the real paths of images, except in `several`. Inner dicts are ordered sets; one for each image would
    # double the memory.
    captions: dict[str, tuple[str, ...]] = {}
    repeated: dict[str, dict[str, None]] = {}  # captions of images with several rows
    spelled: dict[str, str] = {}  # the first spelling of a path, if it is not the real path
    classes: dict[str, str] = {}
    several: dict[str, dict[str, None]] = {}  # classes of images that have more than one
    count = 0
    incomplete: list[str] = []
    for place, image, texts, label in rows:
        count += 1
        has_captions = texts is None or (texts and all(texts))
        if not (image and has_captions and (label or not columns.label)):
            incomplete.append(place)
            continue
        found = dict.fromkeys(texts or ())
        real = identify(file := placed(image))
        if real in captions:
            repeated.setdefault(real, dict.fromkeys(captions[real])).update(found)
        else:
            captions[real] = tuple(found)
            if real != file:
                spelled[real] = file
        if columns.label and (first := classes.setdefault(real, label)) != label:
            several.setdefault(image, {first: None})[label] = None
    if incomplete:
        missing = ("an image", "a caption", *(["a class"] if columns.label else []))
        raise DataProblem(
            f"{path.name} has {plural(len(incomplete), 'row')} without {' or '.join(missing)}: "
            f"{shortened(tuple(incomplete))}. Fill them in or take them out"
        )
    if not captions:
        raise DataProblem(f"{path.name} has no rows")
    if several:
        listed = [f"{image} ({', '.join(labels)})" for image, labels in several.items()]
        raise DataProblem(f"{path.name} gives {plural(len(several), 'image')} more than one class: {shortened(listed)}")
    captions |= {real: tuple(texts) for real, texts in repeated.items()}
    names, labels = _labels([*classes.values()])
    notes = [*notes]
    if count > len(captions):
        notes.append(f"{count:,} rows are captions of {plural(len(captions), 'image')}")
    if not all(captions.values()):
        column = repr(columns.caption) if columns.caption else "of captions"
        notes.append(f"there is no column {column}: captions are made of the class names")
    texts_of = [
        texts or tuple(template.replace("{}", names[labels[place]]) for template in TEMPLATES)
        for place, texts in enumerate(captions.values())
    ]
    files: Sequence[str | Member] = members or [spelled.get(real, real) for real in captions]
    return Pairs(path.stem, files, texts_of, labels, classes=names, notes=tuple(notes), held=held, roots=roots)


def _labels(classes: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    """Return the sorted class names, and the number of each image's class. classes: the name of each image's class."""
    numeric = all(name.isdecimal() for name in classes)
    names = sorted(set(classes), key=lambda name: (int(name) if numeric else 0, name))
    places = {name: place for place, name in enumerate(names)}
    return tuple(names), [places[name] for name in classes]


def recognised(header: Sequence[str], names: Sequence[str]) -> str:
    """Return the column with the first of these names that occurs, in any case of letters; empty if there is none."""
    columns = {column.lower(): column for column in header}
    return next((columns[name] for name in names if name in columns), "")


def choose_columns(header: Sequence[str], columns: Columns, name: str, delimiter: str = "") -> Columns:
    """Return the names of the columns; empty for a column that is missing.

    columns: without a name, images and captions are recognised by common names, and there are no classes. The column of
    captions may be missing if there are classes. name: of the table, for messages. delimiter: the separator of a CSV.
    Errors: DataProblem for missing and double columns.
    """
    image, caption, label = columns
    image, caption = image or recognised(header, IMAGE_NAMES), caption or recognised(header, CAPTION_NAMES)
    chosen = {"images": image, "captions": "" if label and caption not in header else caption, "classes": label}
    required = {"images"} if label else {"images", "captions"}
    for what, column in chosen.items():
        valid = header.count(column) == 1 if column else what not in required
        if valid:
            continue
        found = ", ".join(repr(cell[:40]) for cell in header[:20]) or "nothing"
        known = ", ".join(IMAGE_NAMES if what == "images" else CAPTION_NAMES)
        field = "Image column (--csv-img-key)" if what == "images" else "Caption column (--csv-caption-key)"
        needed = (
            f"needs one column called {column!r}, but has {header.count(column)}"
            if column
            else f"has no column of {what} with a common name ({known}). Choose it in {field}"
        )
        raise DataProblem(
            f"{name} {needed}. Its columns{f', separated by {delimiter!r},' if delimiter else ''} are {found}."
        )
    return Columns(*chosen.values())


def _rows(file: TextIO, name: str, separator: str, columns: Columns) -> Iterator[Row]:
    """Yield the rows, each with its first line's number. columns: as for `choose_columns`. Errors: DataProblem."""
    line = 1
    try:
        first = file.readline(LONGEST_HEADER)
        if not first.strip():
            blank = f"the first line of {name} is blank: it must name the columns"
            raise DataProblem(blank if first else f"{name} is empty")
        delimiter = _delimiter(separator, first, columns)
        header = _cells(first, delimiter)
        image, caption, label = (
            header.index(column) if column else None for column in choose_columns(header, columns, name, delimiter)
        )
        assert image is not None
        # strict: without it, a quote that is never closed would swallow all following rows
        reader = csv.reader(chain([first], file), delimiter=delimiter, strict=True)
        next(reader)
        line = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(header):
                raise DataProblem(
                    f"{name} has {len(row)} cells on line {line}, but {len(header)} in its header. "
                    f"Put quotes around each cell that contains {delimiter!r} or a line break."
                )
            if row:
                yield Row(
                    f"line {line}",
                    row[image].strip(),
                    None if caption is None else (row[caption].strip(),),
                    "" if label is None else row[label].strip(),
                )
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataProblem(
            f"{name}, in the row that begins on line {line}: {error}. "
            'A cell that begins with a quote ends with one, and quotes inside it are doubled: "He said ""hi"""'
        ) from error


def _delimiter(separator: str, header: str, columns: tuple[str, ...] = ()) -> str:
    """Return the character that a separator names; if empty, the one that `_detect_delimiter` finds."""
    if not separator:
        return _detect_delimiter(header, columns)
    delimiter = {"\\t": "\t", **SEPARATORS}.get(separator, separator)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise DataProblem(f"{separator!r} cannot separate columns: give one character, or {', '.join(SEPARATORS)}")
    return delimiter


def _detect_delimiter(header: str, columns: tuple[str, ...]) -> str:
    """Return the character by which the header contains all `columns`; else a column of images with a common name;
    else the most columns."""

    def fit(delimiter: str) -> tuple[bool, bool, int]:
        cells = _cells(header, delimiter)
        return set(filter(None, columns)) <= set(cells), bool(recognised(cells, IMAGE_NAMES)), len(cells)

    return max(SEPARATORS.values(), key=fit)


def _cells(header: str, delimiter: str) -> list[str]:
    return [cell.strip() for row in csv.reader([header], delimiter=delimiter) for cell in row]
