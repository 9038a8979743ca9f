"""Build runners of torchvision's ResNets in training mode, called directly or traced."""

from functools import partial

import torch
from torch import Tensor

from engine.models import steps
from engine.models.recurrent import weights
from engine.models.recurrent.network import Network, Run, settings
from engine.models.variants import Numbers, traced
from engine.specs import RecurrentSpec
from engine.specs.fields.runners import RUNNERS

CALM = 0.1
"""Scale of the last norm of each block. With torchvision's scale of 1, the gradients of a ResNet-50 with random weights
depend on which ReLUs rounding happens to open: float32 gradients are a third off those in float64."""


def model(spec: RecurrentSpec, name: str) -> torch.nn.Module:
    """Return a ResNet on the CPU in the spec's precision, drawn by its seed."""
    import torchvision

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        network: torch.nn.Module = torchvision.models.get_model(RUNNERS[name].network, weights=None)
    for block in network.modules():
        if (last := getattr(block, "bn3", getattr(block, "bn2", None))) is not None:
            torch.nn.init.constant_(last.weight, CALM)
    return network.train().to(weights.dtype(spec))


def images(spec: RecurrentSpec) -> Tensor:
    """Return random normal images (mini_batch, 3, height, width) on the CPU in the spec's precision."""
    return weights.normal(spec, weights.INPUT, (spec.mini_batch, 3, *spec.image_size))


def cotangent(spec: RecurrentSpec) -> Tensor:
    """Return random normal numbers (mini_batch, 1000) on the CPU in the spec's precision."""
    return weights.normal(spec, weights.COTANGENT, (spec.mini_batch, 1000))


def build(name: str, spec: RecurrentSpec, types: Numbers) -> Network:
    """Return the network of a ResNet runner."""
    network = model(spec, name).to(spec.device)
    return Network(
        name=name,
        capture=partial(_capture, name, network, images(spec).to(spec.device)),
        parameters=dict(network.named_parameters()),
        cotangent=cotangent(spec).to(spec.device),
        settings=partial(settings, types),
        checked=partial(steps.buffers_kept, network),
    )


def _capture(name: str, network: torch.nn.Module, batch: Tensor) -> Run:
    if RUNNERS[name].execution == "eager":
        return lambda: (network(batch),)
    if RUNNERS[name].execution != "trace":
        raise NotImplementedError(f"_capture in {__name__} has no case for the runner {name}")
    with steps.buffers_kept(network):
        trace = traced(network, (batch,))
    return lambda: (trace(batch),)
