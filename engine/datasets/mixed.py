"""Combine several sets of pairs into one, and weight them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from engine.datasets.base import DataProblem, Pairs
from engine.datasets.split import Subset, own_split


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

    of_sources: one number per source, for each of its pairs; empty if all are equal. Errors: DataProblem.
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
