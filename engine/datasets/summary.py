"""Inspect data before they are used: number of pairs, classes, image sizes, and unreadable images."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import Any

import numpy as np

from engine.datasets.base import Unreadable
from engine.datasets.pairs import Pairs
from engine.words import count_captions


@dataclass(frozen=True)
class DataSummary:
    """Facts about a data set. Sizes are (width, height) of the images that were opened, compared by their number of
    pixels."""

    count: int
    captions: int
    distinct_captions: int
    classes: tuple[str, ...]
    per_class: tuple[int, ...]
    """Number of pairs of each class."""
    examples: tuple[tuple[int, str], ...]
    """(index, first caption) of pairs spread evenly over the data."""
    opened: int
    """Number of images that were opened."""
    unreadable: tuple[tuple[str, str], ...]
    """(source, reason) of the images that could not be read, in the order of the data."""
    smallest: tuple[int, int] | None
    median: tuple[int, int] | None
    largest: tuple[int, int] | None
    notes: tuple[str, ...]

    @property
    def none_readable(self) -> bool:
        """Return whether images were opened and none of them could be read."""
        return 0 < self.opened == len(self.unreadable)


def count_distinct(pairs: Pairs) -> int:
    """Return the number of distinct captions."""
    return len({caption for index in range(len(pairs)) for caption in pairs.captions(index)})


def fingerprint(pairs: Pairs) -> dict[str, Any]:
    """Return the number of pairs, and the SHA-256 of their images and of their captions, both in order.

    An image counts by the name of its file and its label, not by its folder or content: data may be moved, and reading
    all images would take too long.
    """
    images, captions = sha256(), sha256()
    for index in range(len(pairs)):
        images.update(json.dumps([pairs.source(index).rpartition("/")[2], pairs.label(index)]).encode())
        captions.update(json.dumps(pairs.captions(index)).encode())
    return {"pairs": len(pairs), "images": images.hexdigest(), "captions": captions.hexdigest()}


REPEATS = "most captions repeat"
"""Start of the warning about repeated captions."""


def captions_repeat(notes: Iterable[str]) -> bool:
    """Return whether the warning of `note_on_repeats` is among the notes of a run."""
    return any(note.startswith(REPEATS) for note in notes)


def note_on_repeats(captions: int, distinct: int | None) -> str:
    """Return a warning if at least half of the captions are repetitions, which limits recall at 1; empty if not.

    The limit is exact: equal captions rank the images equally, so at most one of them finds its own image first.
    For an image, the first of equal captions ranks before the others.
    """
    if not captions or distinct is None or 2 * distinct > captions:
        return ""
    return (
        f"{REPEATS} ({count_captions(captions, distinct)}), so text-to-image R@1 is at most "
        f"{100 * distinct / captions:.2g} %, and an image finds only the first of equal captions: judge by the "
        "held-out loss or zero-shot accuracy"
    )


def summarise(pairs: Pairs, *, examples: int = 10, deadline_s: float = inf) -> DataSummary:
    """Count all pairs and open images in random order until the deadline (seconds from now).

    examples: number of examples to return. At least one image is opened.
    """
    count = len(pairs)
    texts = [pairs.captions(index) for index in range(count)]
    labels = [
        label for index in range(count) for label in pairs.labels(index) or (pairs.label(index),) if label is not None
    ]
    shown = np.unique(np.linspace(0, count - 1, min(examples, count)).round().astype(int)) if count else ()
    sizes, broken = _open_images(pairs, deadline_s)
    sizes.sort(key=lambda size: (size[0] * size[1], size))
    return DataSummary(
        count=count,
        captions=sum(map(len, texts)),
        distinct_captions=len({caption for several in texts for caption in several}),
        classes=pairs.classes,
        per_class=tuple(int(n) for n in np.bincount(labels, minlength=len(pairs.classes))) if pairs.classes else (),
        examples=tuple((int(index), texts[index][0]) for index in shown),
        opened=len(sizes) + len(broken),
        unreadable=tuple(broken[index] for index in sorted(broken)),
        smallest=sizes[0] if sizes else None,
        median=sizes[len(sizes) // 2] if sizes else None,
        largest=sizes[-1] if sizes else None,
        notes=pairs.notes,
    )


def _open_images(pairs: Pairs, deadline_s: float) -> tuple[list[tuple[int, int]], dict[int, tuple[str, str]]]:
    """Return the sizes of the readable images, and (source, reason) of the others by index."""
    sizes: list[tuple[int, int]] = []
    broken: dict[int, tuple[str, str]] = {}
    begin = time.monotonic()
    # In random order, so that the images opened before a deadline represent the others.
    for index in np.random.RandomState(0).permutation(len(pairs)).tolist():
        if (sizes or broken) and time.monotonic() - begin > deadline_s:
            break
        try:
            sizes.append(pairs.image(index).size)
        except Unreadable as error:
            broken[index] = (pairs.source(index), error.reason)
    return sizes, broken
