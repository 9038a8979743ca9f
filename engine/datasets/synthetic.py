"""Pictures of noise, for trying things out without data: every machine makes the same ones."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

COUNT, SIDE = 100, 224
"""As many and as large as open_clip's synthetic data."""


@dataclass(frozen=True)
class Synthetic:
    """Noise that depends on the seed and the index alone, with captions that all differ."""

    count: int = COUNT
    seed: int = 0
    name: str = "synthetic"
    classes: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.count

    def image(self, index: int) -> Image.Image:
        noise = np.random.default_rng((self.seed, index)).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        return Image.fromarray(noise)

    def captions(self, index: int) -> tuple[str, ...]:
        return (f"picture {index} of noise",)

    def label(self, index: int) -> None:
        return None

    def source(self, index: int) -> str:
        return f"synthetic:{index}"
