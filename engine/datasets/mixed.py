"""Several sets of pairs as one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from engine.datasets.base import DataProblem, Pairs
from engine.datasets.split import Subset


class Mixed:
    """The pairs of one source after those of another. Classes of one name are one class, whatever source has them."""

    def __init__(self, parts: Sequence[Pairs]) -> None:
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
        """Return which part a pair is in, and where there."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return part, index - (int(self._ends[part - 1]) if part else 0)

    def image(self, index: int) -> Image.Image:
        part, place = self._place(index)
        return self.parts[part].image(place)

    def captions(self, index: int) -> tuple[str, ...]:
        part, place = self._place(index)
        return self.parts[part].captions(place)

    def label(self, index: int) -> int | None:
        """Return a number among `classes`; None in a source that has not named its own."""
        part, place = self._place(index)
        label = self.parts[part].label(place)
        return None if label is None or not self._labels[part] else self._labels[part][label]

    def source(self, index: int) -> str:
        part, place = self._place(index)
        return self.parts[part].source(place)


def weights(pairs: Pairs, of_sources: Sequence[float]) -> NDArray[np.float64] | None:
    """(N,) float64: how often each pair is drawn, relative to the others; None where all are drawn alike.

    of_sources: how often each pair of a source is drawn, one number per source; none: all alike. Errors: DataProblem.
    """
    if len(set(of_sources)) < 2:
        return None
    if isinstance(pairs, Subset):
        inner = weights(pairs.pairs, of_sources)
        return None if inner is None else inner[pairs.indices]
    parts = pairs.parts if isinstance(pairs, Mixed) else (pairs,)
    if len(of_sources) != len(parts):
        raise DataProblem(f"{len(of_sources)} weights were given for {len(parts)} sources: one each")
    return np.repeat(np.asarray(of_sources, dtype=np.float64), [len(part) for part in parts])
