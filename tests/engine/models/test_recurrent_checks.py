"""What is wrong is caught, what cannot be done is refused, and switches are really set."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch

from engine.models.recurrent import Control, Errors, Network, build, cells, looped, native, set_torchscript
from engine.models.recurrent.cells import Cell, State
from engine.models.recurrent.weights import cotangent
from engine.specs import RecurrentSpec, Refused
from engine.specs.runners import RUNNERS
from tests.engine.models.test_recurrent import EAGER, inputs_of, spec_of, torchscript_as_it_was

__all__ = ["torchscript_as_it_was"]


def wrong_gates(x: torch.Tensor, state: State, weights: list[torch.Tensor]) -> State:
    """In and forget exchanged."""
    swapped = [torch.cat([weight.chunk(4)[gate] for gate in (1, 0, 2, 3)]) for weight in weights[:4]]
    return cells.lstm(x, state, swapped + weights[4:])


def wrong_nonlinearity(x: torch.Tensor, state: State, weights: list[torch.Tensor]) -> State:
    """The output without its tanh."""
    h, c = cells.lstm(x, state, weights)
    return h / torch.tanh(c) * c, c


def forgetful(x: torch.Tensor, state: State, weights: list[torch.Tensor]) -> State:
    """The state's product left out."""
    return cells.lstm(x, (state[0] * 0, state[1]), weights)


def detached(x: torch.Tensor, state: State, weights: list[torch.Tensor]) -> State:
    """Right values, whose gradient does not flow back through time."""
    return cells.lstm(x, (state[0].detach(), state[1].detach()), weights)


PRECISIONS = ["float32", "bfloat16", "float16"]
WRONG = [wrong_gates, wrong_nonlinearity, forgetful, detached]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("step", WRONG)
def test_a_wrong_cell_is_caught(step: Any, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_right_code_is_within_its_tolerance_and_not_far_inside_by_accident(name: str, precision: str) -> None:
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
    changed = change(network)
    with network.settings():
        run = network.capture()
    return Control(spec).errors(network, changed(run) if callable(changed) else run)


@torch.no_grad()
def nudge(network: Network) -> None:
    network.parameters["weight_hh_l0"][3, 2] += 0.05


@pytest.mark.parametrize("name", ["py", "aten", "jit_multilayer", "gru_py", "milstm_py", "vl_py", "vl_aten"])
def test_one_wrong_weight_is_caught(name: str) -> None:
    assert not errors_of(name, nudge).ok
    assert errors_of(name, lambda _: None).ok


def test_other_shapes_missing_states_and_numbers_that_are_not_finite_are_caught() -> None:
    assert errors_of("aten_layernorm", lambda _: lambda run: lambda: run()[:2]).output == inf
    assert errors_of("aten_layernorm", lambda _: lambda run: lambda: (run()[0][1:], *run()[1:])).output == inf
    assert (
        errors_of("aten_layernorm", lambda _: lambda run: lambda: (run()[0] * float("nan"), *run()[1:])).output == inf
    )
    assert not errors_of("aten_layernorm", lambda _: lambda run: lambda: run()[:2]).ok


def without_gradient(network: Network) -> None:
    network.parameters["bias_hh_l0"].requires_grad_(False)


def test_a_parameter_without_a_gradient_is_caught() -> None:
    found = errors_of("py", without_gradient)
    assert found.gradient == inf
    assert not found.ok


def test_gradients_of_before_do_not_count_and_none_are_left() -> None:
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
def without_biases(network: Network) -> None:
    for name, parameter in network.parameters.items():
        if name.startswith("bias"):
            parameter.zero_()


WIDE = {"seq_length": 20, "hidden_size": 512, "input_size": 64, "mini_batch": 8}
"""Biases are drawn from +-1/sqrt(hidden size): the wider a layer, the less is off without them."""


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "name", ["py", "aten", "aten_layernorm", "gru_py", "rnn_relu_aten", "rnn_tanh_py", "milstm_py"]
)
def test_a_wide_layer_without_its_biases_is_caught_and_with_them_is_not(name: str, precision: str) -> None:
    found = errors_of(name, without_biases, precision=precision, **WIDE)
    assert found.output > found.tolerance
    assert errors_of(name, lambda _: None, precision=precision, **WIDE).ok


