"""Every runner of a recurrent layer gives the outputs and gradients of torch's layer."""

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from engine.models.recurrent import Control, Errors, Network, build, set_torchscript, weights
from engine.models.recurrent.control import OWN_CELLS, evaluate
from engine.specs import RecurrentSpec
from engine.specs.fields.runners import RUNNERS
from tests.engine.models.recurrent.by_hand import FORMULAS, by_hand

SMALL: dict[str, Any] = {"seq_length": 5, "mini_batch": 3, "input_size": 6, "hidden_size": 4}
EAGER = [name for name, runner in RUNNERS.items() if not runner.needs_cudnn and runner.execution != "compile"]
RECURRENT = [name for name in EAGER if RUNNERS[name].family != "resnet"]
COMPILED = [name for name, runner in RUNNERS.items() if runner.execution == "compile"]
WITH_TORCH_LAYER = [
    name for name in RECURRENT if RUNNERS[name].network in ("lstm", "vl_lstm", "gru", "rnn_relu", "rnn_tanh")
]
pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch.compile reads it
]


@pytest.fixture(autouse=True)
def restored_torchscript() -> Iterator[None]:
    set_torchscript(RecurrentSpec())
    yield
    set_torchscript(RecurrentSpec())


def spec_of(name: str, **fields: Any) -> RecurrentSpec:
    (spec,) = RecurrentSpec(runners=(name,), **SMALL | fields).comparisons
    return spec


def results(network: Network) -> tuple[tuple[torch.Tensor, ...], Any]:
    with network.settings(), network.checked():
        return evaluate(network.capture(), network.parameters, network.cotangent)


def build_and_check(name: str, spec: RecurrentSpec) -> tuple[Network, Errors]:
    """Build a runner and return it with the errors of its check."""
    network = build(name, spec)
    with network.settings():
        run = network.capture()
    return network, Control(spec).errors(network, run)


