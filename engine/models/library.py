"""Every model we know by name: open_clip's, timm's, torchvision's ResNets, and one's own open_clip configurations.

A library is imported when a name needs it: a process that times one timm model waits for timm alone.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import torch

from engine.models.built import Built, ConfigRefused, TowerRefused, Wanted, out_of_memory, size_refused
from engine.names import ModelNotFound
from engine.specs import ModelName


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
    """Import what building this model needs."""
    modules = {"timm": "timm_models", "torchvision": "torchvision_models"}
    import_module(f"engine.models.{modules.get(ModelName(name).library, 'clip')}")


def build(name: str, wanted: Wanted) -> Built:
    """Return the model of this qualified name, randomly initialised (not at all on meta), with example inputs.

    Errors: ModelNotFound, SizeRefused (image size or context length), TowerRefused, ConfigRefused (one's own
    configuration).
    """
    qualified = ModelName(name)
    library, model = qualified.library, qualified.model
    if wanted.seed is not None:
        torch.manual_seed(wanted.seed)
    if library in ("timm", "torchvision") and wanted.tower == "text":
        raise TowerRefused(f"{name} has no text tower: it takes images alone")
    with quiet():
        if library == "timm":
            from engine.models import timm_models

            return timm_models.build(model, wanted)
        if library == "torchvision":
            from engine.models import torchvision_models

            return torchvision_models.build(model, wanted)
        if library == "open_clip" or qualified.is_own:
            from engine.models import clip

            if library == "open_clip":
                return clip.build(model, clip.config(model), wanted)
            if wanted.config is None:
                raise ConfigRefused(f"no configuration was given for {name!r}")
            return clip.build_own(model, wanted.config, wanted)
    raise ModelNotFound(f"{name!r} does not name its library: open_clip:, timm:, torchvision: or config:")


def run(name: str, built: Built) -> None:
    """Run one forward pass. Errors: SizeRefused when it fails at an image size that is not the model's own."""
    try:
        built.model(*built.inputs)
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
        if built.image_size == built.native_size or out_of_memory(error):
            raise
        raise size_refused(name, built.image_size, built.native_size, error) from error


def _expected(record: logging.LogRecord) -> bool:
    """False for what open_clip says of every model built without weights, which is how all of ours are built."""
    return not record.getMessage().startswith(
        ("No pretrained weights loaded for model", "Local config loaded, but no CLIP weights found")
    )


@contextmanager
def quiet() -> Iterator[None]:
    # open_clip logs through logging.warning(), which installs a handler on a root logger that has none.
    root, placeholder = logging.getLogger(), logging.NullHandler()
    root.addFilter(_expected)
    root.addHandler(placeholder)
    try:
        yield
    finally:
        root.removeHandler(placeholder)
        root.removeFilter(_expected)
