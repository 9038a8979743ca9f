"""Define built models and the request for building one."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from engine.results.base import tells_of_memory
from engine.specs import BenchmarkSpec, ModelName, ProfileSpec, Refused, format_image_size
from engine.specs.base import json_object

TOKEN = 3
"""An ordinary token in every vocabulary. 0 and 1 are padding, which some towers mask out."""

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Wanted:
    """How to build a model. None means the model's own value."""

    device: str = "meta"
    batch_size: int = 1
    image_size: tuple[int, int] | None = None
    """(height, width) in pixels."""
    context_length: int | None = None
    precision: str = "float32"
    config: dict[str, Any] | None = field(default=None, repr=False)
    """An open_clip configuration, laid out as in its JSON files. Used only for `config:NAME`."""
    test_size: bool = False
    """Use the image size at which a timm model is tested, which may differ from the one it is trained at."""
    tower: Literal["whole", "image", "text"] = "whole"
    """Build only this part of the model, with the inputs it takes."""
    num_classes: int | None = None
    """Classes of a timm model's head."""
    in_chans: int | None = None
    """Channels of the images of a timm model, or of a module of the user's own."""
    model_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keywords for building a timm model, or for the factory of a module of the user's own."""
    seed: int | None = None
    """Seed of weights and inputs. With None, weights are random and inputs are ones, which is enough for counting."""

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]

    @classmethod
    def of(cls, spec: ProfileSpec | BenchmarkSpec, name: ModelName, **fields: Any) -> "Wanted":
        """Return how to build a model of a request. fields: those that the request does not decide alone."""
        return cls(
            context_length=spec.context_length,
            config=spec.configs.get(name.model) if name.is_own else None,
            num_classes=spec.num_classes,
            in_chans=spec.in_chans,
            model_kwargs=json_object(spec.model_kwargs),
            **fields,
        )


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
    """The model's own image size, used when no other is requested."""
    test_size: tuple[int, int] | None = None
    """Image size at which the publisher tests the model, if known."""
    context_length: int | None = None
    image_width: int | None = None
    """Features at the end of the image tower's trunk; for a CLIP ResNet, the channels after the stem, as its papers
    count."""
    text_width: int | None = None
    embed_dim: int | None = None
    """Size of the space to which both towers project."""


def refuse_cut_images(model: torch.nn.Module, size: tuple[int, int], native: tuple[int, int]) -> None:
    """Check that patches cover the whole image. Otherwise the model ignores pixels and costs less than its size says.

    The model's own size is always accepted, as its library does. Errors: Refused.
    """
    patching = next((module for module in model.modules() if isinstance(module, torch.nn.Conv2d)), None)
    pads = any(getattr(module, "dynamic_img_pad", False) for module in model.modules())
    if size == native or patching is None or patching.kernel_size != patching.stride or any(patching.padding) or pads:
        return
    patch = patching.stride[0], patching.stride[1]
    below = (size[0] // patch[0] * patch[0], size[1] // patch[1] * patch[1])
    if size != below:
        above = (math.ceil(size[0] / patch[0]) * patch[0], math.ceil(size[1] / patch[1]) * patch[1])
        raise Refused(
            f"Image size {format_image_size(size)} does not divide by the patch size {format_image_size(patch)}. "
            f"Use {' or '.join(format_image_size(near) for near in (below, above) if all(near))}."
        )


def out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that a device ran out of memory.

    Only CUDA has its own exception for this; other devices raise RuntimeError.
    """
    by_message = isinstance(error, RuntimeError) and tells_of_memory(str(error))
    return by_message or isinstance(error, torch.OutOfMemoryError | MemoryError)


def images(wanted: Wanted, size: tuple[int, int], channels: int = 3) -> torch.Tensor:
    """Return images of ones (batch, channels, height, width). With a seed, they are random bytes, standardised."""
    shape = (wanted.batch_size, channels, *size)
    if wanted.seed is None:
        return torch.ones(shape, dtype=wanted.dtype, device=wanted.device)
    pixels = torch.randint(256, shape, generator=_generator(wanted.seed)).to(torch.float32)
    return ((pixels - pixels.mean()) / pixels.std()).to(wanted.device, wanted.dtype)


def tokens(wanted: Wanted, length: int, vocabulary: int) -> torch.Tensor:
    """Return int64 tokens (batch, length) without padding: all equal, or random with a seed."""
    shape = (wanted.batch_size, length)
    ordinary = min(TOKEN, vocabulary - 1)
    if wanted.seed is None:
        return torch.full(shape, ordinary, device=wanted.device)
    return torch.randint(ordinary, vocabulary, shape, generator=_generator(wanted.seed)).to(wanted.device)


def _generator(seed: int) -> torch.Generator:
    """Return a generator on the CPU, so that every device gets the same numbers."""
    return torch.Generator().manual_seed(seed)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message; the name of its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def one_line(error: Exception) -> str:
    """Return an error's message in one line, at most 300 characters of it."""
    return " ".join(str(error).split())[:300]


def size_refused(name: str, wanted: tuple[int, int], native: tuple[int, int], why: Exception) -> Refused:
    """Return the error for a model that fails at a size other than its own."""
    return Refused(
        f"{name} fails at images of {format_image_size(wanted)} pixels ({first_line(why)}); "
        f"its own size is {format_image_size(native)}"
    )


@contextmanager
def explained(
    name: str, size: tuple[int, int] | None = None, native: tuple[int, int] | None = None, *, own: bool = False
) -> Iterator[None]:
    """Turn errors of building or running a model into ones that name the request. Errors: Refused.

    size, native: the requested and the model's own image size. own: whether the configuration is the user's.
    """
    try:
        yield
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError, RuntimeError) as error:
        if isinstance(error, Refused) or out_of_memory(error):
            raise
        if size and native and size != native:
            raise size_refused(name, size, native, error) from error
        if own:
            raise Refused(f"configuration {name!r} cannot be built: {error}") from error
        raise