def torch_layer_results(
    name: str, network: Network, spec: RecurrentSpec
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Return outputs and gradients of torch's layer in float64, for the network's weights and inputs."""
    kinds = {"gru": torch.nn.GRU, "rnn_relu": torch.nn.RNN, "rnn_tanh": torch.nn.RNN}
    kind: Any = kinds.get(spec.family, torch.nn.LSTM)
    more: dict[str, Any] = {"nonlinearity": spec.family[4:]} if kind is torch.nn.RNN else {}
    more |= {"proj_size": spec.proj_size} if kind is torch.nn.LSTM else {}
    layer = kind(
        spec.input_size,
        spec.hidden_size,
        spec.num_layers,
        bidirectional=spec.bidirectional,
        batch_first=spec.batch_first,
        dtype=torch.float64,
        **more,
    )
    assert set(dict(layer.named_parameters())) == set(network.parameters)
    layer.load_state_dict({key: value.detach().double() for key, value in network.parameters.items()})
    x, state, lengths = inputs_of(spec)
    if spec.family == "vl_lstm":
        packed = pack_padded_sequence(x, torch.tensor(lengths), spec.batch_first, enforce_sorted=False)
        output, last = layer(packed, state)
        output, _ = pad_packed_sequence(output, spec.batch_first)
    else:
        output, last = layer(x, state)
    found = [output, *(last if isinstance(last, tuple) else [last])][1 if name == "jit_simple" else 0 :]
    assert network.cotangent is not None
    found[0].backward(network.cotangent.double())
    return [item.detach() for item in found], {key: value.grad for key, value in layer.named_parameters()}


def inputs_of(spec: RecurrentSpec) -> tuple[torch.Tensor, Any, list[int]]:
    from engine.models.recurrent.weights import inputs

    drawn = inputs(spec).to("cpu", torch.float64)
    return drawn.x, drawn.state, drawn.lengths


SHAPES: dict[str, dict[str, Any]] = {
    "one-layer": {"num_layers": 1},
    "two-layers": {"num_layers": 2},
    "three-layers-batch-first": {"num_layers": 3, "batch_first": True},
    "bidirectional": {"num_layers": 2, "bidirectional": True},
    "projected-both-ways": {"num_layers": 2, "bidirectional": True, "proj_size": 3, "batch_first": True},
    "projected": {"num_layers": 3, "proj_size": 2},
}
SLOW = pytest.mark.slow


def cases(names: list[str], shapes: list[str], slow: Collection[str] = ()) -> list[Any]:
    """Return every name with every shape that it supports. slow: shapes whose cases are marked as slow."""
    return [
        pytest.param(name, SHAPES[shape], id=f"{name}-{shape}", marks=[SLOW] if shape in slow else [])
        for name in names
        for shape in shapes
        if possible(name, SHAPES[shape])
    ]


def possible(name: str, shape: dict[str, Any]) -> bool:
    without_projection = RUNNERS[name].family in ("gru", "rnn_relu", "rnn_tanh")
    return not (shape.get("proj_size") and without_projection) and not (
        shape.get("bidirectional") and name == "jit_simple"
    )


@pytest.mark.parametrize(("name", "shape"), cases(WITH_TORCH_LAYER, list(SHAPES)))
def test_outputs_and_gradients_equal_those_of_the_torch_layer(name: str, shape: dict[str, Any]) -> None:
    spec = spec_of(name, **shape)
    network = build(name, spec)
    outputs, gradients = results(network)
    wanted, wanted_gradients = torch_layer_results(name, network, spec)
    torch.testing.assert_close([item.double() for item in outputs], wanted, rtol=1e-5, atol=1e-6)
    for key, gradient in wanted_gradients.items():
        torch.testing.assert_close(gradients[key].double(), gradient, rtol=1e-5, atol=1e-5)


def test_each_cell_without_a_torch_layer_has_a_second_computation() -> None:
    assert {*FORMULAS} == {*OWN_CELLS}, "add these to FORMULAS in by_hand.py: the check of a run uses the cell itself"


@pytest.mark.parametrize(
    ("name", "shape"), cases(["milstm_py", "jit_layernorm"], ["three-layers-batch-first", "projected-both-ways"])
)
def test_truth_of_cells_without_a_torch_layer_equals_a_second_computation(name: str, shape: dict[str, Any]) -> None:
    spec = spec_of(name, **shape)
    network = build(name, spec)
    parameters = {key: value.detach().double().requires_grad_() for key, value in network.parameters.items()}
    wanted = by_hand(spec, RUNNERS[name].network, parameters, weights.inputs(spec).to("cpu", torch.float64))
    assert network.cotangent is not None
    wanted[0].backward(network.cotangent.double())
    outputs, gradients = Control(spec).truth(name)
    torch.testing.assert_close([*outputs], [*wanted], rtol=1e-9, atol=1e-12)
    for key, parameter in parameters.items():
        torch.testing.assert_close(gradients[key], parameter.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "shape"), cases(RECURRENT, ["one-layer", "projected"], slow=["projected"]))
def test_every_runner_passes_its_check(name: str, shape: dict[str, Any]) -> None:
    spec = spec_of(name, **shape)
    network, errors = build_and_check(name, spec)
    assert errors.ok
    assert errors.output < 1e-5
    assert errors.tolerance == 1e-3
    assert (errors.gradient is None) == (network.cotangent is None) == name.endswith("n_layernorm")
    assert all(parameter.grad is None for parameter in network.parameters.values())


COMPILED_SHAPES = ["one-layer", "two-layers", "three-layers-batch-first", "projected-both-ways"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), cases(COMPILED, COMPILED_SHAPES))
def test_captured_runners_pass_their_check(name: str, shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs torch.compile without code generation, which takes ten seconds per case.

    Only two layers are also captured by AOTAutograd, which takes three times as long as the rest.
    Generated code is checked in tests/engine/tasks/test_recurrent.py:
    `test_compiled_runners_pass_their_check_and_have_compile_times`.
    """
    backend = "aot_eager" if shape is SHAPES["two-layers"] else "eager"
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    _, errors = build_and_check(name, spec_of(name, **shape | {"seq_length": 3}))
    assert errors.ok
    assert errors.output < 1e-5
    torch._dynamo.reset()


@pytest.mark.slow
def test_compiled_cell_keeps_static_shapes_for_different_input_sizes() -> None:
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []
    network = build("compile_cell", spec_of("compile_cell", num_layers=3))

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compile_ = torch.compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda *args, **options: compile_(*args, **options, backend=keep))
        with network.settings():
            network.capture()()
    sizes = [
        tuple(node.meta["example_value"].shape)
        for graph in graphs
        for node in graph.graph.nodes
        if node.op == "placeholder"
    ]
    assert all(type(side) is int for size in sizes for side in size)
    assert (3, 6) in sizes
    assert (3, 4) in sizes
    assert len(graphs) <= 4, "with and without a gradient of the state, for two input sizes"
    torch._dynamo.reset()


