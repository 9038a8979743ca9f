"""Define one time step of each recurrent cell, written so that TorchScript and torch.compile accept it unchanged.

Shapes: B sequences at once, I features in, H hidden features, P features of the output (H without a projection).
A step is `(x, state, weights) -> state`: x (B, I); state the output h (B, P) and the memory c (B, H). Cells without a
memory pass on an empty tensor as c. Weights are in the order of `Cell.weights`; the matrix of a projection comes last.
Gates are in the order of nn.LSTM (in, forget, cell, out) and nn.GRU (reset, update, new).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

State = tuple[Tensor, Tensor]
Step = Callable[[Tensor, State, list[Tensor]], State]
Hoist = Callable[[Tensor, list[Tensor]], Tensor]
"""Computes something from the inputs of all time steps at once, before the loop: (T, B, I) -> (T, B, anything)."""


def _remember(gates: Tensor, c: Tensor) -> State:
    """Return the new (h, c) of an LSTM from its gates (B, 4H)."""
    enter, forget, new, out = gates.chunk(4, 1)
    c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(c), c


def lstm(x: Tensor, state: State, weights: list[Tensor]) -> State:
    """Return the new state of nn.LSTM's cell."""
    h, c = state
    gates = torch.mm(x, weights[0].t()) + torch.mm(h, weights[1].t()) + weights[2] + weights[3]
    return _remember(gates, c)


def lstm_of_product(x: Tensor, state: State, weights: list[Tensor]) -> State:
    """Return the new state of an LSTM. x (B, 4H) is already multiplied by its weights."""
    h, c = state
    return _remember(x + torch.mm(h, weights[1].t()) + weights[2] + weights[3], c)


def lstm_of_biased_product(x: Tensor, state: State, weights: list[Tensor]) -> State:
    """Return the new state of an LSTM. x (B, 4H) is already multiplied by its weights, and its bias is added."""
    h, c = state
    return _remember(x + torch.mm(h, weights[1].t()) + weights[3], c)


def gru(x: Tensor, state: State, weights: list[Tensor]) -> State:
    """Return the new state of nn.GRU's cell."""
    h, no_memory = state
    reset_x, update_x, new_x = (torch.mm(x, weights[0].t()) + weights[2]).chunk(3, 1)
    reset_h, update_h, new_h = (torch.mm(h, weights[1].t()) + weights[3]).chunk(3, 1)
    update = torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
    return new + update * (h - new), no_memory


def rnn_relu(x: Tensor, state: State, weights: list[Tensor]) -> State:
    """Return the new state of nn.RNN's cell with nonlinearity relu."""
    h, no_memory = state
    return torch.relu(torch.mm(x, weights[0].t()) + torch.mm(h, weights[1].t()) + weights[2] + weights[3]), no_memory


def rnn_tanh(x: Tensor, state: State, weights: list[Tensor]) -> State:
    """Return the new state of nn.RNN's cell with nonlinearity tanh."""
    h, no_memory = state
    return torch.tanh(torch.mm(x, weights[0].t()) + torch.mm(h, weights[1].t()) + weights[2] + weights[3]), no_memory


def milstm(x: Tensor, state: State, weights: list[Tensor]) -> State:
    """Return the new state of an LSTM with multiplicative integration: input and state are multiplied as well as added.

    Source: Wu et al. 2016, arXiv:1606.06630, eq. 4.
    """
    h, c = state
    from_x, from_h = torch.mm(x, weights[0].t()), torch.mm(h, weights[1].t())
    gates = weights[3] * from_x * from_h + weights[4] * from_x + weights[5] * from_h + weights[2]
    return _remember(gates, c)


def lstm_layernorm(x: Tensor, state: State, weights: list[Tensor]) -> State:
    """Return the new state of an LSTM with norms of both products, and of the memory where it enters the output.

    Source: Ba et al. 2016, arXiv:1607.06450, eq. 20 to 22.
    """
    h, c = state
    from_x = torch.layer_norm(torch.mm(x, weights[0].t()), weights[2].shape, weights[2], weights[3])
    from_h = torch.layer_norm(torch.mm(h, weights[1].t()), weights[4].shape, weights[4], weights[5])
    enter, forget, new, out = (from_x + from_h).chunk(4, 1)
    c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
    normalized_c = torch.layer_norm(c, weights[6].shape, weights[6], weights[7])
    return torch.sigmoid(out) * torch.tanh(normalized_c), c


def _normalized(values: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return a layer norm of single operations, which a fuser may join with others. 1e-5 is nn.LayerNorm's default."""
    centred = values - values.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * scale + shift


def lstm_layernorm_decomposed(x: Tensor, state: State, weights: list[Tensor]) -> State:
    """Return the same as lstm_layernorm, with norms made of single operations."""
    h, c = state
    from_x = _normalized(torch.mm(x, weights[0].t()), weights[2], weights[3])
    from_h = _normalized(torch.mm(h, weights[1].t()), weights[4], weights[5])
    enter, forget, new, out = (from_x + from_h).chunk(4, 1)
    c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(_normalized(c, weights[6], weights[7])), c


def projected(step: Step) -> Step:
    """Return a step whose output is projected (Sak et al. 2014, arXiv:1402.1128), as nn.LSTM does with proj_size."""

    def with_projection(x: Tensor, state: State, weights: list[Tensor]) -> State:
        h, c = step(x, state, weights)
        return torch.mm(h, weights[-1].t()), c

    return with_projection


def _unchanged(xs: Tensor, weights: list[Tensor]) -> Tensor:
    return xs


def _product(xs: Tensor, weights: list[Tensor]) -> Tensor:
    return torch.matmul(xs, weights[0].t())


def _biased_product(xs: Tensor, weights: list[Tensor]) -> Tensor:
    return torch.matmul(xs, weights[0].t()) + weights[2]


@dataclass(frozen=True)
class Cell:
    """A cell and the weights it uses."""

    step: Step
    weights: tuple[str, ...] = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    """Beginnings of the names of the weights of one layer and direction, in the order that `step` takes them."""
    hoist: Hoist = _unchanged


_NORMS = ("norm_ih_weight", "norm_ih_bias", "norm_hh_weight", "norm_hh_bias", "norm_cell_weight", "norm_cell_bias")
_LAYERNORM = ("weight_ih", "weight_hh", *_NORMS)

CELLS = {
    "lstm": Cell(lstm),
    "lstm_premul": Cell(lstm_of_product, hoist=_product),
    "lstm_premul_bias": Cell(lstm_of_biased_product, hoist=_biased_product),
    "gru": Cell(gru),
    "rnn_relu": Cell(rnn_relu),
    "rnn_tanh": Cell(rnn_tanh),
    "milstm": Cell(milstm, ("weight_ih", "weight_hh", "bias", "alpha", "beta_ih", "beta_hh")),
    "lstm_layernorm": Cell(lstm_layernorm, _LAYERNORM),
    "lstm_layernorm_decom": Cell(lstm_layernorm_decomposed, _LAYERNORM),
}
