"""The weights, inputs and lengths of a comparison, drawn by its seed: the same for every runner and every device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor

from engine.models.recurrent.cells import CELLS
from engine.specs import RecurrentSpec
from engine.specs.recurrent import SHORTEST

LAYERS: dict[str, Any] = {
    "gru": torch.nn.GRU,
    "rnn_relu": partial(torch.nn.RNN, nonlinearity="relu"),
    "rnn_tanh": partial(torch.nn.RNN, nonlinearity="tanh"),
}
"""torch's own layers by family; those of the others are nn.LSTM."""
BEGIN = {"norm_hh_weight": 0.25}
"""What weights are filled with that torch's own layers have not, if neither with one for scales nor zero for shifts.

With ones, a layer-norm LSTM of random weights is chaotic: after a hundred steps, two right ways to compute it part.
"""
INPUT, HIDDEN, MEMORY, COTANGENT, LENGTHS = range(1, 6)
"""What is drawn, each from a stream of its own."""


def directions(spec: RecurrentSpec) -> int:
    """1, or 2 where layers run both ways."""
    return 2 if spec.bidirectional else 1


def output_size(spec: RecurrentSpec) -> int:
    """Features that a layer gives in one direction."""
    return spec.proj_size or spec.hidden_size


def torch_layer(spec: RecurrentSpec, dropout: float = 0.0) -> torch.nn.RNNBase:
    """torch's own layer on the CPU in float32, with weights as torch draws them. All cells get theirs from here."""
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
    """Return the weights of all layers for a cell, named as nn.LSTM does, on the CPU in the type of the spec's
    precision.

    Matrices and biases are torch's own; alpha, beta and scales of norms begin as ones, shifts as zeros, but for BEGIN.
    """
    own = {name: value.detach() for name, value in torch_layer(spec).named_parameters()}
    gates = own["weight_ih_l0"].shape[0]
    found = {}
    for place in places(spec):
        for name in names(spec, cell):
            if name == "bias":
                value = own[f"bias_ih_{place}"]
            elif f"{name}_{place}" in own:
                value = own[f"{name}_{place}"]
            else:
                size = spec.hidden_size if name.startswith("norm_cell") else gates
                value = torch.full((size,), BEGIN.get(name, 0.0 if name.endswith("bias") else 1.0))
            found[f"{name}_{place}"] = value.to(dtype(spec))
    return found


def places(spec: RecurrentSpec) -> list[str]:
    """Return how the names of weights end, layer by layer and direction by direction."""
    ways = ("", "_reverse")[: directions(spec)]
    return [f"l{layer}{way}" for layer in range(spec.num_layers) for way in ways]


def names(spec: RecurrentSpec, cell: str) -> tuple[str, ...]:
    """Return how the names of a cell's weights begin, in the order in which its step takes them."""
    return CELLS[cell].weights + (("weight_hr",) if spec.proj_size else ())


@dataclass(frozen=True)
class Inputs:
    """Inputs of a call. None of them requires a gradient."""

    x: Tensor
    """(steps, batch, features), or (batch, steps, features)."""
    h: Tensor
    """(layers x directions, batch, features of an output)"""
    c: Tensor
    """(layers x directions, batch, hidden features); without any features where cells have no memory."""
    lengths: list[int]
    """Steps of each sequence."""

    def to(self, device: str | torch.device, dtype: torch.dtype) -> "Inputs":
        """Return the same numbers elsewhere."""
        return Inputs(self.x.to(device, dtype), self.h.to(device, dtype), self.c.to(device, dtype), self.lengths)

    @property
    def state(self) -> Any:
        """The state as torch's own layers take it: (h, c), or h alone."""
        return (self.h, self.c) if self.c.shape[-1] else self.h


def inputs(spec: RecurrentSpec) -> Inputs:
    """Random normal numbers, on the CPU in the type of the spec's precision."""
    states = spec.num_layers * directions(spec), spec.mini_batch
    x = normal(spec, INPUT, (spec.seq_length, spec.mini_batch, spec.input_size))
    h = normal(spec, HIDDEN, (*states, output_size(spec)))
    c = normal(spec, MEMORY, (*states, 0 if spec.family in LAYERS else spec.hidden_size))
    found = lengths(spec)
    x = x[: max(found)]
    x = x.transpose(0, 1).contiguous() if spec.batch_first else x
    return Inputs(x, h, c, found)


def cotangent(spec: RecurrentSpec, *, of_states: bool = False) -> Tensor:
    """Return what backward begins with, shaped as the output or as the last h; on the CPU in the precision asked
    for."""
    ways, size = directions(spec), output_size(spec)
    if of_states:
        return normal(spec, COTANGENT, (spec.num_layers * ways, spec.mini_batch, size))
    found = normal(spec, COTANGENT, (max(lengths(spec)), spec.mini_batch, ways * size))
    return found.transpose(0, 1).contiguous() if spec.batch_first else found


def lengths(spec: RecurrentSpec) -> list[int]:
    """Steps of each sequence: all the same, or from SHORTEST of seq_length to one step less than it, evenly drawn."""
    if spec.family != "vl_lstm":
        return [spec.seq_length] * spec.mini_batch
    longest = max(1, spec.seq_length - 1)
    shortest = min(longest, ceil(SHORTEST * spec.seq_length))
    return torch.randint(shortest, longest + 1, (spec.mini_batch,), generator=_stream(spec, LENGTHS)).tolist()


def normal(spec: RecurrentSpec, what: int, shape: Sequence[int]) -> Tensor:
    """Return normal numbers of this seed and stream, on the CPU in the spec's precision."""
    return torch.randn(tuple(shape), generator=_stream(spec, what)).to(dtype(spec))


def dtype(spec: RecurrentSpec) -> torch.dtype:
    """Return the data type of weights and inputs."""
    kinds = {"float16": torch.float16, "bfloat16": torch.bfloat16}
    return kinds.get(spec.precision, torch.float32)


def _stream(spec: RecurrentSpec, what: int) -> torch.Generator:
    """On the CPU, so that every device gets the same numbers."""
    return torch.Generator().manual_seed(8 * spec.seed + what)
