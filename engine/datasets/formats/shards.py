"""Webdataset shards, and folders that hold the same files unpacked: images with their captions beside them."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from engine.datasets.base import DataProblem
from engine.datasets.formats import members
from engine.datasets.formats.folders import TEMPLATES
from engine.datasets.formats.members import Member, Sample
from engine.datasets.formats.unpacked import INDEX, copy_of, delete_unused, plain_tar
from engine.datasets.pairs import Pairs
from engine.roots import Roots, expand_home, file_within, open_within
from engine.specs.fields.clip import check_templates
from engine.words import plural, shortened

MOST_SHARDS = 100_000
BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(\d{1,12})\.\.(\d{1,12})")
CLASS_NAMES, CLASS_TEMPLATES = "classnames.txt", "zeroshot_classification_templates.txt"
"""Files with one name or template per line, beside the shards or one folder above, as in CLIP benchmark."""


class Shard(NamedTuple):
    """The content of a tar."""

    samples: list[Sample | None]
    dotted: list[str]
    """Images that are left out because their name has a dot."""
    has_end: bool
    """Whether it ends with an end mark."""


def open_shards(pattern: str, roots: Roots = None) -> Pairs:
    """Return the samples of the shards that match a pattern such as `data/{000..071}.tar`. Errors: DataProblem."""
    paths = [expand_home(name) for name in expand(pattern)]
    if absent := [str(path) for path in paths if not file_within(path, roots)]:
        raise DataProblem(f"{len(absent):,} of {plural(len(paths), 'shard')} missing: {shortened(absent)}")
    return open_tars(paths, _name(pattern), roots)


def open_tars(paths: Sequence[Path], name: str, roots: Roots = None) -> Pairs:
    """Return the samples of tars, one after the other. Errors: DataProblem."""
    found: list[Sample | None] = []
    dotted: list[str] = []
    cut: list[str] = []
    notes: list[str] = []
    for path in paths:
        shard = _open_tar(path, roots)
        if not shard.has_end:
            cut.append(path.name)
        found += shard.samples
        dotted += shard.dotted
    delete_unused()  # once for all indexes, of which there may be thousands
    pairs = _to_pairs(found, name, paths[0].parent, roots)
    if cut:
        notes.append(f"{plural(len(cut), 'tar')} without an end mark may be cut short: {shortened(cut)}")
    if dotted:
        notes.append(
            f"{plural(len(dotted), 'image')} with a dot in the name left out, because in a webdataset the type of a "
            f"file begins at the first dot: {shortened(dotted)}"
        )
    return replace(pairs, notes=(*notes, *pairs.notes))


def _open_tar(path: Path, roots: Roots) -> Shard:
    """Return the content of a tar, from its index if there is one: to read a tar takes 0.1 ms per sample."""
    plain = plain_tar(path, roots)
    try:
        index = copy_of(path, roots, lambda _, copy: copy.write(_index(path, plain, roots)), INDEX)
        samples, dotted, has_end = json.loads(index.read_bytes())
    except (DataProblem, OSError, ValueError):  # the disk is full, the index or the tar is damaged
        samples, dotted, has_end = json.loads(_index(path, plain, roots))
    origin = str(path) if path != plain else ""

    def sample(name: str, offset: int, size: int, captions: list[str], label: Any, labels: list[int] | None) -> Sample:
        image = Member(name, str(plain), offset, size, origin)
        return Sample(image, tuple(captions), label, None if labels is None else tuple(labels))

    return Shard([row and sample(*row) for row in samples], dotted, has_end)


def _index(path: Path, plain: Path, roots: Roots) -> bytes:
    """Return the content of a tar as JSON: a Shard, with the places of images inside it. Errors: DataProblem."""
    files, has_end = members.in_tar(path, plain, roots)
    with open_within(plain, roots) as file:
        found = _samples(files, members.WEBDATASET_KEY, path, lambda member: member.read_from(file))
    rows = [sample and (sample.image.name, sample.image.offset, sample.image.size, *sample[1:]) for sample in found]
    return json.dumps((rows, members.dotted_images(files), has_end)).encode()


def open_unpacked(folder: Path, roots: Roots = None) -> Pairs:
    """Return the samples of a folder: images with captions or a class beside them. Errors: DataProblem."""
    files = sorted(members.in_folder(folder, roots), key=lambda member: member.name.rpartition(".")[0])
    found = _samples(files, members.FILE_KEY, folder, lambda member: member.read(roots))
    return _to_pairs(found, folder.name, folder, roots)


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern stands for. Errors: DataProblem if there are too many.

    `{000..002}` is 000, 001 and 002; `{a,b}` is a and b; any other brace is kept as it is.
    """
    pieces: list[Sequence[str]] = []
    end = 0
    for brace in BRACES.finditer(pattern):
        pieces += [[pattern[end : brace.start()]], _choices(brace)]
        end = brace.end()
    if (count := prod(map(len, pieces))) > MOST_SHARDS:
        raise DataProblem(f"{pattern} names {count:,} shards, at most {MOST_SHARDS:,} are opened")
    return ["".join(parts) for parts in product(*pieces, [pattern[end:]])]


