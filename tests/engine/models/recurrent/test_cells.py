"""Cells that torch has no layer for, dropout and ResNets against hand formulas; counted FLOPs against their formula."""

from math import exp, sqrt, tanh
from typing import Any

import pytest
import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode

from engine.measure.counting import flops
from engine.models.recurrent import Control, build, gflops, steps, weights
from engine.models.recurrent.cells import CELLS, milstm
from engine.specs import RecurrentSpec
from tests.engine.models.recurrent.test_runners import possible, results, spec_of

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value))


def tensors(*values: list[Any]) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def test_milstm_step_equals_the_hand_formula() -> None:
    """Every gate by the formula of the paper, for one feature and one hidden unit."""
    x, h, c = 0.5, -0.3, 0.8
    w, u, bias = [0.1, -0.2, 0.3, 0.4], [0.7, 0.6, -0.5, 0.2], [0.01, 0.02, 0.03, 0.04]
    alpha, beta_i, beta_h = [1.5, 0.5, -1.0, 2.0], [0.9, 1.1, 0.8, 1.2], [0.3, 0.6, 1.3, 0.7]
    gate = [alpha[k] * w[k] * x * u[k] * h + beta_i[k] * w[k] * x + beta_h[k] * u[k] * h + bias[k] for k in range(4)]
    memory = sigmoid(gate[1]) * c + sigmoid(gate[0]) * tanh(gate[2])
    output = sigmoid(gate[3]) * tanh(memory)
    columns = [[value] for value in w], [[value] for value in u]
    weights = tensors(*columns, bias, alpha, beta_i, beta_h)
    step_input, hidden, cell = tensors([[x]], [[h]], [[c]])
    found = milstm(step_input, (hidden, cell), weights)
    assert [entry.item() for entry in found] == pytest.approx([output, memory])


def test_milstm_without_its_product_equals_an_lstm() -> None:
    spec = spec_of("milstm_py", num_layers=2, bidirectional=True)
    network, lstm = build("milstm_py", spec), torch.nn.LSTM(6, 4, 2, bidirectional=True)
    with torch.no_grad():
        for name, parameter in network.parameters.items():
            if name.startswith("alpha"):
                parameter.zero_()
        for name, parameter in lstm.named_parameters():
            if name.startswith("weight"):
                parameter.copy_(network.parameters[name])
            elif name.startswith("bias_ih"):
                parameter.copy_(network.parameters[name.replace("bias_ih", "bias")])
            else:
                parameter.zero_()
    from engine.models.recurrent.weights import inputs

    drawn = inputs(spec)
    (output, *last), gradients = results(network)
    wanted, wanted_last = lstm(drawn.x, drawn.state)
    torch.testing.assert_close([output, *last], [wanted, *wanted_last])
    wanted.backward(network.cotangent)
    for name, parameter in lstm.named_parameters():
        key = name.replace("bias_ih", "bias")
        if key in gradients:
            torch.testing.assert_close(gradients[key], parameter.grad)


@pytest.mark.parametrize("name", ["lstm_layernorm", "lstm_layernorm_decom"])
def test_layer_norm_lstm_step_equals_the_hand_formula(name: str) -> None:
    """Two hidden units; one norm over all eight gates, and one over the memory for the output."""
    torch.manual_seed(3)
    w, u = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
    norms = [torch.randn(size, dtype=torch.float64) for size in (8, 8, 8, 8, 2, 2)]
    x, h, c = (torch.randn(1, size, dtype=torch.float64) for size in (3, 2, 2))

    def norm(values: list[float], scale: torch.Tensor, shift: torch.Tensor) -> list[float]:
        mean = sum(values) / len(values)
        deviation = sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-5)
        return [(v - mean) / deviation * s + b for v, s, b in zip(values, scale.tolist(), shift.tolist(), strict=True)]

    ih = norm((w @ x[0]).tolist(), norms[0], norms[1])
    hh = norm((u @ h[0]).tolist(), norms[2], norms[3])
    gate = [a + b for a, b in zip(ih, hh, strict=True)]
    memory = [sigmoid(gate[2 + k]) * c[0, k].item() + sigmoid(gate[k]) * tanh(gate[4 + k]) for k in range(2)]
    normed_memory = norm(memory, norms[4], norms[5])
    output = [sigmoid(gate[6 + k]) * tanh(normed_memory[k]) for k in range(2)]
    found_h, found_c = CELLS[name].step(x, (h, c), [w, u, *norms])
    assert found_h[0].tolist() == pytest.approx(output)
    assert found_c[0].tolist() == pytest.approx(memory)


