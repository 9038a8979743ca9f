"""What is wrong is caught, what cannot be done is refused, and switches are really set."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch

from engine.models.recurrent import Control, Errors, Network, build, cells, looped, set_torchscript
from engine.models.recurrent.cells import Cell, State
from engine.models.recurrent.control import tolerance
from engine.specs import RecurrentSpec, Refused
from engine.specs.runners import RUNNERS
from tests.engine.models.test_recurrent import spec_of, torchscript_as_it_was

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
    assert all(each.dtype == getattr(torch, precision) for each in network.parameters.values())


def errors_of(name: str, change: Callable[[Network], Any], **asked: Any) -> Errors:
    spec = spec_of(name, **asked)
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


def test_tolerances() -> None:
    """1e-3 in float32; 16 epsilon otherwise, more where over 256 gradients are added up, and never above a half."""
    assert tolerance(spec_of("py")) == 1e-3
    assert tolerance(spec_of("py", precision="bfloat16")) == 16 / 128
    assert tolerance(spec_of("py", precision="float16")) == 16 / 1024
    assert tolerance(spec_of("py", precision="tf32", device="cuda:0")) == 16 / 1024
    assert tolerance(spec_of("py", precision="float16", seq_length=1024)) == 32 / 1024
    assert tolerance(spec_of("vl_py", precision="bfloat16", seq_length=400, mini_batch=64)) == 0.5


NEED_CUDNN = [name for name, runner in RUNNERS.items() if runner.needs_cudnn]


@pytest.mark.parametrize("name", NEED_CUDNN)
@pytest.mark.parametrize("device", ["cpu", "mps", "xpu"])
def test_cudnn_needs_its_gpu_and_says_so(name: str, device: str) -> None:
    spec = spec_of(name, device=device)
    with pytest.raises(Refused, match=f"^{name} needs an NVIDIA GPU with cuDNN, which {spec.device} is not: .*aten"):
        build(name, spec)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has such a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("name", ["cudnn", "aten", "jit", "resnet18"])
def test_a_gpu_that_is_not_there_is_named(name: str, device: str) -> None:
    spec = spec_of(name, device=device)
    with pytest.raises(Refused, match=f"^{name} was asked for on {spec.device}, but torch finds no such GPU"):
        build(name, spec)


def test_every_other_refusal_is_by_name() -> None:
    with pytest.raises(Refused, match=r"^jit_simple takes all layers .* both directions: jit runs"):
        build("jit_simple", spec_of("jit_simple", bidirectional=True))
    for name in ("gru_py", "gru_aten", "rnn_relu_jit", "rnn_tanh_py"):
        with pytest.raises(Refused, match=f"^{name} has no projection, .*: set proj_size to 0"):
            build(name, spec_of(name, proj_size=2))
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
    asked = {"cuda_pointwise_loop_level": 2, "cuda_pointwise_block_count": 40, "cuda_pointwise_block_size": 256}
    set_torchscript(spec_of("jit", **asked))
    assert knobs() == (2, 40, 256)
    set_torchscript(spec_of("jit"))
    assert knobs() == (-1, -1, -1)


def test_notes_say_what_a_cpu_does() -> None:
    assert "on a CPU, torch gives this layer to oneDNN" in build("aten", spec_of("aten")).notes
    assert "TorchScript fuses nothing on cpu with the fuser te" in build("jit", spec_of("jit")).notes
    assert build("jit", spec_of("jit", fuser="none")).notes == ()
    assert build("py", spec_of("py")).notes == ()
    (drawn,) = build("vl_py", spec_of("vl_py")).notes
    assert drawn.startswith("sequences of ")
