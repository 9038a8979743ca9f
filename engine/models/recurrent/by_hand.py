"""Compute two cells that torch has no layer for a second time, with different code, only to check the timed ones.

Nothing is shared with the timed cells: gates have their own axis here, products are sums over named indices, and time
steps are indexed.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from engine.models.recurrent.weights import Inputs, directions
from engine.specs import RecurrentSpec

Own = Callable[[str], Tensor]
"""Returns the weight with a given name in one layer and direction."""


def _product(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Return the product of (4H, F) and (B, F) as (4, B, H), with one slice per gate."""
    return torch.einsum("ghf,bf->gbh", matrix.view(4, -1, matrix.shape[1]), vectors)


def _of_gates(own: Own, name: str) -> Tensor:
    """Return a weight (4H) as (4, 1, H)."""
    return own(name).view(4, 1, -1)


def _multiplicative(own: Own, x: Tensor, h: Tensor) -> Tensor:
    """Return the gates (4, B, H) of Wu et al. 2016: alpha * Wx * Uh + beta_ih * Wx + beta_hh * Uh + bias."""
    wx, uh = _product(own("weight_ih"), x), _product(own("weight_hh"), h)
    both = _of_gates(own, "alpha") * wx * uh
    return both + _of_gates(own, "beta_ih") * wx + _of_gates(own, "beta_hh") * uh + _of_gates(own, "bias")


def _normalized(own: Own, x: Tensor, h: Tensor) -> Tensor:
    """Return the gates (4, B, H) of Ba et al. 2016: LN(Wx) + LN(Uh), each norm over all gates together."""
    return _norm_of_product(own, "ih", x) + _norm_of_product(own, "hh", h)


def _norm_of_product(own: Own, which: str, vectors: Tensor) -> Tensor:
    product = torch.einsum("gf,bf->bg", own(f"weight_{which}"), vectors)
    scale, shift = own(f"norm_{which}_weight"), own(f"norm_{which}_bias")
    return layer_norm(product, [len(scale)], scale, shift).view(len(vectors), 4, -1).transpose(0, 1)


FORMULAS = {"milstm": _multiplicative, "lstm_layernorm": _normalized}
"""Functions that compute the gates, by network."""


def by_hand(spec: RecurrentSpec, network: str, weights: Mapping[str, Tensor], inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the output, laid out by batch_first, and the last h and c (layers x directions, batch, features)."""
    below = inputs.x.transpose(0, 1) if spec.batch_first else inputs.x
    finals = []
    for layer in range(spec.num_layers):
        ways = []
        for way, suffix in enumerate(("", "_reverse")[: directions(spec)]):
            own = partial(_own, weights, f"_l{layer}{suffix}")
            place = layer * directions(spec) + way
            shown, state = _one_way(spec, network, own, below, way == 1, (inputs.h[place], inputs.c[place]))
            ways.append(shown)
            finals.append(state)
        below = torch.cat(ways, dim=-1)
    last_h, last_c = (torch.stack(per_layer) for per_layer in zip(*finals, strict=True))
    return (below.transpose(0, 1) if spec.batch_first else below), last_h, last_c


def _own(weights: Mapping[str, Tensor], place: str, name: str) -> Tensor:
    return weights[name + place]


def _one_way(
    spec: RecurrentSpec, network: str, own: Own, xs: Tensor, backwards: bool, state: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return all time steps of one layer in one direction: outputs (steps, batch, features) and the last state."""
    h, c = state
    shown = {}
    for step in sorted(range(len(xs)), reverse=backwards):
        enter, forget, new, out = FORMULAS[network](own, xs[step], h)
        c = c * forget.sigmoid() + enter.sigmoid() * new.tanh()
        seen = c
        if network == "lstm_layernorm":
            seen = layer_norm(c, [c.shape[1]], own("norm_cell_weight"), own("norm_cell_bias"))
        h = out.sigmoid() * seen.tanh()
        if spec.proj_size:
            h = torch.einsum("ph,bh->bp", own("weight_hr"), h)
        shown[step] = h
    return torch.stack([shown[step] for step in range(len(xs))]), (h, c)
