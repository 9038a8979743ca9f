"""Make layers on meta call the fused operators that a real device uses, so that their traffic and memory are the same.

On meta, attention would be split into matrix products that keep all scores in memory, and an LSTM into time steps that
each read all its weights.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
LSTM = 2
"""oneDNN's number for this kind of layer."""


@contextmanager
def fused_on_meta() -> Iterator[None]:
    """Fuse attention and LSTMs on meta.

    The functions are replaced by name, because a mode for torch functions would not see the calls made inside
    torch.nn. GRUs and RNNs stay split, as on a CPU.
    """
    functional, layers = torch.nn.functional, torch._VF
    attention, lstm = functional.scaled_dot_product_attention, layers.lstm
    functional.scaled_dot_product_attention = _either(_attention, attention)
    layers.lstm = _either(_lstm, lstm)
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, layers.lstm = attention, lstm


def _either(fused: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `fused`, or `real` if that returns None."""

    def call(*args: Any, **kwargs: Any) -> Any:
        out = fused(*args, **kwargs)
        return real(*args, **kwargs) if out is None else out

    return call


def _lstm(
    x: Tensor,
    hx: Sequence[Tensor] | Tensor,
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the output and both last states, from the operators that torch calls on a CPU (ATen's mkldnn_rnn).

    None for layers with a projection, for packed input, and while gradients are recorded: on meta, the operator does
    not return the values that a real one keeps for the backward pass.
    """
    size, directions = 4 if has_biases else 2, 2 if bidirectional else 1
    with_projections = len(weights) != size * directions * num_layers
    if isinstance(hx, Tensor) or with_projections or not x.is_meta or torch.is_grad_enabled():
        return None
    h, c = (state.contiguous() for state in hx)
    sequence = (x.transpose(0, 1) if batch_first else x).contiguous()  # alive to the end, as in ATen
    out, outputs, last = sequence, [sequence] * directions, []
    options = (LSTM, h.shape[-1], num_layers, has_biases, bidirectional, batch_first, training)
    for layer in range(num_layers):
        for direction in range(directions):
            index = layer * directions + direction
            own = weights[index * size :][:size]
            # in place of missing biases, ATen passes zeros of the weights' shapes
            zeros = (torch.zeros(weight.shape, dtype=x.dtype, device="meta") for weight in own if not has_biases)
            outputs[direction], *state, _ = aten.mkldnn_rnn_layer(
                out, *own, *zeros, h[index], c[index], direction > 0, [], *options
            )
            last.append(state)
        out = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and training and layer < num_layers - 1:
            out = torch.dropout(out, dropout, True)
    h, c = (torch.stack(states) for states in zip(*last, strict=True))
    return out.transpose(0, 1) if batch_first else out, h, c


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Return the output of attention. None if a real device would not fuse it either, or if it is not on meta."""
    if not (query.dim() == key.dim() == value.dim()) or key.shape[:-1] != value.shape[:-1]:
        return None
    # for (batch, length, width), the batch takes the place of heads
    if query.dim() == 3 and (attn_mask is None or attn_mask.dim() <= 3):
        mask = attn_mask.unsqueeze(0) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
        query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
        fused = _attention(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return None if fused is None else fused.squeeze(0)
    if not query.is_meta or query.dim() != 4 or query.shape[-1] != value.shape[-1]:
        return None
    heads, key_heads = query.shape[1], key.shape[1]
    heads_match = heads % key_heads == 0 if enable_gqa and key_heads else heads == key_heads
    if not heads_match or query.shape[0] != key.shape[0] or (attn_mask is not None and attn_mask.requires_grad):
        return None
    # dropout_p is 0 because the CPU operator, used here for its shapes, has no dropout; shapes and counts do not change
    out, _ = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )
    result: Tensor = out
    return result
