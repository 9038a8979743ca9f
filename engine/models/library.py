"""Build any model by its name: open_clip's, timm's, torchvision's ResNets, and users' own configurations and modules.

A library is imported only when a name needs it, so a process that times one timm model imports only timm.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import torch

from engine.models.built import (
    Built,
    ConfigRefused,
    OptionRefused,
    TowerRefused,
    Wanted,
    out_of_memory,
    refuse_cut_images,
    size_refused,
)
from engine.names import IMAGES_ALONE, ModelNotFound
from engine.specs import ModelName
from engine.specs.building import option_refusal
from engine.specs.model_name import PYTHON


def families() -> dict[ModelName, str]:
    """Return every installed model with the architecture family it belongs to."""
    from engine.models import clip, timm_models, torchvision_models

    libraries = {"open_clip": clip, "timm": timm_models, "torchvision": torchvision_models}
    return {
        ModelName.of(library, model): family
        for library, module in libraries.items()
        for model, family in module.families().items()
    }


def load(name: str) -> None:
    """Import the modules that building this model needs."""
    modules = {"timm": "timm_models", "torchvision": "torchvision_models", PYTHON: "own_modules"}
    import_module(f"engine.models.{modules.get(ModelName(name).library, 'clip')}")


def build(name: str, wanted: Wanted) -> Built:
    """Return the model of this qualified name with example inputs. Weights are random, or without values on meta.

    Errors: ModelNotFound, SizeRefused (image size or context length), TowerRefused, ConfigRefused (a user's
    configuration), OptionRefused (classes, channels, keywords), those of a user's own module.
    """
    built = _build(name, wanted)
    if wanted.image_size:
        refuse_cut_images(built.model, wanted.image_size, built.native_size)
    return built


def _build(name: str, wanted: Wanted) -> Built:
    qualified = ModelName(name)
    library, model = qualified.library, qualified.model
    if wanted.seed is not None:
        torch.manual_seed(wanted.seed)
    if library in IMAGES_ALONE and wanted.tower == "text":
        raise TowerRefused(f"{name} has no text tower: it takes images alone")
    if refusal := option_refusal(qualified, wanted):
        raise OptionRefused(refusal)
    with quiet():
        if library == "timm":
            from engine.models import timm_models

            return timm_models.build(model, wanted)
        if library == "torchvision":
            from engine.models import torchvision_models

            return torchvision_models.build(model, wanted)
        if qualified.runs_code:
            from engine.models import own_modules

            return own_modules.build(model, wanted)
        if library == "open_clip" or qualified.is_own:
            from engine.models import clip

            if library == "open_clip":
                return clip.build(model, clip.config(model), wanted)
            if wanted.config is None:
                raise ConfigRefused(f"no configuration was given for {name!r}")
            return clip.build_own(model, wanted.config, wanted)
    raise ModelNotFound(f"{name!r} does not name its library: open_clip:, timm:, torchvision:, config: or {PYTHON}:")


def run(name: str, built: Built) -> None:
    """Run one forward pass. Errors: SizeRefused when it fails at an image size other than the model's own."""
    try:
        built.model(*built.inputs)
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
        if built.image_size == built.native_size or out_of_memory(error):
            raise
        raise size_refused(name, built.image_size, built.native_size, error) from error


def _expected(record: logging.LogRecord) -> bool:
    """Return False for open_clip's warnings about missing weights, because all models are built without weights
    here."""
    return not record.getMessage().startswith(
        ("No pretrained weights loaded for model", "Local config loaded, but no CLIP weights found")
    )


@contextmanager
def quiet() -> Iterator[None]:
    # open_clip logs through logging.warning(), which installs a handler if the root logger has no handler.
    root, placeholder = logging.getLogger(), logging.NullHandler()
    root.addFilter(_expected)
    root.addHandler(placeholder)
    try:
        yield
    finally:
        root.removeHandler(placeholder)
        root.removeFilter(_expected)
