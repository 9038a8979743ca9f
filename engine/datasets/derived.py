"""Sets of pairs made of others: a part, a mixture of several, or one whose images have several classes.

Parts are drawn with a seed. The same seed gives the same pairs on any machine.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from engine.datasets.base import DataProblem, Pairs, Unreadable, distinct, file_identifier
from engine.datasets.formats.members import Listed
from engine.words import plural


class Subset:
    """Some pairs of another set, in the same order."""

    def __init__(self, pairs: Pairs, indices: NDArray[np.int64]) -> None:
        """indices: (N,) ascending, the index of each pair in `pairs`."""
        self.pairs, self.indices = pairs, indices
        self.name, self.classes, self.templates, self.notes = pairs.name, pairs.classes, pairs.templates, pairs.notes

    def __len__(self) -> int:
        return len(self.indices)

    def image(self, index: int) -> Image.Image:
        return self.pairs.image(int(self.indices[index]))

    def captions(self, index: int) -> tuple[str, ...]:
        return self.pairs.captions(int(self.indices[index]))

    def label(self, index: int) -> int | None:
        return self.pairs.label(int(self.indices[index]))

    def source(self, index: int) -> str:
        return self.pairs.source(int(self.indices[index]))


def split(pairs: Pairs, fraction: float, seed: int) -> tuple[Subset, Subset]:
    """Return the pairs to train on and the held-out ones, with nearly the same share of each label.

    Data with their own split, such as Karpathy's split of COCO, keep it. Fraction and seed are then ignored.

    The split depends only on labels, fraction and seed. With a fraction above 0, neither part is empty. Pairs of rare
    labels are in the training part. Errors: DataProblem.
    """
    if fraction and len(pairs) < 2:
        raise DataProblem(
            f"{pairs.name} has {plural(len(pairs), 'pair')}, of which none can be held out: give other data for that"
        )
    if fraction and own_split(pairs) is not None:
        return own_parts(pairs)  # type: ignore[return-value]
    count = min(max(1, round(fraction * len(pairs))), len(pairs) - 1) if fraction else 0
    chosen = _draw(pairs, count, seed)
    return Subset(pairs, np.flatnonzero(~chosen)), Subset(pairs, np.flatnonzero(chosen))


def own_split(pairs: Pairs) -> NDArray[np.bool_] | None:
    """Return which pairs the data's own split holds out, (N,) bool; None without a split, or if one part is empty."""
    if isinstance(pairs, Subset):
        inner = own_split(pairs.pairs)
        held = None if inner is None else inner[pairs.indices]
    else:
        held = np.asarray(getattr(pairs, "held", ()), dtype=bool)
    return held if held is not None and 0 < held.sum() < len(held) else None