def test_float32_may_be_off_by_what_fastrnns_allows() -> None:
    assert Control(spec_of("py")).tolerance("py") == 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_lower_precision_may_be_off_by_three_times_the_error_of_the_eager_layer(precision: str) -> None:
    """The layer of this test is torch's GRU, built here, in that precision and in float64."""
    spec = spec_of("gru_py", precision=precision, seq_length=300, hidden_size=32, input_size=16, mini_batch=4)
    dtype = getattr(torch, precision)
    x, state, _ = inputs_of(spec)
    results = []
    for kind in (dtype, torch.float64):
        layer = torch.nn.GRU(16, 32, dtype=kind)
        layer.load_state_dict({key: value.detach() for key, value in build("gru_py", spec).parameters.items()})
        output, last = layer(x.to(kind), state.to(kind))
        output.backward(cotangent(spec).to(kind))
        results.append([output.detach(), last.detach(), *(parameter.grad for parameter in layer.parameters())])
    apart = [float((one.double() - true).norm() / true.norm()) for one, true in zip(*results, strict=True)]
    least = 4 * torch.finfo(dtype).eps
    assert 3 * max(apart) > least, "this size tells the rule from its floor"
    assert Control(spec).tolerance("gru_py") == pytest.approx(3 * max(apart), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_sequences_run_one_by_one_may_add_up_rounding_errors_one_by_one(name: str, precision: str) -> None:
    found = errors_of(name, lambda _: None, precision=precision, seq_length=20, mini_batch=32)
    assert found.ok
    assert not errors_of(name, without_biases, precision=precision, seq_length=20, mini_batch=32).ok


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
    """The CPU takes a quarter of a minute for a scripted ResNet in float16, so that has only bfloat16."""
    small = {"image_size": 64, "mini_batch": 2} if RUNNERS[name].family == "resnet" else {}
    assert errors_of(name, lambda _: None, precision=precision, **small).ok


def test_rounding_that_opens_a_relu_is_no_fault() -> None:
    """With this seed one ReLU of the layer opens in float16: the worst gradient is off by a fifth."""
    size = {"seq_length": 20, "hidden_size": 16, "input_size": 16, "mini_batch": 8}
    assert errors_of("rnn_relu_aten", lambda _: None, precision="float16", **size).ok


NEED_CUDNN = [name for name, runner in RUNNERS.items() if runner.needs_cudnn]


@pytest.mark.parametrize("name", NEED_CUDNN)
@pytest.mark.parametrize("device", ["cpu", "mps", "xpu"])
def test_cudnn_needs_its_gpu_and_says_so(name: str, device: str) -> None:
    spec = spec_of(name, device=device)
    with pytest.raises(Refused, match=f"^{name} needs an NVIDIA GPU with cuDNN, but {spec.device} is not one. .*aten"):
        build(name, spec)


@pytest.mark.parametrize(
    ("capability", "cudnn", "runs"), [((9, 0), 91900, True), ((9, 0), 91200, False), ((7, 5), 91900, False)]
)
def test_cudnn_in_bfloat16_is_refused_where_torch_would_not_use_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], cudnn: int, runs: bool
) -> None:
    on_cpu = native.build
    monkeypatch.setattr(native, "build", lambda name, _, found, **how: on_cpu(name, spec_of(name), found, **how))
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has such a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("name", ["cudnn", "aten", "jit", "resnet18"])
def test_a_gpu_that_is_not_there_is_named(name: str, device: str) -> None:
    spec = spec_of(name, device=device)
    with pytest.raises(Refused, match=f"^{name} cannot run on {spec.device}: torch finds no GPU"):
        build(name, spec)


def test_every_other_refusal_is_by_name() -> None:
    with pytest.raises(Refused, match=r"^jit_simple computes all layers .* both directions. Use jit"):
        build("jit_simple", spec_of("jit_simple", bidirectional=True))
    for name in ("gru_py", "gru_aten", "rnn_relu_jit", "rnn_tanh_py"):
        with pytest.raises(Refused, match=f"^{name} has no projection, .*. Set proj_size to 0"):
            build(name, spec_of(name, proj_size=2))
    assert spec_of("aten", precision="tf32").device_refusal.startswith("tf32 needs an NVIDIA GPU")
    assert not spec_of("aten", precision="tf32", device="cuda").device_refusal
    with pytest.raises(Refused, match="tf32 needs an NVIDIA GPU"):
        build("aten", spec_of("aten", precision="tf32"))


def test_without_torchvision_a_resnet_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.models.recurrent import resnet

    monkeypatch.setattr(resnet, "find_spec", lambda _: None)
    with pytest.raises(Refused, match=r"^resnet18 is torchvision's, which is not installed"):
        build("resnet18", spec_of("resnet18"))


def test_aten_runs_without_cudnn_and_everything_is_afterwards_as_it_was() -> None:
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


def executors() -> tuple[bool, bool]:
    """Whether the profiling executor is on, and its mode. Asking is setting: it is set back at once."""
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
def test_fuser_and_executor_are_really_set(fuser: str, executor: str, nnc: bool, switches: tuple[bool, bool]) -> None:
    set_torchscript(spec_of("jit", fuser=fuser, executor=executor))
    assert torch._C._jit_texpr_fuser_enabled() == nnc
    assert executors() == switches
    assert not torch._C._jit_can_fuse_on_cpu()


def knobs() -> tuple[int, int, int]:
    own: Any = torch._C
    return (
        own._jit_get_te_cuda_pointwise_loop_levels(),
        own._jit_get_te_cuda_pointwise_block_count(),
        own._jit_get_te_cuda_pointwise_block_size(),
    )


def test_the_knobs_are_really_set_and_set_back() -> None:
    fields = {"cuda_pointwise_loop_level": 2, "cuda_pointwise_block_count": 40, "cuda_pointwise_block_size": 256}
    set_torchscript(spec_of("jit", **fields))
    assert knobs() == (2, 40, 256)
    set_torchscript(spec_of("jit"))
    assert knobs() == (-1, -1, -1)


def test_notes_say_what_a_cpu_does() -> None:
    assert "on a CPU, torch runs this layer with oneDNN" in build("aten", spec_of("aten")).notes
    assert "TorchScript fuses nothing on cpu with the fuser te" in build("jit", spec_of("jit")).notes
    assert build("jit", spec_of("jit", fuser="none")).notes == ()
    assert build("py", spec_of("py")).notes == ()
    (drawn,) = build("vl_py", spec_of("vl_py")).notes
    assert drawn.startswith("sequences of ")
