"""Checks find wrong runners, impossible requests are refused, and switches of TorchScript are set."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch

from engine.models.recurrent import Control, Errors, Network, build, cells, looped, native, set_torchscript
from engine.models.recurrent.cells import Cell, State
from engine.models.recurrent.weights import cotangent
from engine.specs import RecurrentSpec, Refused
from engine.specs.fields.runners import RUNNERS, Runner
from tests.engine.models.recurrent.test_runners import EAGER, inputs_of, restored_torchscript, spec_of

__all__ = ["restored_torchscript"]


def wrong_gates(x: torch.Tensor, state: State, weights: list[torch.Tensor]) -> State:
    """An LSTM cell with its input and forget gates exchanged."""
    swapped = [torch.cat([weight.chunk(4)[gate] for gate in (1, 0, 2, 3)]) for weight in weights[:4]]
    return cells.lstm(x, state, swapped + weights[4:])


def wrong_nonlinearity(x: torch.Tensor, state: State, weights: list[torch.Tensor]) -> State:
    """An LSTM cell whose output lacks the tanh."""
    h, c = cells.lstm(x, state, weights)
    return h / torch.tanh(c) * c, c


def forgetful(x: torch.Tensor, state: State, weights: list[torch.Tensor]) -> State:
    """An LSTM cell that ignores the hidden state."""
    return cells.lstm(x, (state[0] * 0, state[1]), weights)


def detached(x: torch.Tensor, state: State, weights: list[torch.Tensor]) -> State:
    """An LSTM cell with right values, whose gradient does not flow back through time."""
    return cells.lstm(x, (state[0].detach(), state[1].detach()), weights)


PRECISIONS = ["float32", "bfloat16", "float16"]
WRONG = [wrong_gates, wrong_nonlinearity, forgetful, detached]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("step", WRONG)
def test_check_finds_a_wrong_cell(step: Any, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of("py", precision=precision, seq_length=20, hidden_size=16, input_size=16, mini_batch=8)
    monkeypatch.setitem(looped.CELLS, "lstm", Cell(step))
    network = build("py", spec)
    with network.settings():
        run = network.capture()
    errors = Control(spec).errors(network, run)
    assert not errors.ok
    if step is detached:
        assert errors.output <= errors.tolerance
        assert errors.gradient is not None
        assert errors.gradient > errors.tolerance


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["py", "aten", "gru_py", "rnn_tanh_py", "milstm_py", "jit_layernorm"])
def test_correct_runner_passes_its_check_with_a_nonzero_error(name: str, precision: str) -> None:
    spec = spec_of(name, precision=precision, seq_length=20, hidden_size=16, input_size=16, mini_batch=8)
    network = build(name, spec)
    with network.settings():
        run = network.capture()
    errors = Control(spec).errors(network, run)
    assert errors.ok
    assert errors.output > 0
    assert all(item.dtype == getattr(torch, precision) for item in network.parameters.values())


ONE_BY_ONE = [name for name in EAGER if RUNNERS[name].one_by_one]


def errors_of(name: str, change: Callable[[Network], Any], **fields: Any) -> Errors:
    spec = spec_of(name, **fields)
    network = build(name, spec)
    changed_network = change(network)
    with network.settings():
        run = network.capture()
    return Control(spec).errors(network, changed_network(run) if callable(changed_network) else run)


@torch.no_grad()
def nudge(network: Network) -> None:
    network.parameters["weight_hh_l0"][3, 2] += 0.05


@pytest.mark.parametrize("name", ["py", "aten", "jit_multilayer", "gru_py", "milstm_py", "vl_py", "vl_aten"])
def test_check_finds_one_wrong_weight(name: str) -> None:
    assert not errors_of(name, nudge).ok
    assert errors_of(name, lambda _: None).ok


def test_check_finds_wrong_shapes_missing_states_and_nan() -> None:
    assert errors_of("aten_layernorm", lambda _: lambda run: lambda: run()[:2]).output == inf
    assert errors_of("aten_layernorm", lambda _: lambda run: lambda: (run()[0][1:], *run()[1:])).output == inf
    assert (
        errors_of("aten_layernorm", lambda _: lambda run: lambda: (run()[0] * float("nan"), *run()[1:])).output == inf
    )
    assert not errors_of("aten_layernorm", lambda _: lambda run: lambda: run()[:2]).ok


def remove_gradient(network: Network) -> None:
    network.parameters["bias_hh_l0"].requires_grad_(False)


def test_check_finds_a_parameter_without_a_gradient() -> None:
    found = errors_of("py", remove_gradient)
    assert found.gradient == inf
    assert not found.ok


def test_check_ignores_earlier_gradients_and_leaves_none() -> None:
    spec = spec_of("py")
    network = build("py", spec)
    for parameter in network.parameters.values():
        parameter.grad = torch.full_like(parameter, 100.0)
    assert Control(spec).errors(network, network.capture()).ok
    assert all(parameter.grad is None for parameter in network.parameters.values())


def test_truth_is_computed_once_for_all_runners_of_a_network() -> None:
    control = Control(RecurrentSpec(runners=("aten", "py", "aten_dropout", "aten_layernorm", "jit_simple")))
    small = Control(spec_of("py"))
    assert small.truth("py") is small.truth("aten")
    assert small.truth("py") is small.truth("aten_dropout")
    assert small.truth("py") is small.truth("aten_layernorm")
    assert small.truth("py") is not small.truth("jit_simple")
    assert not control._truths


@torch.no_grad()
def remove_biases(network: Network) -> None:
    for name, parameter in network.parameters.items():
        if name.startswith("bias"):
            parameter.zero_()


def errors_without_and_with_biases(name: str, **fields: Any) -> list[Errors]:
    """Return the errors of a runner with zero biases, and those of the correct runner. The truth is computed once."""
    spec = spec_of(name, **fields)
    control, errors = Control(spec), []
    for change in (remove_biases, lambda _: None):
        network = build(name, spec)
        change(network)
        with network.settings():
            errors.append(control.errors(network, network.capture()))
    return errors


WIDE = {"seq_length": 10, "hidden_size": 512, "input_size": 64, "mini_batch": 4}
"""Biases are drawn from +-1/sqrt(hidden size): the wider a layer, the smaller the error without them."""


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "name", ["py", "aten", "aten_layernorm", "gru_py", "rnn_relu_aten", "rnn_tanh_py", "milstm_py"]
)
def test_check_finds_missing_biases_of_a_wide_layer(name: str, precision: str) -> None:
    found, correct = errors_without_and_with_biases(name, precision=precision, **WIDE)
    assert found.output > found.tolerance
    assert correct.ok


def test_tolerance_of_float32_is_that_of_fastrnns() -> None:
    assert Control(spec_of("py")).tolerance("py") == 1e-3


def test_onednn_is_on_again_after_the_eager_lstm() -> None:
    spec = spec_of("py", precision="bfloat16", seq_length=2)
    assert torch.backends.mkldnn.enabled
    assert Control(spec).tolerance("py") >= 4 * torch.finfo(torch.bfloat16).eps
    assert torch.backends.mkldnn.enabled


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_tolerance_is_three_times_the_eager_error(precision: str) -> None:
    """The eager layer is torch's GRU, in this precision and in float64."""
    spec = spec_of("gru_py", precision=precision, seq_length=300, hidden_size=32, input_size=16, mini_batch=4)
    dtype = getattr(torch, precision)
    x, state, _ = inputs_of(spec)
    results = []
    for layer_dtype in (dtype, torch.float64):
        layer = torch.nn.GRU(16, 32, dtype=layer_dtype)
        layer.load_state_dict({key: value.detach() for key, value in build("gru_py", spec).parameters.items()})
        output, last = layer(x.to(layer_dtype), state.to(layer_dtype))
        output.backward(cotangent(spec).to(layer_dtype))
        results.append([output.detach(), last.detach(), *(parameter.grad for parameter in layer.parameters())])
    errors = [float((computed.double() - true).norm() / true.norm()) for computed, true in zip(*results, strict=True)]
    least = 4 * torch.finfo(dtype).eps
    assert 3 * max(errors) > least, "at this size the rule is above its lower limit"
    assert Control(spec).tolerance("gru_py") == pytest.approx(3 * max(errors), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_runners_of_single_sequences_pass_in_half_precision(name: str, precision: str) -> None:
    found, correct = errors_without_and_with_biases(name, precision=precision, seq_length=10, mini_batch=32)
    assert correct.ok
    assert not found.ok


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param(name, precision, marks=[pytest.mark.slow] if name.startswith("resnet") else [])
        for name in EAGER
        for precision in ("bfloat16", "float16")
        if name not in ONE_BY_ONE and "resnet50" not in name and (name, precision) != ("resnet18_jit", "float16")
    ],
)
def test_every_eager_or_scripted_runner_passes_in_half_precision(name: str, precision: str) -> None:
    """A scripted ResNet in float16 takes 15 s on a CPU, so it is tested only in bfloat16."""
    small = {"image_size": 64, "mini_batch": 2} if RUNNERS[name].family == "resnet" else {}
    assert errors_of(name, lambda _: None, precision=precision, **small).ok


