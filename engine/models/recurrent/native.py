"""torch's own layers: on cuDNN, without it, on packed sequences, under torch.compile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from engine.models.recurrent import weights
from engine.models.recurrent.network import Network, Run, settings
from engine.models.recurrent.weights import Inputs
from engine.models.variants import Numbers, compiled
from engine.specs import RecurrentSpec


def build(name: str, spec: RecurrentSpec, found: Numbers, *, dropout: float, cudnn: bool) -> Network:
    """Return a runner of torch's own layers. dropout: the share dropped between them. cudnn: whether it may be used."""
    kind = weights.dtype(spec)
    inputs = weights.inputs(spec).to(spec.device, kind)  # before the weights, as in looped
    layer = weights.torch_layer(spec, dropout if spec.num_layers > 1 else 0.0).to(spec.device, kind)
    layer.flatten_parameters()
    bound = name.endswith("_layernorm")
    return Network(
        name=name,
        capture=partial(_capture, name, spec, layer, inputs),
        parameters=dict(layer.named_parameters()),
        cotangent=None if bound else weights.cotangent(spec).to(spec.device),
        settings=settings(found, cudnn=cudnn),
        checked=partial(_undropped, layer),
    )


@contextmanager
def _undropped(layer: torch.nn.RNNBase) -> Iterator[None]:
    """Without dropout but in training mode still, without which cuDNN has no backward pass."""
    before, layer.dropout = layer.dropout, 0.0
    try:
        yield
    finally:
        layer.dropout = before


def _capture(name: str, spec: RecurrentSpec, layer: torch.nn.RNNBase, inputs: Inputs) -> Run:
    if name == "compile_lstm":
        return partial(called, compiled(layer), inputs)
    if name.endswith("_layernorm"):
        return _with_norms(partial(called, layer, inputs), spec)
    return partial(called_packed if spec.family == "vl_lstm" else called, layer, inputs)


def called(layer: Callable[..., Any], inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the output, and the last states as flat as they come."""
    return _flat(*layer(inputs.x, inputs.state))


def called_packed(layer: Any, inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the same of sequences of different lengths, packed before and padded with zeros after."""
    first = layer.batch_first
    packed = pack_padded_sequence(inputs.x, torch.tensor(inputs.lengths), batch_first=first, enforce_sorted=False)
    output, last = layer(packed, inputs.state)
    return _flat(pad_packed_sequence(output, batch_first=first)[0], last)


def _flat(output: Tensor, last: Any) -> tuple[Tensor, ...]:
    return (output, *last) if isinstance(last, tuple) else (output, last)


def _with_norms(run: Run, spec: RecurrentSpec) -> Run:
    """Return a run, and as many layer norms of as many features as a layer-norm LSTM of its size has.

    What they give is not used: they stand for what such an LSTM needs beyond a fused one, at the least.
    """
    sizes = (4 * spec.hidden_size, 4 * spec.hidden_size, spec.hidden_size)
    norms = [torch.nn.LayerNorm(size).to(spec.device, weights.dtype(spec)) for size in sizes]
    values = [weights.normal(spec, weights.INPUT, (spec.mini_batch, size)).to(spec.device) for size in sizes]
    times = spec.seq_length * spec.num_layers * weights.directions(spec)

    def run_with_norms() -> tuple[Tensor, ...]:
        found = run()
        for _ in range(times):
            for norm, value in zip(norms, values, strict=True):
                norm(value)
        return found

    return run_with_norms
