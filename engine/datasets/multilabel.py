"""Images with several classes: from cells with several class names, or from shards in CLIP_benchmark's format."""

from functools import cached_property

from PIL import Image

from engine.datasets.base import Pairs, distinct
from engine.datasets.members import Listed
from engine.datasets.split import Subset


class Multilabel:
    """Pairs whose class names, such as `cat;dog`, each name several classes."""

    def __init__(self, pairs: Pairs, separator: str) -> None:
        self.pairs, self.separator = pairs, separator
        self.name, self.templates, self.notes = pairs.name, pairs.templates, pairs.notes

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the single classes, sorted."""
        return tuple(sorted({name for joined in self.pairs.classes for name in self._split(joined)}))

    @cached_property
    def _numbers(self) -> list[tuple[int, ...]]:
        places = {name: place for place, name in enumerate(self.classes)}
        return [tuple(places[name] for name in self._split(joined)) for joined in self.pairs.classes]

    def _split(self, joined: str) -> tuple[str, ...]:
        return distinct(joined.split(self.separator))

    def __len__(self) -> int:
        return len(self.pairs)

    def image(self, index: int) -> Image.Image:
        return self.pairs.image(index)

    def captions(self, index: int) -> tuple[str, ...]:
        """Return the captions. In those that were made of class names, the names are separated by commas."""
        label = self.pairs.label(index)
        joined = "" if label is None else self.pairs.classes[label]
        texts = self.pairs.captions(index)
        if self.separator not in joined:
            return texts
        return tuple(text.replace(joined, ", ".join(self._split(joined))) for text in texts)

    def label(self, index: int) -> None:
        """Return None: an image has no single class."""
        return

    def labels(self, index: int) -> tuple[int, ...] | None:
        """Return the classes of an image; None if it has no class name."""
        label = self.pairs.label(index)
        return None if label is None else self._numbers[label]

    def source(self, index: int) -> str:
        return self.pairs.source(index)


def with_classes_split(pairs: Pairs, separator: str) -> Pairs:
    """Return the pairs with their class names split at a separator; unchanged without one."""
    return Multilabel(pairs, separator) if separator and pairs.classes else pairs


def labels_of(pairs: Pairs, index: int) -> tuple[int, ...] | None:
    """Return the classes of an image; None if the data have one class per image."""
    if isinstance(pairs, Subset):
        return labels_of(pairs.pairs, int(pairs.indices[index]))
    return pairs.labels(index) if isinstance(pairs, Multilabel | Listed) else None