def test_rounding_that_opens_a_relu_passes_the_check() -> None:
    """With this seed one ReLU of the layer opens in float16: the worst gradient is off by a fifth."""
    size = {"seq_length": 20, "hidden_size": 16, "input_size": 16, "mini_batch": 8}
    assert errors_of("rnn_relu_aten", lambda _: None, precision="float16", **size).ok


@pytest.mark.parametrize(
    ("runner", "module"),
    [
        (Runner("py_premul", "rnns", "", cell="lstm_premul"), "looped"),
        (Runner("aten_fused", "rnns", ""), "native"),
        (Runner("resnet18_compile", "cnns", "", "resnet18", "resnet"), "resnet"),
    ],
)
def test_runner_without_a_case_is_an_error(runner: Runner, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be timed as another runner, and pass its check: all give the results of torch's layer."""
    monkeypatch.setitem(RUNNERS, runner.name, runner)
    network = build(runner.name, spec_of(runner.name, image_size=32))
    with pytest.raises(NotImplementedError, match=rf"in engine.models.recurrent.{module} .* {runner.name}"):
        network.capture()


NEED_CUDNN = [name for name, runner in RUNNERS.items() if runner.needs_cudnn]


@pytest.mark.parametrize("name", NEED_CUDNN)
@pytest.mark.parametrize("device", ["cpu", "mps", "xpu"])
def test_cudnn_without_an_nvidia_gpu_is_refused(name: str, device: str) -> None:
    spec = spec_of(name, device=device)
    with pytest.raises(Refused, match=f"^{name} needs an NVIDIA GPU with cuDNN, but {spec.device} is not one. .*aten"):
        build(name, spec)


@pytest.mark.parametrize(
    ("capability", "cudnn", "runs"), [((9, 0), 91900, True), ((9, 0), 91200, False), ((7, 5), 91900, False)]
)
def test_cudnn_in_bfloat16_is_refused_where_torch_does_not_use_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], cudnn: int, runs: bool
) -> None:
    on_cpu = native.build
    monkeypatch.setattr(
        native, "build", lambda name, _, found, **options: on_cpu(name, spec_of(name), found, **options)
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
    copied = "torch copies the weights into one buffer at each call, because in bfloat16 it keeps none"
    spec = spec_of("cudnn", device="cuda", precision="bfloat16")
    assert not build("aten", spec).notes
    assert not build("cudnn", spec_of("cudnn", device="cuda")).notes
    if runs:
        assert build("cudnn", spec).notes == (copied,)
    else:
        with pytest.raises(Refused, match=r"^cudnn in bfloat16 needs compute capability 8\.0 and cuDNN 9\.13"):
            build("cudnn", spec)


@pytest.mark.parametrize("name", [name for name in EAGER if RUNNERS[name].way == "py"])
def test_runners_of_plain_python_are_not_scripted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looped, "scripted", lambda function: pytest.fail(f"{function} was scripted"))
    build(name, spec_of(name)).capture()