@pytest.mark.slow
def test_torch_compile_runs_nn_lstm_eagerly_with_a_note() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    network = build("compile_lstm", spec_of("compile_lstm"))
    results(network)
    assert not torch._dynamo.config.allow_rnn
    assert counters["stats"]["unique_graphs"] == 0
    assert (
        "torch.compile runs nn.LSTM eagerly, because torch._dynamo.config.allow_rnn is off by default" in network.notes
    )


@pytest.mark.parametrize("executor", ["legacy", "simple", "profiling"])
@pytest.mark.parametrize("name", ["jit", "jit_simple", pytest.param("vl_jit", marks=pytest.mark.slow)])
def test_scripts_are_correct_with_every_executor(name: str, executor: str) -> None:
    spec = spec_of(name, num_layers=2, executor=executor)
    set_torchscript(spec)
    network = build(name, spec)
    with network.settings():
        run = network.capture()
    assert Control(spec).errors(network, run).output < 1e-5


def test_runners_of_a_network_have_equal_weights() -> None:
    parameters = {}
    for name in ("aten", "py", "jit_premul", "jit_multilayer"):
        network = build(name, spec_of(name, num_layers=2))
        parameters[name] = network.parameters
    for other in parameters.values():
        assert list(other) == list(parameters["aten"])
        assert all(torch.equal(other[key], parameters["aten"][key]) for key in other)
    changed = build("py", spec_of("py", num_layers=2, seed=1)).parameters
    assert not torch.equal(changed["weight_ih_l0"], parameters["py"]["weight_ih_l0"])


def test_building_keeps_the_global_random_state() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for name in ("py", "aten_layernorm", "milstm_py"):
        build(name, spec_of(name))
    assert torch.equal(torch.get_rng_state(), before)


def test_batch_first_gives_the_transposed_outputs() -> None:
    for name in ("aten", "py", "jit", "vl_aten", "vl_py"):
        (plain, *states), _ = results(build(name, spec_of(name)))
        (first, *others), _ = results(build(name, spec_of(name, batch_first=True)))
        torch.testing.assert_close(first.transpose(0, 1), plain)
        torch.testing.assert_close(others, states)


def test_lengths_are_30_to_99_percent_and_at_least_one_time_step() -> None:
    from engine.models.recurrent.weights import lengths

    drawn = lengths(spec_of("vl_py", seq_length=100, mini_batch=20_000))
    assert (min(drawn), max(drawn)) == (30, 99)
    assert sum(drawn) / len(drawn) == pytest.approx(64.5, abs=0.5)
    assert drawn == lengths(spec_of("vl_aten", seq_length=100, mini_batch=20_000))
    assert lengths(spec_of("vl_py", seq_length=1)) == [1, 1, 1]
    assert set(lengths(spec_of("vl_py", seq_length=2, mini_batch=9))) == {1}
    assert lengths(spec_of("py")) == [5, 5, 5]


def test_cotangent_has_the_shape_of_the_first_output() -> None:
    spec = spec_of("py", num_layers=2)
    network = build("py", spec)
    output, h, c = network.capture()()
    assert network.cotangent is not None
    assert network.cotangent.shape == output.shape == (5, 3, 4)
    assert h.shape == c.shape == (2, 3, 4)
    last, memory = build("jit_simple", spec_of("jit_simple", num_layers=2)).capture()()
    torch.testing.assert_close([last, memory], [h, c])
