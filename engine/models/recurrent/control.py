"""Check a runner: compute the expected result in float64, without compiled or fused code, and return the error.

The truth comes from torch's own layer without cuDNN; for a ResNet, from calling the network directly; for a cell that
torch has no layer for, from a plain loop over it. Weights and inputs are those of the spec, in its precision, so only
the arithmetic is checked. In a lower precision, the error of this layer in that precision sets the tolerance.
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
from engine.models.recurrent import looped, native, resnet, weights
from engine.models.recurrent.network import Network, Run, settings
from engine.models.recurrent.weights import Inputs
from engine.specs import RecurrentSpec
from engine.specs.fields.runners import RUNNERS

OWN_CELLS = ("milstm", "lstm_layernorm")
"""Networks of cells that torch has no layer for."""
AS_LSTM = {"lstm_dropout": "lstm", "lstm_and_layernorms": "lstm"}
"""Networks that have the same truth as another one: their dropout is off, or their norms do not affect the output."""
EPSILON = {"tf32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance from 1 to the next larger number, by precision."""
TOLERANCE = 1e-3
"""Largest error in float32, as in PyTorch's fastrnns benchmark. The limit of every precision without an EPSILON."""
EAGER_FACTOR = 3
"""Allow this many times the error of the eager layer in the same precision. This is the rule of PyTorch's dynamo
benchmark, as in engine/measure/accuracy.py."""
LOOSEST = 0.5
"""Largest tolerance in any precision. A larger error means that something else was computed."""
ROUNDINGS = 4
"""Smallest tolerance, in epsilons. In a layer of a few features, the eager layer's error says little about another
runner's, and a ReLU that opens by rounding changes a gradient by everything that flows through it."""
WITH_RELU = ("rnn_relu", "resnet")
"""Families in which rounding decides which ReLUs are open. Their gradients are compared all together."""
SETTLED = 3
"""Calls after which TorchScript has profiled, optimised and run its final code."""


@dataclass(frozen=True)
class Errors:
    """Errors of a result: norm of the difference / norm of the truth, largest over all tensors."""

    output: float
    """Error of outputs and final states. inf when shapes differ or a value is not finite."""
    gradient: float | None
    """Error of the parameters' gradients; None without a backward pass. With ReLUs: squared, over all parameters."""
    tolerance: float

    @property
    def ok(self) -> bool:
        """Return whether the results agree with the truth."""
        return self.output <= self.tolerance and (self.gradient is None or self.gradient <= self.tolerance)

    @property
    def worst(self) -> float:
        """Return the larger error."""
        return max(self.output, self.gradient or 0.0)


Truth = tuple[tuple[Tensor, ...], Mapping[str, Tensor]]
"""The expected outputs and gradients, in float64 on the CPU."""


class Control:
    """Check the runners of a comparison. Truths and tolerances are computed once, when they are first needed."""

    def __init__(self, spec: RecurrentSpec) -> None:
        self._spec = spec
        self._truths: dict[tuple[str, bool], Truth] = {}
        self._tolerances: dict[tuple[str, bool, bool], float] = {}

    def errors(self, network: Network, run: Run) -> Errors:
        """Return the errors of a captured runner, forward and backward. Sets its gradients to None.

        A TorchScript runner is called SETTLED times, so that its optimised code is checked. Errors: any that the run
        raises.
        """
        calls = SETTLED if RUNNERS[network.name].execution in ("script", "trace") else 1
        with network.settings(), network.checked():
            for _ in range(calls):
                outputs, gradients = evaluate(run, network.parameters, network.cotangent)
        return self._errors(network.name, outputs, gradients, self.tolerance(network.name))

    def truth(self, name: str) -> Truth:
        """Return the expected result of a runner."""
        key = _truth_key(name)
        if key not in self._truths:
            # the CPU replaces mps, which has no float64, and other accelerators, which may have none
            device = self._spec.device if self._spec.device.startswith("cuda") else "cpu"
            with torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
                outputs, gradients = _expected_result(self._spec, name, device, torch.float64)
            gradients_64 = {
                parameter: value.cpu() for parameter, value in (gradients or {}).items() if value is not None
            }
            self._truths[key] = tuple(output.cpu() for output in outputs), gradients_64
        return self._truths[key]

    def tolerance(self, name: str) -> float:
        """Return the largest allowed error of a runner: 1e-3 in float32, otherwise EAGER_FACTOR times the
        error of the eager layer, but at least ROUNDINGS epsilons and at most LOOSEST.

        The eager layer runs operator by operator. In half precision it runs on the CPU, because accelerators fuse its
        cells, and fused cells round less often than a correct runner may.
        """
        if self._spec.precision not in EPSILON:
            return TOLERANCE
        key = (*_truth_key(name), RUNNERS[name].one_by_one)
        if key not in self._tolerances:
            is_cell = self._spec.precision != "tf32" and self._spec.family != "resnet"
            context = _unfused(name) if is_cell else settings(variants.numbers(self._spec.precision, self._spec.device))
            with context:
                device = "cpu" if is_cell else self._spec.device
                outputs, gradients = _expected_result(self._spec, name, device, weights.dtype(self._spec))
            eager = self._errors(name, outputs, gradients, LOOSEST).worst
            least = ROUNDINGS * EPSILON[self._spec.precision]
            self._tolerances[key] = min(LOOSEST, max(least, EAGER_FACTOR * eager))
        return self._tolerances[key]

    def _errors(
        self, name: str, outputs: tuple[Tensor, ...], gradients: Mapping[str, Tensor | None] | None, tolerance: float
    ) -> Errors:
        true_outputs, true_gradients = self.truth(name)
        gradient_error = None
        if gradients is not None:
            error_of = _joint_error if self._spec.family in WITH_RELU else _largest_error
            gradient_error = error_of(list(gradients.values()), [true_gradients[parameter] for parameter in gradients])
        return Errors(_largest_error(list(outputs), list(true_outputs)), gradient_error, tolerance)


