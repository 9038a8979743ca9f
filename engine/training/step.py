"""One optimizer step, from one batch or from several batches with cached features.

Source: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (2021), as used in BASIC
(Pham et al., 2021) and open_clip. A contrastive loss of several batches is not the sum of their losses, because each
image is compared with all texts. So all features are computed and cached first, without gradients. Then each batch is
computed again with gradients, and its features replace the cached ones. By the chain rule the gradients add up to
those of the whole batch. This needs the same random numbers in both passes of a batch, and no layer that mixes
samples, such as batch norm.
"""

import math
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from engine.models import steps
from engine.training.objectives import Objective, Outputs

Batch = tuple[Tensor, Tensor]
"""Images (B, 3, H, W) and tokens (B, L), on the model's device."""
Context = Callable[[], AbstractContextManager[object]]
LARGEST_SCALE = 100.0
"""Maximum of the logit scale, as in CLIP's paper. The minimum is 1."""
FEATURES = "_features"
"""Suffix of the outputs that are joined over batches. The others, scale and bias, are parameters of the model."""


@dataclass(frozen=True)
class StepResult:
    """The values of a step, scalars on the device. Reading one waits until the device has computed it."""

    losses: Outputs
    """Losses by name; `loss` was minimised."""
    grad_norm: Tensor
    """Norm of all gradients together, before clipping."""
    logit_scale: Tensor
    """Factor that multiplied the cosines."""


def train_step(
    model: nn.Module,
    batches: Sequence[Batch],
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    *,
    autocast: Context,
    scaler: torch.amp.GradScaler | None = None,
    clip_norm: float | None = None,
    no_sync: Context = nullcontext,
) -> StepResult:
    """Take one step with the loss of all batches together.

    model: in training mode, returning outputs by name; it may be compiled or wrapped in DDP. autocast: entered around
    each forward pass. no_sync: DDP's context, entered around all passes but the last. With a scaler, a step whose
    gradients overflow changes only the scale, and its gradient norm is not finite.
    """
    optimizer.zero_grad()
    if len(batches) == 1:
        with autocast():
            outputs = _outputs(model, batches[0], objective)
            losses = objective(outputs)
        _backward(losses, scaler)
    else:
        losses, outputs = _accumulate(model, batches, objective, autocast, scaler, no_sync)
    if scaler is not None:
        scaler.unscale_(optimizer)
    grad_norm = _clip(optimizer, clip_norm)
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    scale: Any = getattr(model, "module", model).logit_scale
    with torch.no_grad():
        scale.clamp_(0, math.log(LARGEST_SCALE))
    return StepResult(
        {name: value.detach() for name, value in losses.items()}, grad_norm, outputs["logit_scale"].detach()
    )


def _outputs(model: nn.Module, batch: Batch, objective: Objective) -> Outputs:
    return {**model(*batch), **objective.beside(*batch)}


def _backward(losses: Outputs, scaler: torch.amp.GradScaler | None) -> None:
    loss = losses["loss"] if scaler is None else scaler.scale(losses["loss"])
    loss.backward()  # type: ignore[no-untyped-call]


def _accumulate(
    model: nn.Module,
    batches: Sequence[Batch],
    objective: Objective,
    autocast: Context,
    scaler: torch.amp.GradScaler | None,
    no_sync: Context,
) -> tuple[Outputs, Outputs]:
    """Compute the gradients of all batches together. Return the losses, and the outputs of the last batch."""
    seeds = torch.randint(2**63 - 1, (len(batches),)).tolist()  # both passes of a batch drop the same values
    cached: list[Outputs] = []
    with steps.buffers_kept(model), torch.no_grad():
        for turn, batch in enumerate(batches):
            torch.manual_seed(seeds[turn])
            with autocast():
                cached.append(_outputs(model, batch, objective))
    for turn, batch in enumerate(batches):
        last = turn == len(batches) - 1
        torch.manual_seed(seeds[turn])
        with nullcontext() if last else no_sync():
            with autocast():
                outputs = {**cached[turn], **model(*batch)}
                losses = objective(_join_batches(outputs, cached, turn, last))
            _backward(losses, scaler)
    return losses, outputs


def _join_batches(outputs: Outputs, cached: Sequence[Outputs], turn: int, last: bool) -> Outputs:
    """Return the outputs of all batches, with this batch's new features in place of its cached ones.

    Each pass computes the whole loss, and so the whole gradient of scale and bias: only the last pass may add it.
    """
    whole = {}
    for name, value in outputs.items():
        if name.endswith(FEATURES):
            whole[name] = torch.cat([*(c[name] for c in cached[:turn]), value, *(c[name] for c in cached[turn + 1 :])])
        else:
            whole[name] = value if last else value.detach()
    return whole


def _clip(optimizer: torch.optim.Optimizer, clip_norm: float | None) -> Tensor:
    """Scale the gradients down to `clip_norm` if their common norm is larger. Return the norm before scaling."""
    parameters = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
    ]
    norm = get_total_norm([parameter.grad for parameter in parameters])
    if clip_norm is not None:
        clip_grads_with_norm_(parameters, clip_norm, norm)
    return norm


def seed(*numbers: int) -> None:
    """Seed Python, NumPy and torch, on the CPU and on accelerators, with these non-negative numbers.

    Before each step, they are the training's seed, the step and the process's rank. So dropout masks differ between
    processes and steps, and a resumed training draws the same numbers as one that was not stopped.
    """
    words = np.random.SeedSequence(numbers).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))
