"""Recurrent layers on a real NVIDIA GPU: `pytest -m gpu`. Without a GPU, runners that need cuDNN are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models import recurrent
from engine.models.recurrent import Control
from engine.models.recurrent.build import has_bf16_cudnn
from engine.results import RecurrentRow
from engine.specs import RecurrentSpec
from engine.specs.fields.runners import RUNNERS, of_group
from engine.tasks.recurrent import run

pytestmark = [
    pytest.mark.gpu,
    # inductor recommends TF32, which is off on purpose where float32 is checked
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    # nn.LSTM has no common buffer in bfloat16; rows have a note about it
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),
]

SMALL_SIZES: dict[str, Any] = {"seq_length": 7, "input_size": 16, "hidden_size": 24, "mini_batch": 4, "num_layers": 2}
RECURRENT_RUNNERS = [name for name, runner in RUNNERS.items() if runner.family != "resnet"]


@pytest.fixture
def cuda() -> str:
    assert torch.cuda.is_available(), "these tests need an NVIDIA GPU that torch can use"
    return "cuda:0"


@pytest.mark.parametrize("name", RECURRENT_RUNNERS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_runner_computes_the_same_as_the_torch_layer(cuda: str, name: str, precision: str) -> None:
    spec = RecurrentSpec(runners=name, device=cuda, precision=precision, **SMALL_SIZES)
    if RUNNERS[name].needs_cudnn and precision == "bfloat16" and not has_bf16_cudnn(cuda):
        pytest.skip("torch runs no bfloat16 layer with cuDNN on this GPU")
    recurrent.set_torchscript(spec)
    network = recurrent.build(name, spec)
    with network.settings():
        captured = network.capture()
    errors = Control(spec).errors(network, captured)
    assert errors.ok, errors


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"proj_size": 8}, {"batch_first": True}])
@pytest.mark.parametrize("name", ["cudnn", "aten", "jit", "vl_cudnn"])
def test_bidirectional_projected_and_batch_first_layers(cuda: str, name: str, options: dict[str, Any]) -> None:
    spec = RecurrentSpec(runners=name, device=cuda, **SMALL_SIZES | options)
    network = recurrent.build(name, spec)
    with network.settings():
        captured = network.capture()
    assert Control(spec).errors(network, captured).ok


def test_aten_runs_without_cudnn_forward_and_backward(cuda: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    def operators(name: str) -> set[str]:
        network = recurrent.build(name, RecurrentSpec(runners=name, device=cuda, **SMALL_SIZES))
        with network.settings(), profile(activities=[ProfilerActivity.CPU]) as profiler:
            network.capture()()[0].backward(network.cotangent)
        return {event.key for event in profiler.key_averages()}

    assert {"aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"} <= operators("cudnn")
    assert not any("cudnn_rnn" in name for name in operators("aten"))
    assert torch.backends.cudnn.enabled


def test_run_of_rnns_on_the_gpu(cuda: str, tmp_path: Path) -> None:
    """Times are from CUDA events in ms, and memory is that of the GPU."""
    request = RecurrentSpec(runners=of_group("rnns"), device="cuda", replicates=1, min_seconds=0.2, loops=10)
    rows = [item for item in run(request, tmp_path) if isinstance(item, RecurrentRow)]
    assert [(row.model, row.status, row.error) for row in rows] == [(name, "ok", "") for name in of_group("rnns")]
    for row in rows:
        assert row.device_peak_mb
        assert 0.01 < row.forward_ms < 1000
        assert row.output_error < row.tolerance
    by_name = {row.model: row for row in rows}
    assert by_name["cudnn"].latency_ms < by_name["py"].latency_ms, "fused kernels are faster than 100 steps of Python"


def test_run_of_resnets_on_the_gpu(cuda: str, tmp_path: Path) -> None:
    request = RecurrentSpec(groups="cnns", device=cuda, mini_batch=8, replicates=1, min_seconds=0.2, loops=10)
    rows = [item for item in run(request, tmp_path) if isinstance(item, RecurrentRow)]
    assert [(row.model, row.status, row.error) for row in rows] == [(name, "ok", "") for name in of_group("cnns")]