@contextmanager
def _unfused(name: str) -> Iterator[None]:
    """Prevent oneDNN from fusing the time steps of torch's LSTM on the CPU. Nothing else is fused there."""
    runner = RUNNERS[name]
    fusible = runner.family in ("lstm", "vl_lstm") and runner.network not in OWN_CELLS
    # mkldnn.flags is not used, because it also sets TF32 and warns that only Intel's GPUs have it
    before, *_ = torch.backends.mkldnn.set_flags(_enabled=not fusible)  # type: ignore[no-untyped-call]
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)  # type: ignore[no-untyped-call]


def _truth_key(name: str) -> tuple[str, bool]:
    """Return a key that runners with the same truth share: the network, and whether backward begins at the last h."""
    network = RUNNERS[name].network
    return AS_LSTM.get(network, network), name == "jit_simple"


def evaluate(
    run: Run, parameters: Mapping[str, torch.nn.Parameter], cotangent: Tensor | None
) -> tuple[tuple[Tensor, ...], dict[str, Tensor | None] | None]:
    """Call a runner once. Return its outputs and the parameters' gradients, and reset the gradients to None."""
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


def _largest_error(found: list[Tensor | None], wanted: list[Tensor]) -> float:
    """Return the largest norm of the difference / norm of the truth. inf when a tensor is missing, has another shape,
    or is not finite."""
    if len(found) != len(wanted):
        return inf
    return max(sqrt(_joint_error([one], [true])) for one, true in zip(found, wanted, strict=True))


def _joint_error(found: list[Tensor | None], wanted: list[Tensor]) -> float:
    """Return the squared norm of the difference of all tensors / that of the truth, or / 1 if the truth is zero."""
    if any(one is None or one.shape != true.shape for one, true in zip(found, wanted, strict=True)):
        return inf
    pairs = [(one.to("cpu").double(), true) for one, true in zip(found, wanted, strict=True) if one is not None]
    difference = sum((one - true).square().sum().item() for one, true in pairs)
    return difference / (sum(true.square().sum().item() for _, true in pairs) or 1.0) if isfinite(difference) else inf


def _expected_result(
    spec: RecurrentSpec, name: str, device: str, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], dict[str, Tensor | None] | None]:
    """Compute a runner's expected outputs and gradients."""
    flat = name == "jit_simple"
    if spec.family == "resnet":
        parameters, run = _resnet(spec, name, device, dtype)
        cotangent = resnet.cotangent(spec)
    else:
        parameters, run = _recurrent(spec, name, device, dtype)
        cotangent = weights.cotangent(spec, of_states=flat)
    # flat runners return no output, so backward begins at the last h
    begin = (lambda: run()[1:]) if flat else run
    return evaluate(begin, parameters, cotangent.to(device, dtype))


def _resnet(
    spec: RecurrentSpec, name: str, device: str, dtype: torch.dtype
) -> tuple[dict[str, torch.nn.Parameter], Run]:
    model, images = resnet.model(spec, name).to(device, dtype), resnet.images(spec).to(device, dtype)
    return dict(model.named_parameters()), lambda: (model(images),)


def _recurrent(
    spec: RecurrentSpec, name: str, device: str, dtype: torch.dtype
) -> tuple[dict[str, torch.nn.Parameter], Run]:
    network, inputs = RUNNERS[name].network, weights.inputs(spec).to(device, dtype)
    if network in OWN_CELLS:
        drawn = weights.drawn(spec, network).items()
        parameters = {key: torch.nn.Parameter(value.to(device, dtype)) for key, value in drawn}
        return parameters, looped.plain(spec, network, parameters, inputs)
    layer = weights.torch_layer(spec).to(weights.dtype(spec)).to(device, dtype)
    call = _one_by_one if RUNNERS[name].one_by_one else native.call_packed
    return dict(layer.named_parameters()), partial(call, layer, inputs)


def _one_by_one(layer: torch.nn.RNNBase, inputs: Inputs) -> tuple[Tensor, ...]:
    """Run each sequence separately. Gradients are rounded each time the next sequence's are added to them."""
    batch = 0 if layer.batch_first else 1
    results = []
    for place, steps in enumerate(inputs.lengths):
        x = inputs.x.select(batch, place)[:steps].unsqueeze(batch)
        h, c = (state[:, place : place + 1].contiguous() for state in (inputs.h, inputs.c))
        results.append(native.call_packed(layer, Inputs(x, h, c, [steps])))
    outputs, *states = zip(*results, strict=True)
    padded = pad_sequence([output.squeeze(batch) for output in outputs], layer.batch_first)
    return (padded, *(torch.cat(states_of_one, dim=1) for states_of_one in states))
