"""Define the network of a runner, ready to be captured and called, and the settings around its calls."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.models import variants
from engine.models.variants import Numbers

Run = Callable[[], tuple[Tensor, ...]]
"""One forward pass: (output, *final states)."""
Around = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Network:
    """One runner with its own weights and inputs on its device."""

    name: str
    capture: Callable[[], Run]
    """Scripts, traces or wraps in torch.compile; nothing is captured earlier. Backward begins at the first output."""
    parameters: Mapping[str, torch.nn.Parameter]
    """Parameters under nn.LSTM's names: weight_ih_l0, ..., weight_hr_l0, ..._reverse."""
    cotangent: Tensor | None
    """Gradient with which backward begins, shaped as the first output. None for a runner without a backward pass."""
    settings: Around
    """Sets cuDNN, TF32 and gradients. Enter it around every call, forward and backward."""
    notes: tuple[str, ...] = ()
    checked: Around = nullcontext
    """Turns off dropout and keeps the statistics of norms. Enter it around a call whose result is checked."""


@contextmanager
def without_dropout(layer: Any) -> Iterator[None]:
    """Set `layer.dropout` to 0. The layer stays in training mode, because cuDNN has no backward pass in eval mode."""
    before, layer.dropout = layer.dropout, 0.0
    try:
        yield
    finally:
        layer.dropout = before


@contextmanager
def settings(types: Numbers, *, cudnn: bool = True) -> Iterator[None]:
    """Enter the settings of `variants.switches` for training. cudnn: whether cuDNN is on."""
    with variants.switches(types, training=True):
        # variants.switches restores this flag at its end
        torch.backends.cudnn.enabled = cudnn
        yield
