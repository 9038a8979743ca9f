"""FLOPs of a forward pass by hand: matrix products of all time steps; one multiply-add is 2 FLOPs."""

from engine.models.recurrent.weights import directions, lengths, output_size
from engine.specs import RecurrentSpec
from engine.specs.runners import GATES


def steps(spec: RecurrentSpec) -> int | None:
    """Steps of a call: of the longest sequence; None of a ResNet."""
    return None if spec.family == "resnet" else max(lengths(spec))


def gflops(spec: RecurrentSpec) -> float | None:
    """Return GFLOPs of one forward pass of the mini-batch, real time steps only; None for a ResNet, which is
    counted."""
    return None if spec.family == "resnet" else sum(lengths(spec)) * _flops(spec) / 1e9


def gflops_per_step(spec: RecurrentSpec) -> float | None:
    """Return the same of one step, on average, where sequences differ in length: of one step of the longest."""
    found, longest = gflops(spec), steps(spec)
    return None if found is None or longest is None else found / longest


def _flops(spec: RecurrentSpec) -> int:
    """Return the FLOPs of one time step of one sequence, all layers and directions."""
    hidden, out, ways = spec.hidden_size, output_size(spec), directions(spec)
    gates = GATES.get(spec.family, 4) * hidden
    projection = out * hidden if spec.proj_size else 0
    wide = [spec.input_size] + [out * ways] * (spec.num_layers - 1)
    return sum(2 * ways * (gates * (size + out) + projection) for size in wide)
