"""What a runner should have given, computed in float64 without its code; and how far from it a runner is.

Truth is torch's own layer without cuDNN, packed for sequences of different lengths; of a ResNet, the network called
plainly. Cells that torch has no layer for are written out a second time in `by_hand`. Weights and inputs are those of
the spec, in the precision it asks for: only arithmetic is judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite, sqrt

import torch
from torch import Tensor

from engine.models.recurrent import native, resnet, weights
from engine.models.recurrent.by_hand import FORMULAS, by_hand
from engine.models.recurrent.network import Network, Run
from engine.specs import RecurrentSpec
from engine.specs.runners import RUNNERS

AS_LSTM = {"lstm_dropout": "lstm", "lstm_and_layernorms": "lstm"}
"""Networks whose truth is that of another: with their dropout off, and with norms that lead nowhere."""
EPSILON = {"tf32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance from 1 to the next number."""
TOLERANCE = 1e-3
"""Of float32."""
LOOSEST = 0.5
"""What is off by more computes something else, whatever its type."""
SETTLED = 3
"""Calls after which TorchScript has profiled, optimised and run what it will go on running."""


@dataclass(frozen=True)
class Errors:
    """How far a result is from the truth: the largest difference / max(1, the largest value), of the worst tensor."""

    output: float
    """Of outputs and final states; inf where shapes differ or something is not finite."""
    gradient: float | None
    """Of the parameters; None of a runner that only goes forward. Of a ResNet, all together: the squared length of the
    difference / that of the truth, because rounding decides which of its ReLUs are open."""
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether what was computed is what was asked for."""
        return self.output <= self.tolerance and (self.gradient is None or self.gradient <= self.tolerance)


def tolerance(spec: RecurrentSpec) -> float:
    """What errors may be: 1e-3 in float32; otherwise sixteen times the type's epsilon, or LOOSEST.

    Where a weight's gradient is a sum of more than 256 terms, one per step that is taken, it is their square root times
    epsilon: so do rounding errors grow that are made by adding up in that type.
    """
    if spec.precision not in EPSILON:
        return TOLERANCE
    in_turn = spec.family == "vl_lstm"  # one step at a time for each sequence
    terms = 0 if spec.family == "resnet" else sum(weights.lengths(spec)) if in_turn else spec.seq_length
    return min(LOOSEST, max(16.0, sqrt(terms)) * EPSILON[spec.precision])


@dataclass(frozen=True)
class Truth:
    """In float64, on the CPU."""

    outputs: tuple[Tensor, ...]
    gradients: Mapping[str, Tensor]


class Control:
    """Checks the runners of a comparison. Each network's truth is computed once, when it is first needed."""

    def __init__(self, spec: RecurrentSpec) -> None:
        self._spec = spec
        self._truths: dict[tuple[str, bool], Truth] = {}

    def errors(self, network: Network, run: Run) -> Errors:
        """Of a captured runner, forward and backward. Its gradients are afterwards None.

        TorchScript is called as often as it takes to run what it has optimised. Errors: whatever the run raises.
        """
        truth = self.truth(network.name)
        calls = SETTLED if RUNNERS[network.name].execution in ("script", "trace") else 1
        with network.settings(), network.checked():
            for _ in range(calls):
                outputs, gradients = evaluated(run, network.parameters, network.cotangent)
        found = None
        if gradients is not None:
            judge = _together if self._spec.family == "resnet" else _worst
            found = judge(list(gradients.values()), [truth.gradients[name] for name in gradients])
        return Errors(_worst(list(outputs), list(truth.outputs)), found, tolerance(self._spec))

    def truth(self, name: str) -> Truth:
        """What a runner of this name should give."""
        network = RUNNERS[name].network
        key = AS_LSTM.get(network, network), name == "jit_simple"
        if key not in self._truths:
            # mps has no float64, and other accelerators may have none
            device = self._spec.device if self._spec.device.startswith("cuda") else "cpu"
            with torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
                self._truths[key] = _truth(self._spec, name, device)
        return self._truths[key]


def evaluated(
    run: Run, parameters: Mapping[str, torch.nn.Parameter], cotangent: Tensor | None
) -> tuple[tuple[Tensor, ...], dict[str, Tensor | None] | None]:
    """One call: its outputs, and the parameters' gradients, of which none is left behind."""
    _clear(parameters)
    outputs = run()
    if cotangent is None:
        return tuple(output.detach() for output in outputs), None
    outputs[0].backward(cotangent)  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in parameters.items()}
    _clear(parameters)
    return tuple(output.detach() for output in outputs), gradients


def _clear(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    for parameter in parameters.values():
        parameter.grad = None


def _worst(found: list[Tensor | None], wanted: list[Tensor]) -> float:
    """The largest error of any tensor; inf where one is missing, of another shape, or not finite."""
    if len(found) != len(wanted):
        return inf
    return max(_error(one, true) for one, true in zip(found, wanted, strict=True))


def _together(found: list[Tensor | None], wanted: list[Tensor]) -> float:
    """The squared length of the difference of all tensors together, as a share of that of what is wanted."""
    if any(one is None or one.shape != true.shape for one, true in zip(found, wanted, strict=True)):
        return inf
    pairs = [(one.to("cpu").double(), true) for one, true in zip(found, wanted, strict=True) if one is not None]
    difference = sum((one - true).square().sum().item() for one, true in pairs)
    return difference / sum(true.square().sum().item() for _, true in pairs) if isfinite(difference) else inf


def _error(found: Tensor | None, wanted: Tensor) -> float:
    if found is None or found.shape != wanted.shape:
        return inf
    difference = (found.to("cpu").double() - wanted).abs().max().item()
    return difference / max(1.0, wanted.abs().max().item()) if isfinite(difference) else inf


def _truth(spec: RecurrentSpec, name: str, device: str) -> Truth:
    flat = name == "jit_simple"
    if spec.family == "resnet":
        parameters, run = _resnet(spec, name, device)
        cotangent = resnet.cotangent(spec)
    else:
        parameters, run = _recurrent(spec, RUNNERS[name].network, device)
        cotangent = weights.cotangent(spec, of_states=flat)
    # flat runners give no output: backward begins at the last h
    begin = (lambda: run()[1:]) if flat else run
    outputs, gradients = evaluated(begin, parameters, cotangent.to(device, torch.float64))
    kept = {key: value.cpu() for key, value in (gradients or {}).items() if value is not None}
    return Truth(tuple(output.cpu() for output in outputs), kept)


def _resnet(spec: RecurrentSpec, name: str, device: str) -> tuple[dict[str, torch.nn.Parameter], Run]:
    model, images = resnet.model(spec, name).to(device, torch.float64), resnet.images(spec).to(device, torch.float64)
    return dict(model.named_parameters()), lambda: (model(images),)


def _recurrent(spec: RecurrentSpec, network: str, device: str) -> tuple[dict[str, torch.nn.Parameter], Run]:
    inputs = weights.inputs(spec).to(device, torch.float64)
    if network in FORMULAS:
        drawn = weights.drawn(spec, network).items()
        parameters = {key: torch.nn.Parameter(value.to(device, torch.float64)) for key, value in drawn}
        return parameters, partial(by_hand, spec, network, parameters, inputs)
    layer = weights.torch_layer(spec).to(weights.dtype(spec)).to(device, torch.float64)
    call = native.called_packed if spec.family == "vl_lstm" else native.called
    return dict(layer.named_parameters()), partial(call, layer, inputs)
