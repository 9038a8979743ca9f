"""Built models, and the request for building one."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from engine.results.base import tells_of_memory
from engine.specs import Refused, format_image_size

TOKEN = 3
"""An ordinary token in every vocabulary; 0 and 1 are padding, which some towers mask out."""

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


class SizeRefused(Refused):
    """The model cannot take images of this size, or texts of this length."""


class TowerRefused(Refused):
    """The model has no such tower."""


class ConfigRefused(Refused):
    """A configuration of one's own that does not describe a model that can be built here."""


@dataclass(frozen=True)
class Wanted:
    """How a model is to be built; None leaves the model's own."""

    device: str = "meta"
    batch_size: int = 1
    image_size: tuple[int, int] | None = None
    """(height, width) in pixels."""
    context_length: int | None = None
    precision: str = "float32"
    config: dict[str, Any] | None = field(default=None, repr=False)
    """An open_clip configuration, as its JSON files hold one; only for `config:NAME`."""
    test_size: bool = False
    """At the image size a timm model is tested at, where that is not the one it is trained at."""
    tower: Literal["whole", "image", "text"] = "whole"
    """Only this part of the model, with the inputs it takes."""
    seed: int | None = None
    """Of weights and inputs; None leaves weights to chance and fills inputs with ones, enough for counting."""

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]


@dataclass(frozen=True)
class Built:
    """A model in eval mode, with one batch of example inputs on the same device and in the same precision."""

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    towers: dict[str, str]
    """Module paths of the `image` and `text` towers; {"image": ""} when the model is its image tower."""
    family: str
    image_size: tuple[int, int]
    native_size: tuple[int, int]
    """What the model is built for when nothing is asked."""
    test_size: tuple[int, int] | None = None
    """What its publisher tests it at, where that is known."""
    context_length: int | None = None
    image_width: int | None = None
    """Features the image tower's trunk ends in; the channels after the stem for a CLIP ResNet, as its papers count."""
    text_width: int | None = None
    embed_dim: int | None = None
    """Size of the space both towers project to."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether a device ran out of memory: only CUDA has an exception of its own, the others raise
    RuntimeError."""
    plain = isinstance(error, RuntimeError) and tells_of_memory(str(error))
    return plain or isinstance(error, torch.OutOfMemoryError | MemoryError)


def images(wanted: Wanted, size: tuple[int, int], channels: int = 3) -> torch.Tensor:
    """(batch, channels, height, width) of ones; with a seed, random bytes standardised by their mean and deviation."""
    shape = (wanted.batch_size, channels, *size)
    if wanted.seed is None:
        return torch.ones(shape, dtype=wanted.dtype, device=wanted.device)
    pixels = torch.randint(256, shape, generator=_generator(wanted.seed)).to(torch.float32)
    return ((pixels - pixels.mean()) / pixels.std()).to(wanted.device, wanted.dtype)


def tokens(wanted: Wanted, length: int, vocabulary: int) -> torch.Tensor:
    """(batch, length), int64: one ordinary token throughout; with a seed, any but padding."""
    shape = (wanted.batch_size, length)
    if wanted.seed is None:
        return torch.full(shape, min(TOKEN, vocabulary - 1), device=wanted.device)
    low = min(TOKEN, vocabulary - 1)
    return torch.randint(low, vocabulary, shape, generator=_generator(wanted.seed)).to(wanted.device)


def _generator(seed: int) -> torch.Generator:
    """On the CPU, so that every device gets the same numbers."""
    return torch.Generator().manual_seed(seed)


def size_refused(name: str, wanted: tuple[int, int], native: tuple[int, int], why: object) -> SizeRefused:
    """Return the error for a model that fails at a size other than its own."""
    reason = (str(why).strip().splitlines() or [type(why).__name__])[0]
    return SizeRefused(
        f"{name} fails at images of {format_image_size(wanted)} pixels ({reason}); "
        f"its own size is {format_image_size(native)}"
    )
