"""Check a runner: compute in float64, without its code, what it should have given, and say how far it is from that.

The truth is torch's own layer without cuDNN; of a ResNet, the network called plainly. Cells that torch has no layer for
are written out a second time in `by_hand`. Weights and inputs are those of the spec, in the precision it asks for: only
arithmetic is judged. How far a runner may be off in a lower precision is learned from the same layer in that precision.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite, sqrt

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from engine.models import variants
from engine.models.recurrent import native, resnet, weights
from engine.models.recurrent.by_hand import FORMULAS, by_hand
from engine.models.recurrent.network import Network, Run, settings
from engine.models.recurrent.weights import Inputs
from engine.specs import RecurrentSpec
from engine.specs.runners import RUNNERS

AS_LSTM = {"lstm_dropout": "lstm", "lstm_and_layernorms": "lstm"}
"""Networks whose truth is that of another: with their dropout off, and with norms that lead nowhere."""
EPSILON = {"tf32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance from 1 to the next number."""
TOLERANCE = 1e-3
"""Largest error in float32, that of PyTorch's fastrnns benchmark; no other precision has to be nearer."""
EAGERS = 3
"""How many times the error of the eager layer in the same precision is allowed: the rule of PyTorch's dynamo benchmark,
as in engine/measure/accuracy.py."""
LOOSEST = 0.5
"""Errors above this mean that something else was computed, in any precision."""
ROUNDINGS = 4
"""Least tolerance, in epsilons: a layer a few features wide has too few numbers for its error to say how large the next
one is, and a ReLU that rounding opens changes a gradient by all of what flows through it."""
WITH_RELU = ("rnn_relu", "resnet")
"""Families in which rounding decides which ReLUs are open: their gradients are judged all together."""
SETTLED = 3
"""Calls after which TorchScript has profiled, optimised and run what it will go on running."""


@dataclass(frozen=True)
class Errors:
    """Distance of a result from the truth: norm of the difference / norm of the truth, of the worst tensor."""

    output: float
    """Of outputs and final states; inf where shapes differ or something is not finite."""
    gradient: float | None
    """Of the parameters; None of a runner that only goes forward. With ReLUs squared, and of all together."""
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the results agree with the reference."""
        return self.output <= self.tolerance and (self.gradient is None or self.gradient <= self.tolerance)

    @property
    def worst(self) -> float:
        """The larger error."""
        return max(self.output, self.gradient or 0.0)


@dataclass(frozen=True)
class Truth:
    """In float64, on the CPU."""

    outputs: tuple[Tensor, ...]
    gradients: Mapping[str, Tensor]


class Control:
    """Checks the runners of a comparison. Truths and tolerances are computed once, when they are first needed."""

    def __init__(self, spec: RecurrentSpec) -> None:
        self._spec = spec
        self._truths: dict[tuple[str, bool], Truth] = {}
        self._tolerances: dict[tuple[str, bool, bool], float] = {}

    def errors(self, network: Network, run: Run) -> Errors:
        """Return the errors of a captured runner, forward and backward. Its gradients are afterwards None.

        TorchScript is called as often as it takes to run what it has optimised. Errors: whatever the run raises.
        """
        calls = SETTLED if RUNNERS[network.name].execution in ("script", "trace") else 1
        with network.settings(), network.checked():
            for _ in range(calls):
                outputs, gradients = evaluated(run, network.parameters, network.cotangent)
        return self._errors(network.name, outputs, gradients, self.tolerance(network.name))

    def truth(self, name: str) -> Truth:
        """Return what a runner of this name should give."""
        key = _truth_key(name)
        if key not in self._truths:
            # mps has no float64, and other accelerators may have none
            device = self._spec.device if self._spec.device.startswith("cuda") else "cpu"
            with torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
                outputs, gradients = _plainly(self._spec, name, device, torch.float64)
            kept = {key: value.cpu() for key, value in (gradients or {}).items() if value is not None}
            self._truths[key] = Truth(tuple(output.cpu() for output in outputs), kept)
        return self._truths[key]

    def tolerance(self, name: str) -> float:
        """Return the largest error that a runner may have: 1e-3 in float32, otherwise EAGERS times the eager layer's.

        The eager layer runs operator by operator: on the CPU in half precision, because accelerators fuse its cells,
        and fused cells round less often than a right runner may.
        """
        if self._spec.precision not in EPSILON:
            return TOLERANCE
        key = (*_truth_key(name), RUNNERS[name].one_by_one)
        if key not in self._tolerances:
            cells = self._spec.precision != "tf32" and self._spec.family != "resnet"
            around = _unfused(name) if cells else settings(variants.numbers(self._spec.precision, self._spec.device))()
            with around:
                device = "cpu" if cells else self._spec.device
                outputs, gradients = _plainly(self._spec, name, device, weights.dtype(self._spec))
            eager = self._errors(name, outputs, gradients, LOOSEST).worst
            least = ROUNDINGS * EPSILON[self._spec.precision]
            self._tolerances[key] = min(LOOSEST, max(least, EAGERS * eager))
        return self._tolerances[key]

    def _errors(
        self, name: str, outputs: tuple[Tensor, ...], gradients: Mapping[str, Tensor | None] | None, tolerance: float
    ) -> Errors:
        truth = self.truth(name)
        found = None
        if gradients is not None:
            judge = _together if self._spec.family in WITH_RELU else _worst
            found = judge(list(gradients.values()), [truth.gradients[parameter] for parameter in gradients])
        return Errors(_worst(list(outputs), list(truth.outputs)), found, tolerance)


@contextmanager
def _unfused(name: str) -> Iterator[None]:
    """Keep oneDNN from fusing the steps of torch's LSTM on the CPU; nothing else is fused there."""
    runner = RUNNERS[name]
    fusible = runner.family in ("lstm", "vl_lstm") and runner.network not in FORMULAS
    # not mkldnn.flags, which also sets TF32 and warns that only Intel's GPUs have it
    before, *_ = torch.backends.mkldnn.set_flags(_enabled=not fusible)  # type: ignore[no-untyped-call]
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)  # type: ignore[no-untyped-call]


