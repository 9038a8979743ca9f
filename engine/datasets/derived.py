"""Sets of pairs made of others: a part, a mixture of several, or one whose images have several classes.

Parts are drawn with a seed. The same seed gives the same pairs on any machine.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.datasets.base import DataProblem, Unreadable, distinct, file_identifier
from engine.datasets.pairs import Pairs
from engine.roots import Roots
from engine.words import plural

Mask = NDArray[np.bool_]
"""(N,) bool: True for each of N pairs that is meant."""


def choose_held_out(pairs: Pairs, fraction: float, seed: int) -> Mask:
    """Return which pairs are held out, with nearly the same share of each label. Neither part is empty.

    Data with their own split, such as Karpathy's split of COCO, keep it. Fraction and seed are then ignored.

    The choice depends only on labels, fraction and seed. Pairs of rare labels are not chosen. Errors: DataProblem.
    """
    if len(pairs) < 2:
        raise DataProblem(
            f"{pairs.name} has {plural(len(pairs), 'pair')}, of which none can be held out: give other data for that"
        )
    if (own := own_split(pairs)) is not None:
        return own
    return _draw(pairs, min(max(1, round(fraction * len(pairs))), len(pairs) - 1), seed)


def split(pairs: Pairs, fraction: float, seed: int) -> tuple[Pairs, Pairs]:
    """Return the pairs to train on and the held-out ones, as `choose_held_out` chooses them. Errors: DataProblem."""
    held = choose_held_out(pairs, fraction, seed)
    return pairs.at(np.flatnonzero(~held)), pairs.at(np.flatnonzero(held))


def own_split(pairs: Pairs) -> Mask | None:
    """Return which pairs the data's own split holds out; None without a split, or if one part is empty."""
    held = np.asarray(pairs.held, dtype=bool)
    return held if 0 < held.sum() < len(held) else None


def hold_out(pairs: Pairs, val: Pairs | None, fraction: float, seed: int) -> tuple[Pairs, Pairs | None]:
    """Return the pairs to train on, and the held-out ones: those of `val` if given, else a fraction of `pairs`.

    Pairs that a split of the data holds out are never trained on. Errors: DataProblem.
    """
    if val is None and fraction:
        return split(pairs, fraction, seed)
    own, own_of_val = own_split(pairs), None if val is None else own_split(val)
    train = pairs if own is None else pairs.at(np.flatnonzero(~own))
    return train, val if val is None or own_of_val is None else val.at(np.flatnonzero(own_of_val))


def count_shared(train: Pairs, held: Pairs) -> int:
    """Return how many held-out images are also trained on, by the names of their files and their real folders."""
    identify = file_identifier()
    of_held = [identify(held.source(index)) for index in range(len(held))]
    wanted = set(of_held)  # the smaller part is kept in memory
    shared = {found for index in range(len(train)) if (found := identify(train.source(index))) in wanted}
    return sum(found in shared for found in of_held)


def note_on_shared(shared: int, count: int, kind: str = "held-out image") -> str:
    """Return a warning if images of this kind are also trained on; empty if none is. count: all of this kind."""
    return f"{shared:,} of {plural(count, kind)} also used for training" if shared else ""


def sample(pairs: Pairs, count: int, seed: int) -> Pairs:
    """Return `count` pairs drawn at random, with each label in proportion."""
    return pairs.at(np.flatnonzero(_draw(pairs, count, seed)))


def readable(pairs: Pairs, indices: Sequence[int]) -> tuple[Pairs, tuple[str, ...]]:
    """Return the pairs at `indices`, whose images can be read, and messages on all others. Errors: DataProblem.

    The images that a message names are opened again, for the reason.
    """
    others = sorted(set(range(len(pairs))).difference(indices))
    if not others:
        return pairs, ()
    names = ", ".join(dict.fromkeys(_source_and_reason(pairs, index) for index in others[:3]))
    if len(others) == len(pairs):
        raise DataProblem(f"no image can be read, such as {names}")
    message = f"{len(others)} of {plural(len(pairs), 'image')} left out as unreadable: {names}"
    return pairs.at(indices), (message,)