@pytest.mark.parametrize("name", ["aten_dropout", "jit_dropout"])
def test_dropout_zeroes_40_percent_between_layers_and_scales_the_rest(name: str) -> None:
    """Only one input weight of the second layer is not 0, so its memory shows what it gets from the first layer."""
    spec = spec_of(name, num_layers=2, seq_length=1, mini_batch=4000, hidden_size=2, input_size=2)
    network = build(name, spec)
    first = build("py", spec_of("py", seq_length=1, mini_batch=4000, hidden_size=2, input_size=2))
    first_outputs, _ = results(first)
    with torch.no_grad():  # so that the last h of the second layer is a monotone function of one input feature
        for key, parameter in network.parameters.items():
            if key.endswith("_l0"):
                first.parameters[key].copy_(parameter)
            else:
                parameter.zero_()
    first_outputs, _ = results(first)
    with torch.no_grad():
        network.parameters["weight_ih_l1"][4, 0] = 1.0  # the new memory: tanh of the first feature of its input
    torch.manual_seed(0)
    with network.settings():
        run = network.capture()
        _, _, c = run()
        second_run = run()[2]
        with network.checked():
            without_dropout = run()[2]
            assert torch.equal(run()[2], without_dropout)
    from engine.models.recurrent.weights import inputs

    before = inputs(spec).c[1]
    new = torch.atanh(((c[1] - 0.5 * before) * 2)[:, 0].clamp(-0.999999, 0.999999))
    not_dropped = new.abs() > 1e-5
    assert not_dropped.float().mean().item() == pytest.approx(0.6, abs=0.04)
    torch.testing.assert_close(new[not_dropped], (first_outputs[0][0, :, 0] / 0.6)[not_dropped], rtol=1e-3, atol=1e-4)
    assert not torch.equal(second_run, c)
    torch.testing.assert_close(
        torch.atanh(((without_dropout[1] - 0.5 * before) * 2)[:, 0]), first_outputs[0][0, :, 0], rtol=1e-3, atol=1e-4
    )
    assert "checked without dropout" in network.notes


@pytest.mark.parametrize("name", ["aten_dropout", "jit_dropout"])
def test_dropout_has_no_effect_with_one_layer(name: str) -> None:
    network = build(name, spec_of(name))
    with network.settings():
        run = network.capture()
        torch.testing.assert_close(run(), run())
    assert "dropout has no effect: it is applied between layers, and there is one" in network.notes


def test_layer_norms_run_per_time_step_layer_and_direction() -> None:
    network = build("aten_layernorm", spec_of("aten_layernorm", num_layers=2, bidirectional=True))
    with network.settings():
        run = network.capture()
        found = flops.count(torch.nn.Identity(), (), run)
    norms = {entry.operator: entry.calls for entry in found.operators}
    assert norms["native_layer_norm"] == 5 * 2 * 2 * 3
    assert network.cotangent is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet18_jit", "resnet50_jit"])
def test_resnets_use_batch_and_image_size_and_pass_their_check(name: str) -> None:
    spec = spec_of(name, image_size="32x48", mini_batch=3)
    network = build(name, spec)
    with network.settings():
        run = network.capture()
        (output,) = run()
    assert output.shape == (3, 1000)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        reference = torchvision.models.get_model(name.removesuffix("_jit"), weights=None).train()
    last = "bn3.weight" if name.startswith("resnet50") else "bn2.weight"
    with torch.no_grad():
        for key, weight in reference.named_parameters():
            if key.startswith("layer") and key.endswith(last):
                weight.fill_(0.1)  # the scale at which rounding does not decide which ReLUs open
    images = torch.randn(3, 3, 32, 48, generator=torch.Generator().manual_seed(8 * spec.seed + 1))
    torch.testing.assert_close(output, reference(images), rtol=1e-4, atol=1e-5)
    errors = Control(spec).errors(network, run)
    assert errors.ok
    assert errors.gradient is not None
    assert errors.gradient < 1e-4


