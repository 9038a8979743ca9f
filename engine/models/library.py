"""Build any model by its name: open_clip's, timm's, torchvision's, and users' own configurations and modules."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from engine.model_name import OWN, PYTHON
from engine.models.built import Built, Wanted, explained, refuse_cut_images
from engine.specs import ModelName

INSTALLED = {"open_clip": "clip.open_clip_models", "timm": "timm_models", "torchvision": "torchvision_models"}
MODULES = INSTALLED | {OWN: INSTALLED["open_clip"], PYTHON: "own_modules"}
"""The module that builds the models of a library. It is imported only when a name needs it, so a process that times one
timm model imports only timm."""


def families(libraries: Collection[str] = INSTALLED) -> dict[ModelName, str]:
    """Return every installed model of these libraries with the architecture family it belongs to."""
    return {
        ModelName.of(library, model): family
        for library in INSTALLED
        if library in libraries
        for model, family in _module(library).families().items()
    }


def load(name: str) -> None:
    """Import the modules that building this model needs."""
    _module(ModelName(name).library)


def _module(library: str) -> Any:
    return import_module(f"engine.models.{MODULES[library]}")


def build(name: str, wanted: Wanted) -> Built:
    """Return the model of this qualified name with example inputs. Weights are random, or without values on meta.

    `engine.names.select` has checked that the model has the wanted tower and takes the options.
    Errors: Refused for an image size, context length or configuration that the model does not take; those of a user's
    own module.
    """
    qualified = ModelName(name)
    if wanted.seed is not None:
        torch.manual_seed(wanted.seed)
    with quiet():
        built: Built = _module(qualified.library).build(qualified.model, wanted)
    if wanted.image_size:
        refuse_cut_images(built.model, wanted.image_size, built.native_size)
    return built


def run(name: str, built: Built) -> None:
    """Run one forward pass. Errors: Refused when it fails at an image size other than the model's own."""
    with explained(name, built.image_size, built.native_size):
        built.model(*built.inputs)


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Return whether to log a record: not open_clip's warnings about missing weights, because models are built
    without weights here."""
    return not record.getMessage().startswith(
        ("No pretrained weights loaded for model", "Local config loaded, but no CLIP weights found")
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence open_clip's warnings about missing weights."""
    # open_clip logs through logging.warning(), which installs a handler if the root logger has no handler.
    root, placeholder = logging.getLogger(), logging.NullHandler()
    root.addFilter(_is_unexpected)
    root.addHandler(placeholder)
    try:
        yield
    finally:
        root.removeHandler(placeholder)
        root.removeFilter(_is_unexpected)
