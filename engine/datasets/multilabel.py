"""Images with several classes: from cells with several class names, or from shards in CLIP_benchmark's format."""

import numpy as np

from engine.datasets.base import Pairs, distinct
from engine.datasets.members import Listed
from engine.datasets.split import Subset


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
