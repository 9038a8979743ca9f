"""Build runners of torch's own layers: with cuDNN, without it, on packed sequences, under torch.compile."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from engine.models.recurrent import weights
from engine.models.recurrent.network import Network, Run, settings, without_dropout
from engine.models.recurrent.weights import Inputs
from engine.models.variants import Numbers, compiled
from engine.specs import RecurrentSpec
from engine.specs.fields.runners import RUNNERS


def build(name: str, spec: RecurrentSpec, types: Numbers, *, dropout: float, cudnn: bool) -> Network:
    """Return the network of torch's own layers. dropout: share zeroed between layers. cudnn: whether it may be used."""
    dtype = weights.dtype(spec)
    inputs = weights.inputs(spec).to(spec.device, dtype)  # before the weights, to fail early, as in looped
    layer = weights.torch_layer(spec, dropout if spec.num_layers > 1 else 0.0).to(spec.device, dtype)
    layer.flatten_parameters()
    # the norms of this runner only show the least extra time, so it has no backward pass
    lower_bound = name.endswith("_layernorm")
    return Network(
        name=name,
        capture=partial(_capture, name, spec, layer, inputs),
        parameters=dict(layer.named_parameters()),
        cotangent=None if lower_bound else weights.cotangent(spec).to(spec.device),
        settings=partial(settings, types, cudnn=cudnn),
        checked=partial(without_dropout, layer),
    )


def _capture(name: str, spec: RecurrentSpec, layer: torch.nn.RNNBase, inputs: Inputs) -> Run:
    match RUNNERS[name].way:
        case "cudnn" | "aten" | "cudnn_dropout" | "aten_dropout":
            return partial(call_packed if spec.family == "vl_lstm" else call, layer, inputs)
        case "cudnn_layernorm" | "aten_layernorm":
            return _with_norms(partial(call, layer, inputs), spec)
        case "compile_lstm":
            return partial(call, compiled(layer), inputs)
    raise NotImplementedError(f"_capture in {__name__} has no case for the runner {name}")


def call(layer: Callable[..., Any], inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the output and the last states as one flat tuple."""
    return _flat(*layer(inputs.x, inputs.state))


def call_packed(layer: Any, inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the same as `call` for sequences of different lengths: packed before, padded with zeros after."""
    batch_first = layer.batch_first
    packed = pack_padded_sequence(inputs.x, torch.tensor(inputs.lengths), batch_first=batch_first, enforce_sorted=False)
    output, last = layer(packed, inputs.state)
    return _flat(pad_packed_sequence(output, batch_first=batch_first)[0], last)


def _flat(output: Tensor, last: Any) -> tuple[Tensor, ...]:
    return (output, *last) if isinstance(last, tuple) else (output, last)


def _with_norms(run: Run, spec: RecurrentSpec) -> Run:
    """Return `run` followed by as many layer norms, of the same sizes, as a layer-norm LSTM of this size has.

    Their results are not used. They show the least extra time that such an LSTM needs compared with a fused one.
    """
    sizes = (4 * spec.hidden_size, 4 * spec.hidden_size, spec.hidden_size)
    norms = [torch.nn.LayerNorm(size).to(spec.device, weights.dtype(spec)) for size in sizes]
    values = [weights.normal(spec, weights.INPUT, (spec.mini_batch, size)).to(spec.device) for size in sizes]
    times = spec.seq_length * spec.num_layers * weights.directions(spec)

    def run_with_norms() -> tuple[Tensor, ...]:
        result = run()
        for _ in range(times):
            for norm, value in zip(norms, values, strict=True):
                norm(value)
        return result

    return run_with_norms