def _truth_key(name: str) -> tuple[str, bool]:
    """Return what runners of one truth have in common: the network, and whether backward begins at the last state."""
    network = RUNNERS[name].network
    return AS_LSTM.get(network, network), name == "jit_simple"


def evaluated(
    run: Run, parameters: Mapping[str, torch.nn.Parameter], cotangent: Tensor | None
) -> tuple[tuple[Tensor, ...], dict[str, Tensor | None] | None]:
    """Return one call: its outputs, and the parameters' gradients, of which none is left behind."""
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
    """Return the largest error of any tensor; inf where one is missing, of another shape, or not finite."""
    if len(found) != len(wanted):
        return inf
    return max(_error(one, true) for one, true in zip(found, wanted, strict=True))


def _together(found: list[Tensor | None], wanted: list[Tensor]) -> float:
    """Return the squared norm of the difference of all tensors together / that of what is wanted, or 1 if that is
    zero."""
    if any(one is None or one.shape != true.shape for one, true in zip(found, wanted, strict=True)):
        return inf
    pairs = [(one.to("cpu").double(), true) for one, true in zip(found, wanted, strict=True) if one is not None]
    difference = sum((one - true).square().sum().item() for one, true in pairs)
    return difference / (sum(true.square().sum().item() for _, true in pairs) or 1.0) if isfinite(difference) else inf


def _error(found: Tensor | None, wanted: Tensor) -> float:
    """Norm of the difference / norm of what is wanted."""
    if found is None or found.shape != wanted.shape:
        return inf
    return sqrt(_together([found], [wanted]))


def _plainly(
    spec: RecurrentSpec, name: str, device: str, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], dict[str, Tensor | None] | None]:
    """Compute what a runner should give, without its code: outputs and gradients."""
    flat = name == "jit_simple"
    if spec.family == "resnet":
        parameters, run = _resnet(spec, name, device, dtype)
        cotangent = resnet.cotangent(spec)
    else:
        parameters, run = _recurrent(spec, name, device, dtype)
        cotangent = weights.cotangent(spec, of_states=flat)
    # flat runners give no output: backward begins at the last h
    begin = (lambda: run()[1:]) if flat else run
    return evaluated(begin, parameters, cotangent.to(device, dtype))


def _resnet(
    spec: RecurrentSpec, name: str, device: str, dtype: torch.dtype
) -> tuple[dict[str, torch.nn.Parameter], Run]:
    model, images = resnet.model(spec, name).to(device, dtype), resnet.images(spec).to(device, dtype)
    return dict(model.named_parameters()), lambda: (model(images),)


def _recurrent(
    spec: RecurrentSpec, name: str, device: str, dtype: torch.dtype
) -> tuple[dict[str, torch.nn.Parameter], Run]:
    network, inputs = RUNNERS[name].network, weights.inputs(spec).to(device, dtype)
    if network in FORMULAS:
        drawn = weights.drawn(spec, network).items()
        parameters = {key: torch.nn.Parameter(value.to(device, dtype)) for key, value in drawn}
        return parameters, partial(by_hand, spec, network, parameters, inputs)
    layer = weights.torch_layer(spec).to(weights.dtype(spec)).to(device, dtype)
    call = _one_by_one if RUNNERS[name].one_by_one else native.called_packed
    return dict(layer.named_parameters()), partial(call, layer, inputs)


def _one_by_one(layer: torch.nn.RNNBase, inputs: Inputs) -> tuple[Tensor, ...]:
    """Run each sequence of a batch on its own: its gradients are rounded each time the next one's are added to them."""
    batch = 0 if layer.batch_first else 1
    found = []
    for place, steps in enumerate(inputs.lengths):
        x = inputs.x.select(batch, place)[:steps].unsqueeze(batch)
        h, c = (state[:, place : place + 1].contiguous() for state in (inputs.h, inputs.c))
        found.append(native.called_packed(layer, Inputs(x, h, c, [steps])))
    outputs, *states = zip(*found, strict=True)
    padded = pad_sequence([output.squeeze(batch) for output in outputs], layer.batch_first)
    return (padded, *(torch.cat(states_of_one, dim=1) for states_of_one in states))