@pytest.mark.slow
def test_check_keeps_the_statistics_of_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.models.recurrent import resnet

    built: list[torch.nn.Module] = []
    original = resnet.model
    monkeypatch.setattr(resnet, "model", lambda *arguments: built.append(original(*arguments)) or built[-1])
    spec = spec_of("resnet18_jit", image_size=32, mini_batch=2)
    network = build("resnet18_jit", spec)
    before = [buffer.clone() for buffer in built[0].buffers()]
    run = network.capture()
    Control(spec).errors(network, run)
    assert all(torch.equal(old, new) for old, new in zip(before, built[0].buffers(), strict=True))
    run()
    assert not all(torch.equal(old, new) for old, new in zip(before, built[0].buffers(), strict=True)), "in training"


SHAPES = [
    {"num_layers": 1},
    {"num_layers": 3},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 2, "proj_size": 3},
    {"num_layers": 2, "proj_size": 3, "bidirectional": True},
]
COUNTED = "aten py vl_py vl_aten gru_py gru_aten rnn_relu_py rnn_relu_aten rnn_tanh_py milstm_py jit_layernorm".split()


@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name in COUNTED for shape in SHAPES if possible(name, shape)]
)
def test_counted_flops_equal_the_formula(name: str, shape: dict[str, Any]) -> None:
    spec = spec_of(name, **shape)
    network = build(name, spec)
    with network.settings():
        run = network.capture()
        counted = flops.count(torch.nn.Identity(), (), run)
    assert gflops(spec) == pytest.approx(counted.flops / 1e9, rel=1e-12)
    if "aten" not in name:  # torch's counter has no formula for a fused layer
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            run()
        assert counter.get_total_flops() == counted.flops


def test_flops_at_the_fastrnns_sizes_equal_hand_calculations() -> None:
    """An LSTM has 8 H (I + H) FLOPs per sequence and time step; a projection adds H x P, with P in place of H."""
    lstm = RecurrentSpec(runners=("aten",))
    assert gflops(lstm) / steps(lstm) == pytest.approx(2 * 64 * (4 * 512) * (512 + 512) / 1e9)
    assert gflops(lstm) == pytest.approx(100 * 2 * 64 * (4 * 512) * (512 + 512) / 1e9)
    assert steps(lstm) == 100
    projected = RecurrentSpec(runners=("aten",), proj_size=128, num_layers=2, bidirectional=True, input_size=80)
    below, above = 4 * 512 * (80 + 128) + 512 * 128, 4 * 512 * (256 + 128) + 512 * 128
    assert gflops(projected) / steps(projected) == pytest.approx(2 * 64 * 2 * (below + above) / 1e9)
    gru = RecurrentSpec(runners=("gru_py",))
    assert gflops(gru) / steps(gru) == pytest.approx(2 * 64 * 3 * 512 * 1024 / 1e9)


def test_flops_of_variable_lengths_count_only_real_time_steps() -> None:
    from engine.models.recurrent.weights import lengths

    spec = spec_of("vl_py", seq_length=20)
    drawn = lengths(spec)
    assert gflops(spec) == pytest.approx(sum(drawn) * 2 * 16 * (6 + 4) / 1e9)
    assert steps(spec) == max(drawn)
    assert gflops(spec) / steps(spec) == pytest.approx(sum(drawn) * 2 * 16 * 10 / 1e9 / max(drawn))


def test_norms_begin_with_the_values_of_torch_but_a_small_scale_of_the_hidden_state() -> None:
    drawn = weights.drawn(spec_of("jit_layernorm"), "lstm_layernorm")
    for name, size in (("ih", 4), ("hh", 4), ("cell", 1)):
        norm = torch.nn.LayerNorm(size * spec_of("jit_layernorm").hidden_size)
        scale = 0.25 if name == "hh" else 1.0
        torch.testing.assert_close(drawn[f"norm_{name}_weight_l0"], scale * norm.weight.detach())
        torch.testing.assert_close(drawn[f"norm_{name}_bias_l0"], norm.bias.detach())
