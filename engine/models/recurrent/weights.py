"""Draw the weights, inputs and lengths of a comparison by its seed: the same for every runner and every device.

The lengths define the FLOPs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor

from engine.models.built import DTYPES
from engine.models.recurrent.cells import CELLS
from engine.specs import RecurrentSpec
from engine.specs.recurrent import SHORTEST, macs_per_step

LAYERS: dict[str, Any] = {
    "gru": torch.nn.GRU,
    "rnn_relu": partial(torch.nn.RNN, nonlinearity="relu"),
    "rnn_tanh": partial(torch.nn.RNN, nonlinearity="tanh"),
}
"""torch's own layers by family, which have neither a memory nor a projection. The other families use nn.LSTM."""
INITIAL = {"norm_hh_weight": 0.25}
"""Initial values of weights that torch's own layers do not have and that are neither one for scales nor zero for
shifts.

With ones, a layer-norm LSTM with random weights is chaotic: after a hundred time steps, two correct implementations
differ."""
INPUT, HIDDEN, MEMORY, COTANGENT, LENGTHS = range(1, 6)
"""Random streams. Each kind of values is drawn from its own stream."""


def directions(spec: RecurrentSpec) -> int:
    """Return 2 for bidirectional layers, else 1."""
    return 2 if spec.bidirectional else 1


def output_size(spec: RecurrentSpec) -> int:
    """Return the output features of a layer in one direction."""
    return spec.proj_size or spec.hidden_size


def torch_layer(spec: RecurrentSpec, dropout: float = 0.0) -> torch.nn.RNNBase:
    """Return torch's own layer on the CPU in float32, with torch's initial weights. Cells copy its weights."""
    kind = LAYERS.get(spec.family, torch.nn.LSTM)
    projection = {} if spec.family in LAYERS else {"proj_size": spec.proj_size}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        layer: torch.nn.RNNBase = kind(
            input_size=spec.input_size,
            hidden_size=spec.hidden_size,
            num_layers=spec.num_layers,
            bidirectional=spec.bidirectional,
            batch_first=spec.batch_first,
            dropout=dropout,
            **projection,
        )
    return layer


def drawn(spec: RecurrentSpec, cell: str) -> dict[str, Tensor]:
    """Return the weights of all layers for a cell under nn.LSTM's names, on the CPU in the spec's precision.

    Matrices and biases are torch's own. alpha, beta and scales of norms begin as ones, shifts as zeros; INITIAL has the
    exceptions.
    """
    torch_weights = {name: value.detach() for name, value in torch_layer(spec).named_parameters()}
    gates = torch_weights["weight_ih_l0"].shape[0]
    weights = {}
    for place in places(spec):
        for name in names(spec, cell):
            if name == "bias":
                value = torch_weights[f"bias_ih_{place}"]
            elif f"{name}_{place}" in torch_weights:
                value = torch_weights[f"{name}_{place}"]
            else:
                size = spec.hidden_size if name.startswith("norm_cell") else gates
                value = torch.full((size,), INITIAL.get(name, 0.0 if name.endswith("bias") else 1.0))
            weights[f"{name}_{place}"] = value.to(dtype(spec))
    return weights


def places(spec: RecurrentSpec) -> list[str]:
    """Return the endings of the names of weights, by layer and direction."""
    suffixes = ("", "_reverse")[: directions(spec)]
    return [f"l{layer}{suffix}" for layer in range(spec.num_layers) for suffix in suffixes]


def names(spec: RecurrentSpec, cell: str) -> tuple[str, ...]:
    """Return the beginnings of the names of a cell's weights, in the order in which its step takes them."""
    return CELLS[cell].weights + (("weight_hr",) if spec.proj_size else ())


@dataclass(frozen=True)
class Inputs:
    """Inputs of a call. None of them requires a gradient."""

    x: Tensor
    """(time steps, batch, features), or (batch, time steps, features)."""
    h: Tensor
    """(layers x directions, batch, features of an output)."""
    c: Tensor
    """(layers x directions, batch, hidden features); with 0 features for cells without memory."""
    lengths: list[int]
    """Time steps of each sequence."""

    def to(self, device: str | torch.device, dtype: torch.dtype) -> "Inputs":
        """Return the same inputs on another device or in another type."""
        return Inputs(self.x.to(device, dtype), self.h.to(device, dtype), self.c.to(device, dtype), self.lengths)

    @property
    def state(self) -> Any:
        """Return the state in the form that torch's own layers take: (h, c), or h alone."""
        return (self.h, self.c) if self.c.shape[-1] else self.h


def inputs(spec: RecurrentSpec) -> Inputs:
    """Return random normal inputs on the CPU in the spec's precision."""
    states = spec.num_layers * directions(spec), spec.mini_batch
    x = normal(spec, INPUT, (spec.seq_length, spec.mini_batch, spec.input_size))
    h = normal(spec, HIDDEN, (*states, output_size(spec)))
    c = normal(spec, MEMORY, (*states, 0 if spec.family in LAYERS else spec.hidden_size))
    steps = lengths(spec)
    x = x[: max(steps)]
    x = x.transpose(0, 1).contiguous() if spec.batch_first else x
    return Inputs(x, h, c, steps)


def cotangent(spec: RecurrentSpec, *, of_states: bool = False) -> Tensor:
    """Return the gradient with which backward begins, on the CPU in the spec's precision.

    It has the shape of the output, or of the last h with `of_states`.
    """
    count, size = directions(spec), output_size(spec)
    if of_states:
        return normal(spec, COTANGENT, (spec.num_layers * count, spec.mini_batch, size))
    values = normal(spec, COTANGENT, (max(lengths(spec)), spec.mini_batch, count * size))
    return values.transpose(0, 1).contiguous() if spec.batch_first else values


def lengths(spec: RecurrentSpec) -> list[int]:
    """Return each sequence's time steps: all equal; for vl_lstm uniform in [SHORTEST x seq_length, seq_length - 1]."""
    if spec.family != "vl_lstm":
        return [spec.seq_length] * spec.mini_batch
    longest = max(1, spec.seq_length - 1)
    shortest = min(longest, ceil(SHORTEST * spec.seq_length))
    return torch.randint(shortest, longest + 1, (spec.mini_batch,), generator=_stream(spec, LENGTHS)).tolist()


def steps(spec: RecurrentSpec) -> int:
    """Return the time steps of a call, which are those of its longest sequence."""
    return max(lengths(spec))


def gflops(spec: RecurrentSpec) -> float:
    """Return the GFLOPs of a forward pass of a layer: its matrix products, without padded time steps.

    One multiply-add is 2 FLOPs.
    """
    return sum(lengths(spec)) * 2 * macs_per_step(spec) / 1e9


def normal(spec: RecurrentSpec, stream: int, shape: Sequence[int]) -> Tensor:
    """Return random normal numbers of this seed and stream, on the CPU in the spec's precision."""
    return torch.randn(tuple(shape), generator=_stream(spec, stream)).to(dtype(spec))


def dtype(spec: RecurrentSpec) -> torch.dtype:
    """Return the data type of weights and inputs."""
    return DTYPES.get(spec.precision, torch.float32)  # tf32 is a mode of float32


def _stream(spec: RecurrentSpec, stream: int) -> torch.Generator:
    """Return a generator on the CPU, so that every device gets the same numbers."""
    return torch.Generator().manual_seed(8 * spec.seed + stream)
