"""Build timm's models, with another number of classes or channels and with keywords if wanted."""

from collections.abc import Callable
from functools import cache
from typing import Any

import timm
import torch
from timm.models import model_entrypoint

from engine.models.built import Built, Wanted, explained, images, out_of_memory
from engine.specs import Refused

FIELDS = {"num_classes": "num_classes", "in_chans": "in_chans", "img_size": "image_size"}
"""Keywords that have fields of their own."""
IMAGENET = 1000
"""Classes of ImageNet-1k."""
LOADING = ("checkpoint_path", "cache_dir", "feature_cfg", "model_cfg", "kwargs_filter", "pruned", "device", "dtype")
"""Keywords of timm's builder that read files, replace the architecture's own tables, or place the model elsewhere. All
keywords that begin with `pretrained` are refused too: weights are random, nothing is downloaded and no file is read."""


def families() -> dict[str, str]:
    """Return timm's models by name, with their architecture family: the timm module that defines each."""
    return {name: family(name) for name in sorted([*timm.list_models(), *_other_classifiers()])}


def _other_classifiers() -> list[str]:
    """Return names with a tag, such as `tiny_vit_21m_224.in1k`, whose classifier has the 1,000 classes of ImageNet
    where the name without a tag has another number.

    Accuracies on ImageNet belong to these models. Their classifiers have up to 12 M parameters less.
    """
    return [name for name in timm.list_pretrained() if _classes(name) == IMAGENET != _classes(name.partition(".")[0])]


@cache
def _classes(name: str) -> int:
    """Return the number of classes of a model. Cached, because timm copies the whole configuration each time."""
    pretrained_cfg: Any = timm.get_pretrained_cfg(name)
    return int(pretrained_cfg.num_classes)


def family(name: str) -> str:
    """Return a model's family, such as `vision_transformer` for `vit_base_patch16_224`."""
    entrypoint: Callable[..., Any] = model_entrypoint(name.partition(".")[0])
    return entrypoint.__module__.rpartition(".")[2]


def build(name: str, wanted: Wanted) -> Built:
    """Return a timm model. Errors: Refused if it does not take the requested image size or an option."""
    pretrained_cfg: Any = timm.get_pretrained_cfg(name)
    channels, train_size = pretrained_cfg.input_size[0], pretrained_cfg.input_size[1:]
    test_size = (pretrained_cfg.test_input_size or pretrained_cfg.input_size)[1:]
    native_size = test_size if wanted.test_size else train_size
    size = wanted.image_size or native_size
    options = _options(name, wanted)
    with torch.device(wanted.device):
        model = _create(name, options) if size == train_size else _resized(name, size, native_size, options)
    width = getattr(model, "num_features", None)  # a list of features (features_only) has none
    return Built(
        model=model.to(wanted.dtype).eval(),
        inputs=(images(wanted, size, wanted.in_chans or channels),),
        towers={"image": ""},
        family=family(name),
        image_size=size,
        native_size=native_size,
        test_size=test_size,
        image_width=width if width is None else int(width),
    )


def _options(name: str, wanted: Wanted) -> dict[str, Any]:
    """Return the keywords for timm.create_model. Errors: Refused."""
    for keyword in wanted.model_kwargs:
        if keyword in FIELDS:
            raise Refused(f"timm:{name}: {keyword} has a field of its own: set {FIELDS[keyword]} instead of a keyword")
        if keyword.startswith("pretrained") or keyword in LOADING:
            raise Refused(
                f"timm:{name}: the keyword {keyword} is not taken, because models are built with random weights and "
                "without reading files"
            )
    options = {"num_classes": wanted.num_classes, "in_chans": wanted.in_chans}
    return {option: value for option, value in options.items() if value is not None} | wanted.model_kwargs


def _create(name: str, options: dict[str, Any]) -> Any:
    """Return a model. Errors: Refused when it fails with options."""
    try:
        return timm.create_model(name, **options)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, AssertionError, RuntimeError) as error:
        if not options or out_of_memory(error):
            raise
        raise _option_refused(name, options, error) from error


def _option_refused(name: str, options: dict[str, Any], why: Exception) -> Refused:
    settings = ", ".join(f"{option}={value!r}" for option, value in options.items())
    return Refused(f"timm:{name} cannot be built with {settings}: {type(why).__name__}: {why}")


def _resized(name: str, size: tuple[int, int], native: tuple[int, int], options: dict[str, Any]) -> Any:
    """Return a model for another image size, which goes to its constructor only if that has a parameter for it."""
    with explained(name, size, native):
        try:
            return timm.create_model(name, img_size=size, **options)
        except TypeError as error:
            if "img_size" not in str(error) and options:
                raise _option_refused(name, options, error) from error
            if "img_size" not in str(error):
                raise
    return _create(name, options)
