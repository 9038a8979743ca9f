"""Compute the FLOPs of a forward pass: matrix products of all time steps. One multiply-add is 2 FLOPs."""

from engine.models.recurrent.weights import directions, lengths, output_size
from engine.specs import RecurrentSpec
from engine.specs.runners import GATES


def steps(spec: RecurrentSpec) -> int | None:
    """Return the time steps of a call, which are those of its longest sequence. None for a ResNet."""
    return None if spec.family == "resnet" else max(lengths(spec))


def gflops(spec: RecurrentSpec) -> float | None:
    """Return the GFLOPs of one forward pass of the mini-batch, without padded time steps.

    None for a ResNet, whose FLOPs are counted instead.
    """
    return None if spec.family == "resnet" else sum(lengths(spec)) * _flops(spec) / 1e9


def gflops_per_step(spec: RecurrentSpec) -> float | None:
    """Return `gflops` / `steps`: the average over the time steps of the longest sequence. None for a ResNet."""
    total, longest = gflops(spec), steps(spec)
    return None if total is None or longest is None else total / longest


def _flops(spec: RecurrentSpec) -> int:
    """Return the FLOPs of one time step of one sequence, all layers and directions."""
    hidden, out, ways = spec.hidden_size, output_size(spec), directions(spec)
    gates = GATES.get(spec.family, 4) * hidden
    projection = out * hidden if spec.proj_size else 0
    wide = [spec.input_size] + [out * ways] * (spec.num_layers - 1)
    return sum(2 * ways * (gates * (size + out) + projection) for size in wide)
