"""Build timm's models."""

from collections.abc import Callable
from typing import Any

import timm
import torch
from timm.models import model_entrypoint

from engine.models.built import Built, Wanted, images, out_of_memory, size_refused


def families() -> dict[str, str]:
    """Return timm's models by name, with their architecture family: the timm module that defines each."""
    return {name: family(name) for name in timm.list_models()}


def family(name: str) -> str:
    """Return a model's family, such as `vision_transformer` for `vit_base_patch16_224`."""
    entrypoint: Callable[..., Any] = model_entrypoint(name.partition(".")[0])
    return entrypoint.__module__.rpartition(".")[2]


def build(name: str, wanted: Wanted) -> Built:
    """Return a timm model. Errors: SizeRefused if it does not support the requested image size."""
    made_for, tested_at, channels = _input(timm.get_pretrained_cfg(name))
    native_size = tested_at if wanted.test_size else made_for
    size = wanted.image_size or native_size
    with torch.device(wanted.device):
        model: Any = timm.create_model(name) if size == made_for else _resized(name, size, native_size)
    return Built(
        model=model.to(wanted.dtype).eval(),
        inputs=(images(wanted, size, channels),),
        towers={"image": ""},
        family=family(name),
        image_size=size,
        native_size=native_size,
        test_size=tested_at,
        image_width=int(model.num_features),
    )


def _input(pretrained_cfg: Any) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Return the image sizes at which a model is trained and tested, and its number of channels."""
    channels, *trained = pretrained_cfg.input_size
    _, *tested = pretrained_cfg.test_input_size or pretrained_cfg.input_size
    return tuple(trained), tuple(tested), channels


def _resized(name: str, size: tuple[int, int], native: tuple[int, int]) -> Any:
    """Return a model for another image size.

    The size is passed to its constructor only if that has a parameter for it.
    """
    try:
        return timm.create_model(name, img_size=size)
    except TypeError as error:
        if "img_size" not in str(error):
            raise size_refused(name, size, native, error) from error
    except (ValueError, AssertionError, RuntimeError) as error:
        if out_of_memory(error):
            raise
        raise size_refused(name, size, native, error) from error
    return timm.create_model(name)
