"""Read captions in COCO's or Karpathy's format: a .json of images with several captions each."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.datasets.base import DataProblem, distinct, reading
from engine.datasets.members import Listed
from engine.datasets.tables import Row, assemble
from engine.roots import Roots, file_within, open_within
from engine.specs.clip import JsonSplit

HELD_OUT, TEST = "val", "test"
TRAIN = ("train", "restval")
"""Karpathy's parts to train on: restval are the pairs of COCO's validation set that are in neither val nor test."""


def open_captions(path: Path, part: JsonSplit = "auto", roots: Roots = None) -> Listed:
    """Return the images and captions of a COCO or Karpathy JSON.

    part: the split to return. auto: all splits but test, with val held out. Errors: DataProblem.
    """
    with reading(path.name), open_within(path, roots) as file:
        content = file.read()
    try:
        found = list(_images(json.loads(content)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataProblem(
            f"{path.name} is no JSON of captions ({type(error).__name__}: {error}): expected COCO's (images with id "
            "and file_name, annotations with image_id and caption) or Karpathy's (images with filename, sentences, "
            "split)"
        ) from error
    splits = {split for _, _, split in found}
    if part != "auto" and splits <= {""}:
        raise DataProblem(f"{path.name} has no splits, so there is no part {part!r}: leave json_split at auto")
    wanted = {"auto": splits - {TEST}, "train": {*TRAIN}}.get(part, {part})
    chosen = [(names, texts, split) for names, texts, split in found if split in wanted and texts]
    if not chosen:
        raise DataProblem(f"{path.name} has no images with captions" + (f" in {part}" if part != "auto" else ""))
    pattern = _path_pattern(path, chosen[0][0], roots)
    rows = [Row(str(line), pattern.format(**names), texts, "") for line, (names, texts, _) in enumerate(chosen, 1)]
    if len({row.image for row in rows}) < len(rows):
        raise DataProblem(f"{path.name} has several entries for the same image: give one with all captions")
    held = tuple(split == HELD_OUT for *_, split in chosen) if part == "auto" else ()
    notes = [f"{len(found) - len(chosen):,} images of other splits or without captions are left out"]
    if any(held) and not all(held):
        notes.append(f"the split of the file is used: {sum(held):,} pairs of {HELD_OUT} are held out")
    else:
        held = ()
    return assemble(path, rows, held=held, notes=notes[len(found) == len(chosen) :], roots=roots)


def _images(content: Any) -> Iterator[tuple[dict[str, str], tuple[str, ...], str]]:
    """Yield names of each image's file and folder, its captions, and its split, which is empty in COCO's files."""
    texts: dict[Any, list[str]] = {}
    for annotation in content.get("annotations", ()):
        texts.setdefault(annotation["image_id"], []).append(annotation["caption"])
    for image in content["images"]:
        if "annotations" in content:
            name, folder = image["file_name"], str(image.get("coco_url", "")).rpartition("/")[0].rpartition("/")[2]
            captions = texts.get(image["id"], [])
        else:
            name, folder = image["filename"], image.get("filepath", "")
            captions = [sentence["raw"] for sentence in image["sentences"]]
        split = "" if "annotations" in content else image.get("split", "")
        yield {"name": name, "folder": folder}, distinct(captions), split


def _path_pattern(path: Path, names: dict[str, str], roots: Roots) -> str:
    """Return the pattern that makes an image's path, relative to the JSON, of `names`. Errors: DataProblem."""
    patterns = [f"{above}{below}" for below in ("{folder}/{name}", "images/{name}", "{name}") for above in ("", "../")]
    patterns = [pattern for pattern in patterns if names["folder"] or "{folder}" not in pattern]
    tried = [pattern.format(**names) for pattern in patterns]
    for pattern, name in zip(patterns, tried, strict=True):
        if file_within(path.parent / name, roots):
            return pattern
    raise DataProblem(f"{path.name} names images that are not there: {path.parent} has none of {', '.join(tried)}")