def _choices(brace: re.Match[str]) -> Sequence[str]:
    if match := RANGE.fullmatch(brace[1]):
        first, last = int(match[1]), int(match[2])
        if abs(last - first) >= MOST_SHARDS:
            raise DataProblem(f"{brace[0]} names {abs(last - first) + 1:,} shards, at most {MOST_SHARDS:,} are opened")
        padded = any(text.startswith("0") and len(text) > 1 for text in match.groups())
        width = max(map(len, match.groups())) if padded else 0
        numbers = range(first, last + 1) if first <= last else range(first, last - 1, -1)
        return [str(number).zfill(width) for number in numbers]
    return brace[1].split(",") if "," in brace[1] else [brace[0]]


def _name(pattern: str) -> str:
    """Return a name for a pattern: `cc3m` for `data/cc3m-{000..331}.tar`; the folder's name if a shard's is only a
    number."""
    path = Path(pattern)
    return path.stem.partition("{")[0].rstrip("-_. ") or path.absolute().parent.name


def _samples(
    found: list[Member], key: re.Pattern[str], where: Path, read: Callable[[Member], bytes]
) -> list[Sample | None]:
    try:
        return list(members.samples(found, key, read))
    except (OSError, ValueError) as error:
        raise DataProblem(f"{where}: {error}") from error


def _to_pairs(found: list[Sample | None], name: str, folder: Path, roots: Roots) -> Pairs:
    """Return the samples with class names and templates. Images without a caption or a class name are left out.

    Errors: DataProblem if no sample is left, or if a label has no class name.
    """
    classes = _lines(folder, CLASS_NAMES, roots)
    templates = tuple(line.replace("{c}", "{}") for line in _lines(folder, CLASS_TEMPLATES, roots))
    try:
        check_templates(templates, sets=())
    except ValueError as error:
        raise DataProblem(f"{CLASS_TEMPLATES} of {name}: {error}") from error
    usable = [sample for sample in found if sample and (sample.captions or classes)]
    unnamed = sum(sample is not None for sample in found) - len(usable)
    if not usable and unnamed:
        raise DataProblem(
            f"{name} has {plural(unnamed, 'image')} with a class (.cls or .npy) but no {CLASS_NAMES}: write a line "
            "with the name of each class, from 0 on, into this file beside the data or one folder above"
        )
    if not usable:
        raise DataProblem(
            f"{name} holds {plural(len(found), 'image')}, none with a caption: expected "
            f"{', '.join(members.IMAGES[:4])} files, each with a .txt or .json of the same name beside it, or a .cls "
            "or .npy and all classes in classnames.txt"
        )
    numbers = [(sample.labels or ()) if sample.label is None else (sample.label,) for sample in usable]
    largest = max((number for several in numbers for number in several), default=-1)
    if classes and largest >= len(classes):
        raise DataProblem(f"{name} has a class {largest}, and {CLASS_NAMES} names {len(classes)}, from 0 on")
    texts = [
        sample.captions
        or tuple(t.replace("{}", ", ".join(classes[n] for n in several) or "thing") for t in templates or TEMPLATES)
        for sample, several in zip(usable, numbers, strict=True)
    ]
    left_out = f"{plural(len(found) - len(usable), 'image')} without a caption left out"
    if unnamed:
        left_out += f", {unnamed:,} of them with a class, because there is no {CLASS_NAMES}"
    notes = (left_out,) if len(usable) < len(found) else ()
    return Pairs(
        name,
        [sample.image for sample in usable],
        texts,
        [sample.label for sample in usable],
        [sample.labels for sample in usable],
        classes,
        templates,
        notes,
        roots=roots,
    )


def _lines(folder: Path, name: str, roots: Roots) -> tuple[str, ...]:
    for path in (folder / name, folder.parent / name):
        with suppress(FileNotFoundError), open_within(path, roots) as file:
            lines = file.read().decode("utf-8-sig", errors="replace").splitlines()
            return tuple(line.strip() for line in lines if line.strip())
    return ()
