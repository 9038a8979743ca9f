"""Towers that are not trained: locked image tuning (https://arxiv.org/abs/2111.07991), and the same for texts."""

import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn

from engine.specs import Refused


def lock_image(model: Any, unlocked_groups: int, *, freeze_bn_stats: bool) -> None:
    """Lock the image tower but for its last groups of layers.

    Errors: Refused of towers that can only be locked as a whole.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # open_clip takes timm's functions from where they once were
            model.visual.lock(unlocked_groups=unlocked_groups, freeze_bn_stats=freeze_bn_stats)
    except (AssertionError, AttributeError, KeyError, RuntimeError) as error:
        raise Refused(
            f"this image tower cannot be locked but for {unlocked_groups} groups ({error}): lock it as a whole"
        ) from error


def lock_text(model: Any, unlocked_layers: int, *, freeze_norms: bool) -> None:
    """Lock the text tower but for its last layers, and, without `freeze_norms`, for the norms of locked layers too."""
    if (tower := getattr(model, "text", None)) is not None:
        tower.lock(unlocked_layers, freeze_layer_norm=True)
    else:
        model.lock_text_tower(unlocked_layers, freeze_layer_norm=True)
    if not freeze_norms:
        for norm in _text_norms(model):
            norm.requires_grad_(requires_grad=True)


def _text_norms(model: Any) -> Iterator[nn.Module]:
    """Whatever they are called: LayerNorm, LayerNormFp32, T5LayerNorm, RMSNorm."""
    tower = getattr(model, "text", None)
    for part in [model.transformer, model.ln_final] if tower is None else [tower]:
        yield from (module for module in part.modules() if "Norm" in type(module).__name__)