def test_unsupported_options_are_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"^jit_simple computes all layers .* both directions. Use jit"):
        build("jit_simple", spec_of("jit_simple", bidirectional=True))
    for name in ("gru_py", "gru_aten", "rnn_relu_jit", "rnn_tanh_py"):
        with pytest.raises(Refused, match=f"^{name} has no projection, .*. Set proj_size to 0"):
            build(name, spec_of(name, proj_size=2))
    assert spec_of("aten", precision="tf32").refusal.startswith("tf32 needs an NVIDIA GPU")
    assert not spec_of("aten", precision="tf32", device="cuda").refusal
    with pytest.raises(Refused, match="tf32 needs an NVIDIA GPU"):
        build("aten", spec_of("aten", precision="tf32"))


def test_aten_disables_cudnn_and_all_settings_are_restored() -> None:
    before = torch.backends.cudnn.enabled, torch.is_grad_enabled()
    for name, enabled in (
        ("aten", False),
        ("vl_aten", False),
        ("gru_aten", False),
        ("py", True),
        ("compile_lstm", True),
    ):
        with torch.no_grad(), build(name, spec_of(name)).settings():
            assert (torch.backends.cudnn.enabled, torch.is_grad_enabled()) == (enabled, True), name
            assert not torch.backends.cudnn.allow_tf32
        assert (torch.backends.cudnn.enabled, torch.is_grad_enabled()) == before


