"""Define one call of a model: a forward pass, or a training step in three phases."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from engine import suite
from engine.specs import ModelName, Refused

LEARNING_RATE = 1e-6
"""Learning rate for timings. It is so small that thousands of steps leave the weights almost unchanged: numbers that
overflow or vanish would change the speed."""
COMPARED_RATE = 1e-2
"""Learning rate of the few steps whose results are compared, as in PyTorch's benchmark: the weights must visibly
change."""
Phases = Mapping[str, Callable[[], object]]


def loss(name: ModelName, output: Any) -> torch.Tensor:
    """Return the sum / number of elements of the first tensor, or of every feature tensor for an open_clip model and
    for a configuration of the user's own.

    Divided by 1000 for the models for which PyTorch's benchmark does so. Errors: ValueError when no output has a
    gradient.
    """
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not leaves:
        raise ValueError(f"{name} has no output that a gradient can start from")
    features = [leaf for leaf in leaves if leaf.dim() > 1] or leaves
    loss_tensors = features if name.library == "open_clip" or name.is_own else features[:1]
    total = torch.stack([tensor.sum() / tensor.numel() for tensor in loss_tensors]).sum()
    return total / 1000 if suite.is_in(name, suite.SCALED_LOSS) else total


def optimizer(kind: str, model: torch.nn.Module, rate: float = LEARNING_RATE) -> torch.optim.Optimizer:
    """Return an optimizer. kind: torch's `sgd` or `adamw`, or `timm/NAME`. Errors: those of `timm_optimizer`."""
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=rate)
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=rate)
    return timm_optimizer(kind, model, lr=rate)


def timm_optimizer(kind: str, model: torch.nn.Module, **settings: Any) -> torch.optim.Optimizer:
    """Return an optimizer of timm. kind: `timm/NAME`. settings: lr, and others under timm's names.

    Errors: Refused for an optimizer that timm does not have, that cannot be made here, that does not take one of the
    settings, or that needs second derivatives.
    """
    from timm.optim import create_optimizer_v2, get_optimizer_info, list_optimizers  # type: ignore[attr-defined]

    name = kind.removeprefix("timm/")
    try:
        info = get_optimizer_info(name.removeprefix("lookahead_"))
        if missing := [setting for setting in settings if not getattr(info, f"has_{setting}", True)]:
            taken = [option for option in ("betas", "eps", "momentum") if getattr(info, f"has_{option}")]
            fields = " and ".join(missing).replace("betas", "beta1 and beta2")
            raise Refused(f"{kind} takes no {' and no '.join(missing)}, only {' and '.join(taken)}: leave {fields} out")
        if info.second_order:
            raise Refused(f"{kind} needs second derivatives, which this program does not compute: take another")
        return create_optimizer_v2(model, name, **settings)
    except IndexError as error:  # adan reads a third one
        raise Refused(f"{kind} takes more than two betas: leave beta1 and beta2 out") from error
    except (TypeError, AssertionError, ImportError, RuntimeError, ValueError) as error:
        if isinstance(error, Refused):
            raise
        known = ", ".join(map(str, list_optimizers()))
        raise Refused(f"{kind} cannot be made here ({error}); timm has {known}") from error


def check_optimizer(kind: str) -> None:
    """Refuse an optimizer that cannot be made here, before any model is built. Errors: those of `optimizer`."""
    optimizer(kind, torch.nn.Linear(2, 2))


def training_phases(forward: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> Phases:
    """Return the phases of a training step. forward: returns the loss, a scalar."""
    value: torch.Tensor | None = None

    def forwards() -> None:
        nonlocal value
        value = forward()

    def backward() -> None:
        nonlocal value
        assert value is not None, "forward comes first"
        value.backward()  # type: ignore[no-untyped-call]
        value = None

    def optimize() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return {"forward": forwards, "backward": backward, "optimizer": optimize}


def phases(name: ModelName, model: torch.nn.Module, run: Callable[[], Any], *, training: bool, kind: str) -> Phases:
    """Return the phases of a call: `run` alone (one forward pass of `model`), or those of a training step."""
    if not training:
        return {"forward": run}
    return training_phases(lambda: loss(name, run()), optimizer(kind, model))


@contextmanager
def buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Restore a model's buffers, such as running statistics, at the end."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)
