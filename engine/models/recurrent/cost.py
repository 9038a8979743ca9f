"""Compute the FLOPs of a forward pass: matrix products of all time steps. One multiply-add is 2 FLOPs."""

from engine.models.recurrent.weights import lengths
from engine.specs import RecurrentSpec
from engine.specs.recurrent import macs_per_step


def steps(spec: RecurrentSpec) -> int | None:
    """Return the time steps of a call, which are those of its longest sequence. None for a ResNet."""
    return None if spec.family == "resnet" else max(lengths(spec))


def gflops(spec: RecurrentSpec) -> float | None:
    """Return the GFLOPs of one forward pass of the mini-batch, without padded time steps.

    None for a ResNet, whose FLOPs are counted instead.
    """
    return None if spec.family == "resnet" else sum(lengths(spec)) * 2 * macs_per_step(spec) / 1e9


def gflops_per_step(spec: RecurrentSpec) -> float | None:
    """Return `gflops` / `steps`: the average over the time steps of the longest sequence. None for a ResNet."""
    total, longest = gflops(spec), steps(spec)
    return None if total is None or longest is None else total / longest