def read_executor() -> tuple[bool, bool]:
    """Return the switches of the profiling executor and its mode. Reading sets them, so they are set back at once."""
    executor, mode = torch._C._jit_set_profiling_executor(True), torch._C._jit_set_profiling_mode(True)
    torch._C._jit_set_profiling_executor(executor)
    torch._C._jit_set_profiling_mode(mode)
    return executor, mode


@pytest.mark.parametrize(
    ("fuser", "executor", "nnc", "switches"),
    [
        ("te", "default", True, (True, True)),
        ("old", "default", False, (False, False)),
        ("none", "default", False, (False, False)),
        ("te", "simple", True, (True, False)),
        ("te", "legacy", True, (False, False)),
        ("none", "profiling", False, (True, True)),
    ],
)
def test_fuser_and_executor_are_set(fuser: str, executor: str, nnc: bool, switches: tuple[bool, bool]) -> None:
    set_torchscript(spec_of("jit", fuser=fuser, executor=executor))
    assert torch._C._jit_texpr_fuser_enabled() == nnc
    assert read_executor() == switches
    assert not torch._C._jit_can_fuse_on_cpu()


def pointwise_limits() -> tuple[int, int, int]:
    torch_c: Any = torch._C
    return (
        torch_c._jit_get_te_cuda_pointwise_loop_levels(),
        torch_c._jit_get_te_cuda_pointwise_block_count(),
        torch_c._jit_get_te_cuda_pointwise_block_size(),
    )


def test_pointwise_limits_of_the_fuser_are_set_and_reset() -> None:
    fields = {"cuda_pointwise_loop_level": 2, "cuda_pointwise_block_count": 40, "cuda_pointwise_block_size": 256}
    set_torchscript(spec_of("jit", **fields))
    assert pointwise_limits() == (2, 40, 256)
    set_torchscript(spec_of("jit"))
    assert pointwise_limits() == (-1, -1, -1)


def test_notes_describe_the_execution_on_a_cpu() -> None:
    assert "on a CPU, torch runs this layer with oneDNN" in build("aten", spec_of("aten")).notes
    assert "TorchScript fuses nothing on cpu with the fuser te" in build("jit", spec_of("jit")).notes
    assert build("jit", spec_of("jit", fuser="none")).notes == ()
    assert build("py", spec_of("py")).notes == ()
    (drawn,) = build("vl_py", spec_of("vl_py")).notes
    assert drawn.startswith("sequences of ")
