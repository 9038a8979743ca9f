"""One call of a model: a forward pass, or a training step in three phases."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from engine import suite
from engine.specs import ModelName

LEARNING_RATE = 1e-6
"""So small that a timing's thousands of steps leave the weights where they were: numbers that overflow or vanish would
be slower or faster than those of a training."""
COMPARED_RATE = 1e-2
"""Of the few steps whose results are compared, as in PyTorch's benchmark: the weights must be seen to move."""
Optimizer = Literal["sgd", "adamw"]
Phases = Mapping[str, Callable[[], object]]


def loss(name: ModelName, output: Any) -> torch.Tensor:
    """Sum / number of elements: of a tuple's first tensor, of an open_clip model's every feature tensor.

    Divided by 1000 for the models that PyTorch's benchmark does this for.
    """
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not leaves:
        raise ValueError(f"{name} gives nothing that a gradient could begin at")
    features = [leaf for leaf in leaves if leaf.dim() > 1] or leaves
    used = features if name.library == "open_clip" else features[:1]
    total = torch.stack([tensor.sum() / tensor.numel() for tensor in used]).sum()
    return total / 1000 if suite.is_in(name, suite.SCALED_LOSS) else total


def optimizer(kind: Optimizer, model: torch.nn.Module, rate: float = LEARNING_RATE) -> torch.optim.Optimizer:
    """Over all of a model's parameters."""
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=rate)
    return torch.optim.AdamW(model.parameters(), lr=rate)


class Step:
    """One step of training."""

    def __init__(self, forward: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
        """forward: gives the loss, a scalar."""
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
    """Return what a call of `run` (one forward pass of `model`) is made of."""
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
