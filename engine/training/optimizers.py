"""Optimizers as open_clip's training sets them up: AdamW with its groups of decay, or any of timm's."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from open_clip.transformer import VisionTransformer
from timm.models import Eva, NaFlexVit
from timm.models import VisionTransformer as TimmVisionTransformer
from timm.optim import (  # type: ignore[attr-defined]
    create_optimizer_v2,
    get_optimizer_info,
    list_optimizers,
)
from torch import nn

from engine.specs import Refused
from engine.specs.train import TrainSpec

TRANSFORMERS = (VisionTransformer, TimmVisionTransformer, Eva, NaFlexVit)
FUSED = ("cpu", "cuda")
"""Kinds of device whose kernels for a whole AdamW step are used; others take it operator by operator."""


def create(model: nn.Module, spec: TrainSpec) -> torch.optim.Optimizer:
    """Over those of a CLIP model's parameters that are trained.

    Errors: Refused where none are, and of an optimizer that timm does not have or that does not take what is given.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise Refused("every parameter is locked: leave a tower, or some of its layers, unlocked")
    return _adamw(model, spec) if spec.opt == "adamw" else _of_timm(model, spec)


def assign(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Take the next step at this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay is for it: none for gains, biases, norms and scalars. Told as open_clip does."""
    return parameter.ndim >= 2 and not any(part in name for part in ("bn", "ln", "bias", "logit_scale"))


def defaults(model: nn.Module) -> tuple[tuple[float, float], float]:
    """AdamW's betas and eps, those of CLIP's paper: its ViTs were trained with others than its ResNets.

    open_clip tells them by "vit" in a model's name, which not every ViT has; here the image tower itself tells.
    """
    tower: Any = model.visual
    if isinstance(getattr(tower, "trunk", tower), TRANSFORMERS):
        return (0.9, 0.98), 1e-6
    return (0.9, 0.999), 1e-8


def _adamw(model: nn.Module, spec: TrainSpec) -> torch.optim.Optimizer:
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    (beta1, beta2), eps = defaults(model)
    return torch.optim.AdamW(
        [  # both groups, even an empty one: open_clip's checkpoints have two
            {"params": [each for name, each in trained if not decays(name, each)], "weight_decay": 0.0},
            {"params": [each for name, each in trained if decays(name, each)], "weight_decay": spec.wd},
        ],
        lr=spec.peak_lr,
        betas=(beta1 if spec.beta1 is None else spec.beta1, beta2 if spec.beta2 is None else spec.beta2),
        eps=spec.eps or eps,
        # one pass over weights, moments and gradients: with a vocabulary's embedding, many times as fast on a CPU
        fused=all(each.device.type in FUSED for _, each in trained),
    )


def _of_timm(model: nn.Module, spec: TrainSpec) -> torch.optim.Optimizer:
    name = spec.opt.removeprefix("timm/")
    given = _settings(spec)
    try:
        takes = get_optimizer_info(name.removeprefix("lookahead_"))
        if missing := [setting for setting in given if not getattr(takes, f"has_{setting}")]:
            raise Refused(f"{spec.opt} takes no {' and no '.join(missing)}: leave it out")
        if takes.second_order:
            raise Refused(f"{spec.opt} needs second derivatives, which a step here does not compute: take another")
        return create_optimizer_v2(model, name, lr=spec.peak_lr, weight_decay=spec.wd, **given)
    except Refused:
        raise
    except (ValueError, TypeError, AssertionError, ImportError, RuntimeError) as error:
        known = ", ".join(map(str, list_optimizers()))
        raise Refused(f"{spec.opt} cannot be made here ({error}); timm has {known}") from error


def _settings(spec: TrainSpec) -> Mapping[str, Any]:
    """Return those given, in timm's words; it has defaults of its own for the rest."""
    betas = None if spec.beta1 is None or spec.beta2 is None else (spec.beta1, spec.beta2)
    given = {"betas": betas, "eps": spec.eps, "momentum": spec.momentum}
    return {name: value for name, value in given.items() if value is not None}


def learning_rate(
    kind: str, *, base: float, warmup: int, steps: int, cooldown: int = 0, power: float = 1.0, end: float = 0.0
) -> Callable[[int], float]:
    """Return a function from a step, counted from 0, to its learning rate. All lengths are optimizer steps.

    It rises in a line to `base` at the last step of `warmup`. From there `cosine` falls towards 0 at `steps`, `const`
    stays, and `const-cooldown` falls in the last `cooldown` towards `end`, by (1 - progress) ** power. Past `steps`
    it stays where it has ended. Errors: Refused of another kind.
    """

    def cosine(step: int) -> float:
        falling = max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(step - warmup, falling) / falling)) * base

    def cooled(step: int) -> float:
        start = steps - cooldown
        if step < start or not cooldown:
            return base
        progress = min(1.0, (step - start) / cooldown)
        return float((1 - progress) ** power * (base - end) + end)

    after = {"cosine": cosine, "const": lambda step: base, "const-cooldown": cooled}.get(kind)
    if after is None:
        raise Refused(f"there is no schedule {kind!r}: take cosine, const or const-cooldown")

    def rate(step: int) -> float:
        return base * (step + 1) / warmup if step < warmup else after(step)

    return rate