def own_parts(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Return the training and held-out pairs of the data's own split; all pairs twice without such a split."""
    if (held := own_split(pairs)) is None:
        return pairs, pairs
    return Subset(pairs, np.flatnonzero(~held)), Subset(pairs, np.flatnonzero(held))


def hold_out(pairs: Pairs, val: Pairs | None, fraction: float, seed: int) -> tuple[Pairs, Pairs | None]:
    """Return the pairs to train on, and the held-out ones: those of `val` if given, else a fraction of `pairs`.

    Pairs that a split of the data holds out are never trained on. Errors: DataProblem.
    """
    if val is None and fraction:
        return split(pairs, fraction, seed)
    return own_parts(pairs)[0], None if val is None else own_parts(val)[1]


def count_shared(train: Pairs, held: Pairs) -> int:
    """Return how many held-out images are also trained on, by the names of their files and their real folders."""
    identify = file_identifier()
    of_held = [identify(held.source(index)) for index in range(len(held))]
    wanted = set(of_held)  # the smaller part is kept in memory
    shared = {found for index in range(len(train)) if (found := identify(train.source(index))) in wanted}
    return sum(found in shared for found in of_held)


def note_on_shared(shared: int, held: int) -> str:
    """Return a warning if held-out images are also trained on; empty if none is."""
    return f"{shared:,} of {plural(held, 'held-out image')} also used for training" if shared else ""


def sample(pairs: Pairs, count: int, seed: int) -> Subset:
    """Return `count` pairs drawn at random, with each label in proportion."""
    return Subset(pairs, np.flatnonzero(_draw(pairs, count, seed)))


def readable(pairs: Pairs, indices: Sequence[int]) -> tuple[Pairs, tuple[str, ...]]:
    """Return the pairs at `indices`, whose images can be read, and messages on all others. Errors: DataProblem.

    The images that a message names are opened again, for the reason.
    """
    others = sorted(set(range(len(pairs))).difference(indices))
    if not others:
        return pairs, ()
    names = ", ".join(dict.fromkeys(_source_and_reason(pairs, index) for index in others[:3]))
    if len(others) == len(pairs):
        raise DataProblem(f"none of the {plural(len(pairs), 'image')} can be read, such as {names}")
    message = f"{len(others)} of {plural(len(pairs), 'image')} left out as unreadable: {names}"
    return Subset(pairs, np.asarray(sorted(indices), dtype=np.int64)), (message,)


def _source_and_reason(pairs: Pairs, index: int) -> str:
    try:
        pairs.image(index)
    except Unreadable as error:
        return f"{pairs.source(index)} ({error.reason})"
    return pairs.source(index)


def _draw(pairs: Pairs, count: int, seed: int) -> NDArray[np.bool_]:
    """Return a mask of `count` pairs drawn at random, as evenly over the labels as possible. (N,) bool."""
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


class Mixed:
    """The pairs of several sources, one source after the other. Classes with the same name become one class.

    Errors: DataProblem if a source has a split of its own.
    """

    def __init__(self, parts: Sequence[Pairs]) -> None:
        if split := next((part.name for part in parts if own_split(part) is not None), ""):
            raise DataProblem(f"{split} has its own split, which a mixture cannot keep: choose a part with json_split")
        self.parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        self.classes = tuple(dict.fromkeys(name for part in parts for name in part.classes))
        self.templates = tuple(dict.fromkeys(template for part in parts for template in part.templates))
        self.notes = tuple(f"{part.name}: {note}" for part in parts for note in part.notes)
        self._ends = np.cumsum([len(part) for part in parts])
        numbers = {name: number for number, name in enumerate(self.classes)}
        self._labels = [[numbers[name] for name in part.classes] for part in parts]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _place(self, index: int) -> tuple[int, int]:
        """Return the source of a pair, and the pair's index in it."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return part, index - (int(self._ends[part - 1]) if part else 0)

    def image(self, index: int) -> Image.Image:
        part, place = self._place(index)
        return self.parts[part].image(place)

    def captions(self, index: int) -> tuple[str, ...]:
        part, place = self._place(index)
        return self.parts[part].captions(place)

    def label(self, index: int) -> int | None:
        """Return the index of the pair's class in `classes`; None if its source has no class names."""
        part, place = self._place(index)
        label = self.parts[part].label(place)
        return None if label is None or not self._labels[part] else self._labels[part][label]

    def source(self, index: int) -> str:
        part, place = self._place(index)
        return self.parts[part].source(place)


def weights(pairs: Pairs, of_sources: Sequence[float]) -> NDArray[np.float64] | None:
    """Return how often each pair is drawn, relative to the others, (N,) float64; None if all are drawn equally often.

    of_sources: one number per source, for each of its pairs; empty if all are equal.
    """
    if len(set(of_sources)) < 2:
        return None
    if isinstance(pairs, Subset):
        inner = weights(pairs.pairs, of_sources)
        return None if inner is None else inner[pairs.indices]
    parts = pairs.parts if isinstance(pairs, Mixed) else (pairs,)
    return np.repeat(np.asarray(of_sources, dtype=np.float64), [len(part) for part in parts])


class Multilabel(Subset):
    """All pairs of a set whose class names, such as `cat;dog`, each name several classes."""

    def __init__(self, pairs: Pairs, separator: str) -> None:
        super().__init__(pairs, np.arange(len(pairs)))
        self._separator = separator
        self._names = [distinct(joined.split(separator)) for joined in pairs.classes]
        self.classes = tuple(sorted({name for names in self._names for name in names}))
        places = {name: place for place, name in enumerate(self.classes)}
        self._numbers = [tuple(places[name] for name in names) for names in self._names]

    def captions(self, index: int) -> tuple[str, ...]:
        """Return the captions. In those that were made of class names, the names are separated by commas."""
        label, texts = self.pairs.label(index), self.pairs.captions(index)
        if label is None or self._separator not in (joined := self.pairs.classes[label]):
            return texts
        return tuple(text.replace(joined, ", ".join(self._names[label])) for text in texts)

    def label(self, index: int) -> None:
        """Return None: an image has no single class."""
        return

    def labels(self, index: int) -> tuple[int, ...] | None:
        """Return the classes of an image; None if it has no class name."""
        label = self.pairs.label(index)
        return None if label is None else self._numbers[label]


def with_classes_split(pairs: Pairs, separator: str) -> Pairs:
    """Return the pairs with their class names split at a separator; unchanged without one."""
    return Multilabel(pairs, separator) if separator and pairs.classes else pairs


def labels_of(pairs: Pairs, index: int) -> tuple[int, ...] | None:
    """Return the classes of an image; None if the data have one class per image."""
    if isinstance(pairs, Multilabel | Listed):
        return pairs.labels(index)
    return labels_of(pairs.pairs, int(pairs.indices[index])) if isinstance(pairs, Subset) else None
