"""Build modules of the user's own: `package.module:factory` names a function or class that returns an `nn.Module`.

Building runs the user's code, so only commands in the foreground get here (engine.names.refuse_code).
"""

import os
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from typing import Any

import torch

from engine.model_name import PYTHON
from engine.models.built import Built, Wanted, images, out_of_memory
from engine.names import ModelNotFound
from engine.specs import Refused

IMAGE_SIZE = (224, 224)
"""Image size in pixels when none is given, because a module does not say which it is made for."""
CHANNELS = 3


def search_path() -> str:
    """Return the PYTHONPATH with which a process in another folder finds the modules that this one finds.

    It is the current folder and this process's own PYTHONPATH, as absolute paths.
    """
    return os.pathsep.join(map(os.path.abspath, ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))


def build(name: str, wanted: Wanted) -> Built:
    """Return the module that a factory makes, with one batch of images (batch, channels, height, width).

    The factory is called with only the wanted keywords, while the wanted device is torch's default.
    Errors: ModelNotFound; Refused when a keyword does not fit; those of the factory.
    """
    factory = _find(name)
    with torch.device(wanted.device):
        try:
            model = factory(**wanted.model_kwargs)
        except TypeError as error:
            if not wanted.model_kwargs:
                raise
            raise Refused(f"{PYTHON}:{name} does not take {wanted.model_kwargs}: {error}") from error
        except (RuntimeError, NotImplementedError) as error:
            if wanted.device != "meta" or out_of_memory(error):
                raise
            reason = f"cannot be built on meta, where tensors have no values ({error})"
            raise Refused(f"{PYTHON}:{name} {reason}: choose the device cpu") from error
    if not isinstance(model, torch.nn.Module):
        raise ModelNotFound(f"{PYTHON}:{name} returns {type(model).__name__}, not a torch.nn.Module")
    size = wanted.image_size or IMAGE_SIZE
    return Built(
        model=_moved(model, wanted).eval(),
        inputs=(images(wanted, size, wanted.in_chans or CHANNELS),),
        towers={"image": ""},
        family="own module",
        image_size=size,
        native_size=size,
    )


def _moved(model: torch.nn.Module, wanted: Wanted) -> torch.nn.Module:
    """Return the model on the wanted device, in the wanted type.

    Moved to meta, modules that shared a weight have one each (torch 2.15). They share it again here.
    """
    names: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    model = model.to(wanted.device, wanted.dtype)
    if wanted.device != "meta":
        return model
    for first, *others in names.values():
        for name in others:
            path, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(path), attribute, model.get_parameter(first))
    return model


def _find(name: str) -> Callable[..., Any]:
    """Return the factory of a name, `package.module:factory`. Errors: ModelNotFound; those of importing the module."""
    module_name, _, path = name.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, and imports another one that does not
        raise ModelNotFound(
            f"there is no Python module {error.name!r} in the current folder or in PYTHONPATH"
        ) from error
    try:
        factory = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise ModelNotFound(f"the module {module_name!r} has no {path!r}") from error
    if not callable(factory):
        raise ModelNotFound(f"{PYTHON}:{name} is a {type(factory).__name__}, not a function or class")
    found: Callable[..., Any] = factory
    return found
