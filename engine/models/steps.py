"""Define one call of a model: a forward pass, or a training step in three phases."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from engine import suite
from engine.specs import ModelName

LEARNING_RATE = 1e-6
"""Learning rate for timings. It is so small that thousands of steps leave the weights almost unchanged: numbers that
overflow or vanish would change the speed."""
COMPARED_RATE = 1e-2
"""Learning rate of the few steps whose results are compared, as in PyTorch's benchmark: the weights must visibly
change."""
Optimizer = Literal["sgd", "adamw"]
Phases = Mapping[str, Callable[[], object]]


def loss(name: ModelName, output: Any) -> torch.Tensor:
    """Return the sum / number of elements of the first tensor, or of every feature tensor for an open_clip model and
    for a configuration of the user's own.

    Divided by 1000 for the models for which PyTorch's benchmark does so. Errors: ValueError when no output has a
    gradient.
    """
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not leaves:
        raise ValueError(f"{name} gives nothing that a gradient could begin at")
    features = [leaf for leaf in leaves if leaf.dim() > 1] or leaves
    used = features if name.library == "open_clip" or name.is_own else features[:1]
    total = torch.stack([tensor.sum() / tensor.numel() for tensor in used]).sum()
    return total / 1000 if suite.is_in(name, suite.SCALED_LOSS) else total


def optimizer(kind: Optimizer, model: torch.nn.Module, rate: float = LEARNING_RATE) -> torch.optim.Optimizer:
    """Return an optimizer of all parameters of a model."""
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=rate)
    return torch.optim.AdamW(model.parameters(), lr=rate)


class Step:
    """One step of training."""

    def __init__(self, forward: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Create a step. forward: returns the loss, a scalar."""
        self._forward = forward
        self._optimizer = optimizer
        self._loss: torch.Tensor | None = None

    def forward(self) -> None:
        self._loss = self._forward()

    def backward(self) -> None:
        assert self._loss is not None, "forward comes first"
        self._loss.backward()  # type: ignore[no-untyped-call]
        self._loss = None

    def optimize(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    @property
    def phases(self) -> Phases:
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.optimize}


def phases(
    name: ModelName, model: torch.nn.Module, run: Callable[[], Any], *, training: bool, kind: Optimizer
) -> Phases:
    """Return the phases of a call: `run` alone (one forward pass of `model`), or those of a training step."""
    if not training:
        return {"forward": run}
    return Step(lambda: loss(name, run()), optimizer(kind, model)).phases


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
