"""The embedded data: 1,797 scans of handwritten digits, 8x8, from scikit-learn's files. scikit-learn is not imported.

Source: the UCI ML hand-written digits data set, https://archive.ics.uci.edu/dataset/80 (CC BY 4.0).
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from engine.datasets.base import DataProblem, file_of_package
from engine.datasets.pairs import Pairs
from engine.roots import Roots

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATES = ("a photo of the digit {}", "the number {}", "a handwritten {}", "{}")
SCAN, SIDE, WHITE = 8, 32, 16
"""Side of a scan and side of an image in pixels, and a scan's largest brightness."""


class Scan(NamedTuple):
    """A scan, by its place in scikit-learn's file."""

    place: int

    @property
    def source(self) -> str:
        return f"digits:{self.place}"

    def image(self, _roots: Roots) -> Image.Image:
        grey = Image.fromarray(_table()[0][self.place]).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return grey.convert("RGB")


def digits() -> Pairs:
    """Return all scans as images of 32x32, in their order, with one caption per template. Errors: DataProblem."""
    labels = _table()[1].tolist()
    captions = [tuple(template.replace("{}", word) for template in TEMPLATES) for word in WORDS]
    scans = [Scan(place) for place in range(len(labels))]
    return Pairs("digits", scans, [captions[label] for label in labels], labels, classes=WORDS, templates=TEMPLATES)


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


class Noise(NamedTuple):
    """An image of noise that depends only on the seed and its place."""

    seed: int
    place: int

    @property
    def source(self) -> str:
        return f"synthetic:{self.place}"

    def image(self, _roots: Roots) -> Image.Image:
        noise = np.random.default_rng(tuple(self)).integers(0, 256, (PIXELS, PIXELS, 3), dtype=np.uint8)
        return Image.fromarray(noise)


def synthetic(count: int, seed: int) -> Pairs:
    """Return images of noise. All captions differ."""
    texts = [(f"picture {place} of noise",) for place in range(count)]
    return Pairs("synthetic", [Noise(seed, place) for place in range(count)], texts)
