"""Compute two cells again with different code, to check the timed ones: torch has no layers for them.

Nothing is shared with the timed cells: gates have their own axis here, products are sums over named indices, and time
steps are indexed.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from engine.models.recurrent.weights import Inputs, directions
from engine.specs import RecurrentSpec

Weights = Mapping[str, Tensor]
"""The weights of one layer and direction by name."""


def _product(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Return the product of (4H, F) and (B, F) as (4, B, H), with one slice per gate."""
    return torch.einsum("ghf,bf->gbh", matrix.view(4, -1, matrix.shape[1]), vectors)


def _multiplicative(weights: Weights, x: Tensor, h: Tensor) -> Tensor:
    """Return the gates (4, B, H) of Wu et al. 2016: alpha * Wx * Uh + beta_ih * Wx + beta_hh * Uh + bias."""
    wx, uh = _product(weights["weight_ih"], x), _product(weights["weight_hh"], h)
    alpha, beta_ih, beta_hh, bias = (weights[name].view(4, 1, -1) for name in ("alpha", "beta_ih", "beta_hh", "bias"))
    return alpha * wx * uh + beta_ih * wx + beta_hh * uh + bias


def _normalized(weights: Weights, x: Tensor, h: Tensor) -> Tensor:
    """Return the gates (4, B, H) of Ba et al. 2016: LN(Wx) + LN(Uh), each norm over all gates together."""
    return _norm_of_product(weights, "ih", x) + _norm_of_product(weights, "hh", h)


def _norm_of_product(weights: Weights, which: str, vectors: Tensor) -> Tensor:
    product = torch.einsum("gf,bf->bg", weights[f"weight_{which}"], vectors)
    scale, shift = weights[f"norm_{which}_weight"], weights[f"norm_{which}_bias"]
    return layer_norm(product, [len(scale)], scale, shift).view(len(vectors), 4, -1).transpose(0, 1)


FORMULAS = {"milstm": _multiplicative, "lstm_layernorm": _normalized}
"""Functions that compute the gates, by network."""


def by_hand(spec: RecurrentSpec, network: str, weights: Mapping[str, Tensor], inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the output, laid out by batch_first, and the last h and c (layers x directions, batch, features)."""
    below = inputs.x.transpose(0, 1) if spec.batch_first else inputs.x
    finals = []
    for layer in range(spec.num_layers):
        directed = []
        for direction, suffix in enumerate(("", "_reverse")[: directions(spec)]):
            ending = f"_l{layer}{suffix}"
            own = {name.removesuffix(ending): value for name, value in weights.items() if name.endswith(ending)}
            place = layer * directions(spec) + direction
            start = inputs.h[place], inputs.c[place]
            outputs, state = _run_direction(spec, network, own, below, direction == 1, start)
            directed.append(outputs)
            finals.append(state)
        below = torch.cat(directed, dim=-1)
    last_h, last_c = (torch.stack(per_layer) for per_layer in zip(*finals, strict=True))
    return (below.transpose(0, 1) if spec.batch_first else below), last_h, last_c


def _run_direction(
    spec: RecurrentSpec, network: str, weights: Weights, xs: Tensor, backwards: bool, state: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return all time steps of one layer in one direction: outputs (steps, batch, features) and the last state."""
    h, c = state
    outputs = {}
    for step in sorted(range(len(xs)), reverse=backwards):
        enter, forget, new, out = FORMULAS[network](weights, xs[step], h)
        c = c * forget.sigmoid() + enter.sigmoid() * new.tanh()
        normed_c = c
        if network == "lstm_layernorm":
            normed_c = layer_norm(c, [c.shape[1]], weights["norm_cell_weight"], weights["norm_cell_bias"])
        h = out.sigmoid() * normed_c.tanh()
        if spec.proj_size:
            h = torch.einsum("ph,bh->bp", weights["weight_hr"], h)
        outputs[step] = h
    return torch.stack([outputs[step] for step in range(len(xs))]), (h, c)
