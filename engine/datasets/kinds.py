"""Recognise the kind of data from a path."""

import os
from pathlib import Path

from engine.datasets import images
from engine.datasets.base import DataProblem
from engine.datasets.formats.members import entries_in, in_folder
from engine.datasets.formats.unpacked import TARS, is_tar
from engine.roots import Roots, file_within, open_within
from engine.specs.fields.clip import DataKind
from engine.words import plural, shortened

TABLES = (".csv", ".tsv", ".parquet")
TEXTS = (".txt", ".json", ".cls")


def recognise(path: Path, roots: Roots = None, above: tuple[str, ...] = ()) -> tuple[Path, DataKind]:
    """Return the path of the data and their kind. For a folder, this may be the path of the only table, the only file
    of captions or the only folder in it.

    roots: the folders that links may lead to. above: the real paths of the folders that lead here, because a link may
    lead back. Errors: DataProblem if the kind cannot be recognised.
    """
    if file_within(path, roots):
        return path, of_name(path.name)
    inside = entries_in(path, roots)
    files = [entry.path for entry in inside if not entry.is_folder]
    tables = [file for file in files if file.suffix.lower() in TABLES]
    if len(tables) > 1:
        raise DataProblem(f"{path} holds several tables: give one of {shortened([table.name for table in tables])}")
    if tables:
        return tables[0], of_name(tables[0].name)
    if any(is_tar(file.name) for file in files):
        return path, "webdataset"
    folders = [entry.path for entry in inside if entry.is_folder]
    names = [member.name for member in in_folder(path, roots)]
    pictures = [name for name in names if name.lower().endswith(images.SUFFIXES)]
    depths = {name.count("/") for name in pictures}
    stems = {_stem(name) for name in pictures}
    lists = (name for name in names if _stem(name) not in stems)  # a text beside an image is about this image alone
    captions = [name for name in lists if _lists_captions(path / name, name, roots)]
    if len(captions) > 1:
        raise DataProblem(f"{path} holds several files of captions: give one of {shortened(captions)}")
    if captions:
        return path / captions[0], "coco"
    only = folders[0] if len(folders) == 1 and os.path.realpath(folders[0]) not in above else None
    if only and 0 not in depths and (1 not in depths or _has_table_or_shards(only, roots)):
        # a zip often holds one folder that contains everything else
        return recognise(only, roots, (*above, os.path.realpath(only)))
    if any(_stem(name) in stems for name in names if name.lower().endswith(TEXTS)):
        return path, "webdataset"
    if 1 in depths:
        return path, "folder"
    if pictures and 0 not in depths:
        raise DataProblem(
            f"the folders in {path} hold no images but folders: "
            f"give one of them, such as {shortened(tuple(folder.name for folder in folders))}"
        )
    found = f"has {plural(len(pictures), 'image')} but no captions or classes" if pictures else "has no images"
    raise DataProblem(
        f"{path} {found}: put the images of each class into a folder of its own, or add a CSV of paths and captions, "
        "a .txt with the captions beside each image, a .json of captions, or shards (.tar)"
    )


def _has_table_or_shards(folder: Path, roots: Roots) -> bool:
    """Return whether a folder contains a table or shards, and so is more than a class folder."""
    files = [entry.path for entry in entries_in(folder, roots) if not entry.is_folder]
    return any(file.suffix.lower() in TABLES or is_tar(file.name) for file in files)


def _lists_captions(path: Path, name: str, roots: Roots) -> bool:
    """Return whether a file, at most one folder down, looks like COCO's or Karpathy's captions of many images."""
    if not name.lower().endswith(".json") or name.count("/") > 1:
        return False
    with open_within(path, roots) as file:
        content = file.read()
    return b'"images"' in content and (b'"caption"' in content or b'"sentences"' in content)


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def of_name(name: str) -> DataKind:
    """Return the kind of a file by its ending. Errors: DataProblem for any other ending."""
    suffix = Path(name).suffix.lower()
    if suffix in (".parquet", ".json"):
        return "parquet" if suffix == ".parquet" else "coco"
    if suffix in TABLES:
        return "csv"
    if is_tar(name):
        return "webdataset"
    raise DataProblem(
        f"{name} is not a folder and does not end in {', '.join((*TABLES, *TARS))} or .json: "
        "unpack a zip, or choose the format of another file (--data-kind)"
    )
