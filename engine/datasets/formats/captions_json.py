"""Read captions in COCO's or Karpathy's format: a .json of images with several captions each."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NotRequired, final

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from engine.datasets.base import DataProblem, distinct, reading
from engine.datasets.formats.tables import Columns, Row, assemble
from engine.datasets.pairs import Pairs
from engine.roots import Roots, file_within, open_within
from engine.specs.base import describe_error
from engine.specs.fields.clip import JsonSplit
from engine.words import plural

LOOKED_FOR = 100
"""Look for this many images to find their folder, because some may be missing."""
HELD_OUT, TEST = "val", "test"
TRAIN = ("train", "restval")
"""Karpathy's parts to train on: restval are the pairs of COCO's validation set that are in neither val nor test."""


class _CocoImage(TypedDict):
    id: int | str
    file_name: str
    coco_url: NotRequired[str | None]


class _Annotation(TypedDict):
    image_id: int | str
    caption: str


@final
class _Coco(TypedDict):
    images: list[_CocoImage]
    annotations: list[_Annotation]


class _Sentence(TypedDict):
    raw: str


class _KarpathyImage(TypedDict):
    filename: str
    filepath: NotRequired[str | None]
    sentences: list[_Sentence]
    split: NotRequired[str]


@final
class _Karpathy(TypedDict):
    images: list[_KarpathyImage]


PARTS = (_CocoImage, _Annotation, _Coco, _Sentence, _KarpathyImage, _Karpathy)
KEYS = frozenset(key for part in PARTS for key in part.__annotations__)
"""Keys that are kept: most of a file are others, such as the words of each caption, which take a gigabyte."""


def open_captions(path: Path, part: JsonSplit = "auto", roots: Roots = None) -> Pairs:
    """Return the images and captions of a COCO or Karpathy JSON.

    part: the split to return. auto: all splits but test, with val held out. Errors: DataProblem.
    """
    content = _load(path, roots)
    notes = list(_notes_on_ids(content, path.name)) if "annotations" in content else []
    found = list(_coco(content) if "annotations" in content else _karpathy(content))
    splits = {split for _, _, split in found}
    if part != "auto" and splits <= {""}:
        raise DataProblem(f"{path.name} has no splits, so there is no part {part!r}: leave json_split at auto")
    wanted = {"auto": splits - {TEST}, "train": {*TRAIN}}.get(part, {part})
    chosen = [(names, texts, split) for names, texts, split in found if split in wanted and texts]
    if not chosen:
        place = f"in {part}" if part != "auto" else f"except in {TEST}: choose this part with json_split"
        raise DataProblem(f"{path.name} has no images with captions" + f" {place}" * (part != "auto" or TEST in splits))
    patterns = {
        has_folder: _path_pattern(path, alike, roots)
        for has_folder in (True, False)
        if (alike := [names for names, *_ in chosen if bool(names["folder"]) is has_folder])
    }
    rows = [Row(image := patterns[bool(names["folder"])].format(**names), image, texts) for names, texts, _ in chosen]
    if left_out := len(found) - len(chosen):
        notes.append(f"{plural(left_out, 'image')} of other splits or without captions left out")
    held = tuple(split == HELD_OUT for *_, split in chosen)
    if any(held) and not all(held):
        notes.append(f"the file has its own split: {sum(held):,} of {plural(len(held), 'pair')} in {HELD_OUT}")
    else:
        held = ()
    pairs = assemble(path, rows, Columns(), held=held, notes=notes, roots=roots)
    if len(pairs) < len(rows):
        raise DataProblem(f"{path.name} has several entries for the same image: give one with all captions")
    return pairs


def _load(path: Path, roots: Roots) -> _Coco | _Karpathy:
    """Return the content of a file. Errors: DataProblem, which names the place of what is wrong."""
    with reading(path.name), open_within(path, roots) as file:
        content = file.read()
    try:
        parsed = json.loads(content, object_hook=_known_keys)
        if not isinstance(parsed, dict):
            raise TypeError(f"it holds a {type(parsed).__name__} instead of an object with images")
        adapter: TypeAdapter[_Coco | _Karpathy] = TypeAdapter(_Coco if "annotations" in parsed else _Karpathy)
        return adapter.validate_python(parsed)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        value = "" if first["type"] == "missing" else f"is {json.dumps(first['input'])[:40]}: "
        reason = f"{place} {value}{describe_error(first)}"
    except (ValueError, TypeError, RecursionError) as error:
        reason = str(error)
    raise DataProblem(
        f"{path.name} is no JSON of captions ({reason}): expected COCO's (images with id and file_name, annotations "
        "with image_id and caption) or Karpathy's (images with filename, sentences, split)"
    )


def _known_keys(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key in KEYS}


def _notes_on_ids(content: _Coco, name: str) -> Iterator[str]:
    """Yield a note on captions of images that are not listed. Errors: DataProblem if all captions are."""
    ids = {image["id"] for image in content["images"]}
    strange = [id for annotation in content["annotations"] if (id := annotation["image_id"]) not in ids]
    if ids and strange and len(strange) == len(content["annotations"]):
        raise DataProblem(
            f"{name} has no captions of its images: no image_id, such as {strange[0]!r}, is among the ids of the "
            f"images, such as {content['images'][0]['id']!r}"
        )
    if strange:
        yield f"{plural(len(strange), 'caption')} left out: their image_id, such as {strange[0]!r}, is not among images"


def _coco(content: _Coco) -> Iterator[tuple[dict[str, str], tuple[str, ...], str]]:
    """Yield names of each image's file and folder, its captions, and an empty split."""
    texts: dict[int | str, list[str]] = {}
    for annotation in content["annotations"]:
        texts.setdefault(annotation["image_id"], []).append(annotation["caption"])
    for image in content["images"]:
        folder = (image.get("coco_url") or "").rpartition("/")[0].rpartition("/")[2]
        yield {"name": image["file_name"], "folder": folder}, distinct(texts.get(image["id"], ())), ""


def _karpathy(content: _Karpathy) -> Iterator[tuple[dict[str, str], tuple[str, ...], str]]:
    """Yield names of each image's file and folder, its captions, and its split."""
    for image in content["images"]:
        names = {"name": image["filename"], "folder": image.get("filepath") or ""}
        yield names, distinct(sentence["raw"] for sentence in image["sentences"]), image.get("split", "")


def _path_pattern(path: Path, images: Sequence[dict[str, str]], roots: Roots) -> str:
    """Return the pattern that makes an image's path, relative to the JSON, of its names.

    images: names of images of which either all have a folder or none. Errors: DataProblem.
    """
    patterns = [f"{above}{below}" for below in ("{folder}/{name}", "images/{name}", "{name}") for above in ("", "../")]
    patterns = [pattern for pattern in patterns if images[0]["folder"] or "{folder}" not in pattern]
    for names in images[:LOOKED_FOR]:
        for pattern in patterns:
            if file_within(path.parent / pattern.format(**names), roots):
                return pattern
    tried = [pattern.format(**images[0]) for pattern in patterns]
    raise DataProblem(f"{path.name} names images that are not there: {path.parent} has none of {', '.join(tried)}")
