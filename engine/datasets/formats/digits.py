"""The embedded data: 1,797 scans of handwritten digits, 8x8, from scikit-learn's files. scikit-learn is not imported.

Source: the UCI ML hand-written digits data set, https://archive.ics.uci.edu/dataset/80 (CC BY 4.0).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from engine.datasets.base import DataProblem, file_of_package

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATES = ("a photo of the digit {}", "the number {}", "a handwritten {}", "{}")
SCAN, SIDE, WHITE = 8, 32, 16
"""Side of a scan and side of an image in pixels, and a scan's largest brightness."""


class Digits:
    """All scans as images of 32x32, in scikit-learn's order, with one caption per template."""

    name = "digits"
    classes = WORDS
    templates = TEMPLATES
    notes: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._scans, self._labels = _table()

    def __len__(self) -> int:
        return len(self._labels)

    def image(self, index: int) -> Image.Image:
        grey = Image.fromarray(self._scans[index]).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return grey.convert("RGB")

    def captions(self, index: int) -> tuple[str, ...]:
        return tuple(template.replace("{}", WORDS[self._labels[index]]) for template in TEMPLATES)

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def source(self, index: int) -> str:
        return f"digits:{index}"


@cache
def _table() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return scans (1797, 8, 8) uint8 from 0 to 255, and labels (1797,) uint8. Errors: DataProblem."""
    path = file_of_package("sklearn", "datasets/data/digits.csv.gz")
    if not path.is_file():
        raise DataProblem(f"this version of scikit-learn has no handwritten digits at {path}")
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    scans = np.round(table[:, :-1] * (255 / WHITE)).astype(np.uint8).reshape(-1, SCAN, SCAN)
    return scans, table[:, -1]


COUNT, PIXELS = 100, 224
"""Default number of images and their side in pixels, as in open_clip's synthetic data."""


@dataclass(frozen=True)
class Synthetic:
    """Images of noise that depend only on the seed and the index. All captions differ."""

    count: int = COUNT
    seed: int = 0
    name: str = "synthetic"
    classes: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.count

    def image(self, index: int) -> Image.Image:
        noise = np.random.default_rng((self.seed, index)).integers(0, 256, (PIXELS, PIXELS, 3), dtype=np.uint8)
        return Image.fromarray(noise)

    def captions(self, index: int) -> tuple[str, ...]:
        return (f"picture {index} of noise",)

    def label(self, index: int) -> None:
        return None

    def source(self, index: int) -> str:
        return f"synthetic:{index}"
