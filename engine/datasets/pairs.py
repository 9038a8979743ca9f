"""Images with captions, in a fixed order: every format of data is opened as this."""

import pickle
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from engine.datasets import images
from engine.datasets.base import shown_name
from engine.roots import Roots


class Picture(Protocol):
    """An image that is not a file of its own. It can be pickled."""

    @property
    def source(self) -> str:
        """Return a name of the image, such as `digits:17`."""

    def image(self, roots: Roots) -> Image.Image:
        """Return the image in RGB. roots: as in Pairs. Errors: Unreadable."""


class Packed(Sequence[Any]):
    """Values pickled into one buffer, indexed from 0, so that another process gets millions of them at once."""

    def __init__(self, values: Iterable[Any]) -> None:
        buffer, self._ends = bytearray(), array("Q", [0])
        for value in values:
            buffer += pickle.dumps(value)
            self._ends.append(len(buffer))
        self._buffer = bytes(buffer)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: Any) -> Any:
        return pickle.loads(self._buffer[self._ends[index] : self._ends[index + 1]])  # noqa: S301 - made above


@dataclass(frozen=True, eq=False)
class Pairs:
    """Images with captions, indexed from 0. They can be pickled, and read in several processes at once."""

    name: str
    """A short name, such as `digits`."""
    files: Sequence[str | Picture]
    """The path of each image, or what makes it."""
    texts: Sequence[tuple[str, ...]]
    """One or more captions of each image."""
    numbers: Sequence[int | None] = ()
    """The class of each image; empty without classes."""
    several: Sequence[tuple[int, ...] | None] = ()
    """The classes of each image; empty if images have one class."""
    classes: tuple[str, ...] = ()
    """The class names that `label` indexes; empty if there are none."""
    templates: tuple[str, ...] = ()
    """Prompts with `{}` for the class name; empty if the data have none of their own."""
    notes: tuple[str, ...] = ()
    """Notes on what was done with the data beyond the request, such as leaving some out."""
    held: Sequence[bool] = ()
    """True for each pair that the data's own split holds out; empty without such a split."""
    parts: Sequence[int] = ()
    """The number of each pair's source in a mixture; empty without a mixture."""
    roots: Roots = None
    """The folders that must contain the files."""

    def __len__(self) -> int:
        return len(self.files)

    def image(self, index: int) -> Image.Image:
        """Return the image in RGB. Errors: Unreadable."""
        file = self.files[index]
        return images.read(Path(file), self.roots) if isinstance(file, str) else file.image(self.roots)

    def captions(self, index: int) -> tuple[str, ...]:
        return self.texts[index]

    def label(self, index: int) -> int | None:
        return self.numbers[index] if self.numbers else None

    def labels(self, index: int) -> tuple[int, ...] | None:
        """Return the classes of an image; None if the data have one class per image."""
        return self.several[index] if self.several else None

    def source(self, index: int) -> str:
        """Return the file of a pair, or another name of its source, such as `digits:17`."""
        file = self.files[index]
        return shown_name(file if isinstance(file, str) else file.source)

    def at(self, indices: Iterable[int]) -> "Pairs":
        """Return the pairs at these indices, in their order."""
        places = list(indices)
        chosen: dict[str, Any] = {}
        for name in ("files", "texts", "numbers", "several", "held", "parts"):
            if values := getattr(self, name):
                chosen[name] = [values[place] for place in places]
        return replace(self, **chosen)

    def to_load(self, workers: int) -> "Pairs":
        """Return pairs for a loader: with `workers` processes only images and captions, packed; without, all as it is.

        With four processes, the first batch of a million pairs took 47 s. It takes 9 s if they are packed.
        """
        if not workers:
            return self
        return Pairs(self.name, Packed(self.files), Packed(self.texts), roots=self.roots)
