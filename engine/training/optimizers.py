"""Optimizers set up as in open_clip's training: AdamW with two groups of weight decay, or any of timm's."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from open_clip.transformer import VisionTransformer
from open_clip_train import scheduler
from timm.models import Eva, NaFlexVit
from timm.models import VisionTransformer as TimmVisionTransformer
from torch import nn

from engine.models.steps import timm_optimizer
from engine.specs import Refused
from engine.specs.schedule import Schedule
from engine.specs.train import TrainSpec

TRANSFORMERS = (VisionTransformer, TimmVisionTransformer, Eva, NaFlexVit)
"""Image towers that get the settings of a ViT."""
LOGITS = ("logit_scale", "logit_bias")
"""Parameters that belong to no tower."""
FUSED = ("cpu", "cuda")
"""Device types on which AdamW uses the fused kernel. On others it runs operator by operator."""


def create(model: nn.Module, spec: TrainSpec) -> torch.optim.Optimizer:
    """Return the optimizer of a CLIP model's trainable parameters.

    Errors: Refused if no parameter is trainable, timm has no such optimizer, or it does not take one of the settings.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise Refused("every parameter is locked: leave a tower, or some of its layers, unlocked")
    optimizer = (
        _adamw(model, spec)
        if spec.opt == "adamw"
        else timm_optimizer(spec.opt, model, lr=spec.peak_lr, weight_decay=spec.wd, **timm_settings(spec))
    )
    if spec.lr_scales:
        _split_by_tower(optimizer, model)
    return optimizer


def assign(optimizer: torch.optim.Optimizer, lr: float, scales: Mapping[str, float]) -> None:
    """Set the learning rate of the next step. scales: factors of the rate by tower, for towers with their own rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr * scales.get(group.get("tower", ""), 1.0)


def _split_by_tower(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Split each group into the parameters of the image tower, of the text tower, and the scale and bias of logits."""
    tower_of = {parameter: "text" for parameter in model.parameters()}
    tower_of |= {parameter: "image" for parameter in model.get_submodule("visual").parameters()}
    tower_of |= {parameter: "" for name, parameter in model.named_parameters() if name in LOGITS}
    optimizer.param_groups[:] = [  # the same list: a wrapping optimizer shares it
        {
            **group,
            "params": [parameter for parameter in group["params"] if tower_of[parameter] == tower],
            "tower": tower,
        }
        for group in optimizer.param_groups
        for tower in ("", "image", "text")
    ]


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter gets weight decay, as in open_clip: not a gain, a bias, a norm or a scalar."""
    return parameter.ndim >= 2 and not any(part in name for part in ("bn", "ln", "bias", "logit_scale"))


def defaults(model: nn.Module) -> tuple[tuple[float, float], float]:
    """Return AdamW's betas and eps from CLIP's paper, which differ between ViTs and ResNets.

    open_clip looks for "vit" in the model's name, which not every ViT has. Here the type of the image tower decides.
    """
    tower: Any = model.visual
    if isinstance(getattr(tower, "trunk", tower), TRANSFORMERS):
        return (0.9, 0.98), 1e-6
    return (0.9, 0.999), 1e-8


def _adamw(model: nn.Module, spec: TrainSpec) -> torch.optim.Optimizer:
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    (beta1, beta2), eps = defaults(model)
    return torch.optim.AdamW(
        [  # both groups, even if one is empty: open_clip's checkpoints have two
            {"params": [parameter for name, parameter in trained if not decays(name, parameter)], "weight_decay": 0.0},
            {"params": [parameter for name, parameter in trained if decays(name, parameter)], "weight_decay": spec.wd},
        ],
        lr=spec.peak_lr,
        betas=(beta1 if spec.beta1 is None else spec.beta1, beta2 if spec.beta2 is None else spec.beta2),
        eps=spec.eps or eps,
        # fused: one pass over weights, moments and gradients, many times as fast on a CPU for a large token embedding
        fused=all(parameter.device.type in FUSED for _, parameter in trained),
    )


def timm_settings(spec: TrainSpec) -> Mapping[str, Any]:
    """Return the given settings under timm's names. timm has its own defaults for the others."""
    betas = None if spec.beta1 is None or spec.beta2 is None else (spec.beta1, spec.beta2)
    settings = {"betas": betas, "eps": spec.eps, "momentum": spec.momentum}
    return {name: value for name, value in settings.items() if value is not None}


def learning_rate(spec: TrainSpec, plan: Schedule) -> Callable[[int], float]:
    """Return a function from a step, counted from 0, to its learning rate: that of open_clip's training.

    The rate rises linearly to the peak at the last step of the warm-up. Then `cosine` falls towards 0, `const` stays,
    and `const-cooldown` falls during the cooldown towards lr_cooldown_end, by (1 - progress) ** power.
    """
    no_optimizer: Any = SimpleNamespace(param_groups=[])  # `assign` sets the rates: towers may have their own
    curve = (no_optimizer, spec.peak_lr, plan.warmup_steps, plan.steps)
    rate: Callable[[int], float]
    match spec.lr_scheduler:
        case "cosine":
            rate = scheduler.cosine_lr(*curve)
        case "const":
            rate = scheduler.const_lr(*curve)
        case "const-cooldown":
            cooldown = (plan.cooldown_steps, spec.lr_cooldown_power, spec.lr_cooldown_end)
            rate = scheduler.const_lr_cooldown(*curve, *cooldown)
    return rate
