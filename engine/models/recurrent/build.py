"""Build the network of a runner by its name. Combinations that are not possible are refused with a reason."""

from dataclasses import replace

import torch

from engine.models import variants
from engine.models.recurrent import looped, native, resnet, torchscript, weights
from engine.models.recurrent.network import Network
from engine.models.recurrent.weights import LAYERS, lengths
from engine.specs import RecurrentSpec, Refused
from engine.specs.fields.runners import RUNNERS

NATIVE = ("cudnn", "aten", "compile_lstm")
"""Runners of torch's own layers have names that start with one of these, after the family."""
BF16_CUDNN = 91300
"""First version of cuDNN whose bfloat16 layers torch uses: 9.13.0."""


def build(name: str, spec: RecurrentSpec) -> Network:
    """Return a runner's network. The spec's seed gives all runners of a family the same weights and inputs.

    spec: one of RecurrentSpec.comparisons. Errors: Refused when the device, the cell or the runner does not support it.
    """
    _check(name, spec)
    numbers, way = variants.numbers(spec.precision, spec.device), RUNNERS[name].way
    if spec.family == "resnet":
        network = resnet.build(name, spec, numbers)
    elif way.startswith(NATIVE):
        dropout = looped.DROPPED if name.endswith("_dropout") else 0.0
        network = native.build(name, spec, numbers, dropout=dropout, cudnn=not way.startswith("aten"))
    else:
        network = looped.build(name, spec, numbers)
    return replace(network, notes=_notes(name, spec))


def _check(name: str, spec: RecurrentSpec) -> None:
    """Check that the device and the spec allow a runner. Errors: Refused."""
    runner = RUNNERS[name]
    if runner.needs_cudnn and not has_cudnn(spec.device):
        instead = name.replace("cudnn", "aten")
        raise Refused(
            f"{name} needs an NVIDIA GPU with cuDNN, but {spec.device} is not one. {instead} runs the same layer here."
        )
    if runner.needs_cudnn and spec.precision == "bfloat16" and not has_bf16_cudnn(spec.device):
        raise Refused(
            f"{name} in bfloat16 needs compute capability 8.0 and cuDNN 9.13 or newer: without them, torch runs it "
            f"without cuDNN on {spec.device}. Use float16."
        )
    if runner.family in LAYERS and spec.proj_size:
        raise Refused(f"{name} has no projection, because only an LSTM can have one. Set proj_size to 0.")
    if name == "jit_simple" and spec.bidirectional:
        raise Refused(
            "jit_simple computes all layers of a time step before the next time step, so it cannot run in both "
            "directions. Use jit for a bidirectional LSTM."
        )


def has_cudnn(device: str) -> bool:
    """Return whether this is an NVIDIA GPU for which torch has cuDNN."""
    return device.startswith("cuda") and not torch.version.hip and torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call]


def has_bf16_cudnn(device: str) -> bool:
    """Return whether torch uses cuDNN for bfloat16 layers on this NVIDIA GPU.

    Source: CUDAHooks::supportsBFloat16RNNWithCuDNN in ATen/cuda/detail/CUDAHooks.cpp.
    """
    cudnn = torch.backends.cudnn.version() or 0  # type: ignore[no-untyped-call]
    return cudnn >= BF16_CUDNN and torch.cuda.get_device_capability(device) >= (8, 0)


def _notes(name: str, spec: RecurrentSpec) -> tuple[str, ...]:
    """Return the notes that a runner's row must have."""
    runner = RUNNERS[name]
    notes: list[str] = []
    if name.endswith("_dropout"):
        nothing = spec.num_layers == 1
        notes.append(
            "dropout has no effect: it is applied between layers, and there is one"
            if nothing
            else "checked without dropout"
        )
    if runner.way in ("cudnn_layernorm", "aten_layernorm"):
        notes.append("a lower bound: the layer norms are computed outside the LSTM, and only in the forward pass")
    if runner.needs_cudnn and weights.dtype(spec) not in torch.backends.cudnn.CUDNN_TENSOR_DTYPES:
        notes.append(
            f"torch copies the weights into one buffer at each call, because in {spec.precision} it keeps none"
        )
    if name == "compile_lstm":
        notes.append("torch.compile runs nn.LSTM eagerly, because torch._dynamo.config.allow_rnn is off by default")
    if runner.way.startswith("aten") and _is_given_to_onednn(spec):
        notes.append("on a CPU, torch runs this layer with oneDNN")
    if spec.family == "resnet":
        notes.append("gradients are checked as one vector, because rounding decides which ReLUs are open")
    if spec.family == "vl_lstm":
        steps = lengths(spec)
        notes.append(f"sequences of {min(steps)} to {max(steps)} time steps, {sum(steps) / len(steps):.1f} on average")
    if runner.execution in ("script", "trace"):
        notes.extend(torchscript.notes(spec))
    return tuple(notes)


def _is_given_to_onednn(spec: RecurrentSpec) -> bool:
    """Return whether torch uses oneDNN on a CPU: for float32 LSTMs that have no projection and are not packed."""
    plain = spec.family == "lstm" and not spec.proj_size and spec.precision == "float32"
    return plain and spec.device == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
