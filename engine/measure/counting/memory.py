"""Estimate the memory that a model needs to run and to train, from the tensors alive at the same time."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from engine.measure.counting import flops
from engine.measure.counting.live import state, tensor_bytes


def inference_peak_bytes(model: torch.nn.Module, inputs: Sequence[torch.Tensor], counted: flops.Count) -> int:
    """Return the peak bytes of a forward pass without gradients: weights, buffers, inputs and live activations."""
    return tensor_bytes([*state(model), *inputs]) + counted.peak_bytes


def training_peak_bytes(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], step: Callable[[], object] | None = None
) -> int:
    """Return the peak bytes of a training step: weights, inputs, gradients, AdamW's two moments, saved activations.

    Runs a forward and a backward pass, and leaves the model as `_train` does. step: run instead; by default the loss is
    the mean of all outputs, because most losses add next to nothing. The moments count throughout, as they do from the
    second step on; each backward pass allocates the gradients. Errors: any error that the model raises.
    """

    def mean() -> None:
        leaves = [leaf for leaf in tree_leaves(model(*inputs)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in leaves if leaf.requires_grad]
        if not outputs:
            raise ValueError("no output has a gradient")
        torch.stack([output.mean() for output in outputs]).sum().backward()  # type: ignore[no-untyped-call]

    _train(model)
    with torch.enable_grad():
        counted = flops.count(model, inputs, run=step or mean)
    model.zero_grad(set_to_none=True)
    return tensor_bytes([*state(model), *inputs]) + counted.peak_bytes + 2 * tensor_bytes(trained(model))


def kept_bytes(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    """Return the bytes that a training step keeps from its forward to its backward pass: activations, inputs, outputs.

    Leaves the model as `_train` does. Errors: any error that the model raises.
    """
    _train(model)
    with torch.enable_grad():
        counted = flops.count(model, inputs)
    return tensor_bytes(inputs) + counted.kept_bytes


def on_fake_cpu(model: torch.nn.Module, mode: FakeTensorMode) -> None:
    """Move a model from meta to fake tensors of a CPU, for which autocast converts types. It does nothing on meta."""
    model._apply(lambda tensor: faked(tensor, mode))  # type: ignore[no-untyped-call]


def faked(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """Return a tensor of a CPU without data like one on meta: the same one each time."""
    return mode.fake_tensor_converter.from_meta_and_device(mode, tensor, torch.device("cpu"))


def _train(model: torch.nn.Module) -> None:
    """Switch the model to training mode, and LayerDrop of transformers off: it would skip random layers."""
    model.train()
    module: Any
    for module in model.modules():
        if hasattr(module, "layerdrop"):
            module.layerdrop = 0.0


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that have gradients, and so moments."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
