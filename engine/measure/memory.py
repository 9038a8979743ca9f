"""Memory that a model needs to run and to train, estimated from the tensors that live at once."""

from collections.abc import Callable, Sequence

import torch
from torch.utils._pytree import tree_leaves

from engine.measure import flops
from engine.measure.live import state, tensor_bytes


def inference_peak_bytes(model: torch.nn.Module, inputs: Sequence[torch.Tensor], counted: flops.Count) -> int:
    """Weights, buffers, inputs, and the most that was alive beside them in a forward pass without gradients."""
    return tensor_bytes([*state(model), *inputs]) + counted.peak_bytes


def training_peak_bytes(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], step: Callable[[], object] | None = None
) -> int:
    """Return the most bytes alive in a training step: weights, inputs, gradients, AdamW's two moments, saved
    activations.

    Runs a forward and backward pass in training mode: `step`, to which `inputs` are all there is beside the model; by
    default of the mean of all outputs, to which most losses add next to nothing.
    The moments are there throughout, as from the second step on; gradients are made anew by every backward pass.
    Leaves the model in training mode. Errors: whatever the model raises there.
    """

    def mean() -> None:
        leaves = [leaf for leaf in tree_leaves(model(*inputs)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in leaves if leaf.requires_grad]
        torch.stack([output.mean() for output in outputs]).sum().backward()  # type: ignore[no-untyped-call]

    model.train()
    with torch.enable_grad():
        counted = flops.count(model, inputs, run=step or mean)
    model.zero_grad(set_to_none=True)
    return tensor_bytes([*state(model), *inputs]) + counted.peak_bytes + 2 * tensor_bytes(trained(model))


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that have gradients, and moments."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
