"""Compute the FLOPs of a recurrent layer: matrix products of all time steps, forward. One multiply-add is 2 FLOPs."""

from engine.models.recurrent.weights import lengths
from engine.specs import RecurrentSpec
from engine.specs.recurrent import macs_per_step


def steps(spec: RecurrentSpec) -> int:
    """Return the time steps of a call, which are those of its longest sequence."""
    return max(lengths(spec))


def gflops(spec: RecurrentSpec) -> float:
    """Return the GFLOPs of one forward pass of the mini-batch, without padded time steps."""
    return sum(lengths(spec)) * 2 * macs_per_step(spec) / 1e9