def _source_and_reason(pairs: Pairs, index: int) -> str:
    try:
        pairs.image(index)
    except Unreadable as error:
        return f"{pairs.source(index)} ({error.reason})"
    return pairs.source(index)


def _draw(pairs: Pairs, count: int, seed: int) -> Mask:
    """Return a mask of `count` pairs drawn at random, as evenly over the labels as possible."""
    total = len(pairs)
    labels = np.fromiter((-1 if (label := pairs.label(i)) is None else label for i in range(total)), np.int64, total)
    # RandomState, because its numbers are guaranteed to be the same in every version of numpy.
    order = np.random.RandomState(seed).permutation(total)
    by_label = np.argsort(labels[order], kind="stable")
    _, starts, sizes = np.unique(labels[order][by_label], return_index=True, return_counts=True)
    # Each label's pairs are spread over the interval from 0 to 1, and the `count` pairs nearest to 0 are drawn.
    places = np.empty(total)
    places[by_label] = (np.arange(total) - np.repeat(starts, sizes) + 0.5) / np.repeat(sizes, sizes)
    chosen = np.zeros(total, dtype=bool)
    chosen[order[np.argsort(places, kind="stable")[:count]]] = True
    return chosen


def mixed(parts: Sequence[Pairs], roots: Roots) -> Pairs:
    """Return the pairs of several sources, one source after the other. Classes with the same name become one class.

    roots: as in Pairs. Errors: DataProblem if a source has a split of its own.
    """
    if split := next((part.name for part in parts if own_split(part) is not None), ""):
        raise DataProblem(f"{split} has its own split, which a mixture cannot keep: choose a part with json_split")
    classes = tuple(dict.fromkeys(name for part in parts for name in part.classes))
    places = {name: place for place, name in enumerate(classes)}
    labels = [
        None if (label := part.label(index)) is None or not part.classes else places[part.classes[label]]
        for part in parts
        for index in range(len(part))
    ]
    return Pairs(
        "+".join(part.name for part in parts),
        [file for part in parts for file in part.files],
        [texts for part in parts for texts in part.texts],
        labels,
        classes=classes,
        templates=tuple(dict.fromkeys(template for part in parts for template in part.templates)),
        notes=tuple(f"{part.name}: {note}" for part in parts for note in part.notes),
        parts=[number for number, part in enumerate(parts) for _ in range(len(part))],
        roots=roots,
    )


def weights(pairs: Pairs, of_sources: Sequence[float]) -> NDArray[np.float64] | None:
    """Return how often each pair is drawn, relative to the others, (N,) float64; None if all are drawn equally often.

    of_sources: one number per source of a mixture, for each of its pairs; empty if all are equal.
    """
    return None if len(set(of_sources)) < 2 else np.asarray(of_sources, dtype=np.float64)[np.asarray(pairs.parts)]


def with_classes_split(pairs: Pairs, separator: str) -> Pairs:
    """Return the pairs with class names such as `cat;dog`, which each name several classes, split at a separator.

    In captions that were made of class names, the names are then separated by commas. Data whose class names have no
    separator get a note: each of their images has one class.
    """
    if not (separator and pairs.classes) or pairs.several:
        return pairs
    if not any(separator in name for name in pairs.classes):
        note = f"no class name has the separator {separator!r}, so each image has one class"
        return replace(pairs, notes=(*pairs.notes, note))
    names = [distinct(joined.split(separator)) for joined in pairs.classes]
    classes = tuple(sorted({name for names_of_one in names for name in names_of_one}))
    places = {name: place for place, name in enumerate(classes)}
    numbers = [tuple(places[name] for name in names_of_one) for names_of_one in names]
    labels = [pairs.label(index) for index in range(len(pairs))]

    def captions(texts: tuple[str, ...], label: int | None) -> tuple[str, ...]:
        if label is None:
            return texts
        return tuple(text.replace(pairs.classes[label], ", ".join(names[label])) for text in texts)

    return replace(
        pairs,
        texts=[captions(texts, label) for texts, label in zip(pairs.texts, labels, strict=True)],
        numbers=(),
        several=[None if label is None else numbers[label] for label in labels],
        classes=classes,
    )
