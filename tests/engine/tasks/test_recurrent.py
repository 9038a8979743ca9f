"""The recurrent benchmark task: rows against hand calculations, failed runners, and worker processes."""

import csv
import statistics
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.measure.plan import Timed
from engine.models import recurrent
from engine.models.recurrent import Network
from engine.replicates.messages import Measured
from engine.replicates.recurrent import rows
from engine.replicates.recurrent.work import UNMARKED, Job, marked, phases_of, work
from engine.results import Artifact, Environment, Event, Progress, RecurrentRow
from engine.specs import RecurrentSpec
from engine.tasks.recurrent import run

COMMON = {"device": "cpu", "threads": 1}
SMALL: dict[str, Any] = {"seq_length": 5, "input_size": 3, "hidden_size": 4, "mini_batch": 2, "threads": 1}
SHORT: dict[str, Any] = SMALL | {"loops": 3, "warmup": 1, "min_seconds": 0.01}


def spec(runners: str, **fields: Any) -> RecurrentSpec:
    return RecurrentSpec(**SHORT | {"runners": runners} | fields)


def measured(name: str, forward: list[float], backward: list[float] | None, **fields: Any) -> Measured:
    phases = {"forward": tuple(forward)} | ({} if backward is None else {"backward": tuple(backward)})
    timed = Timed(rounds=tuple(range(len(forward))), phases=phases, calls=(1,) * len(forward))
    return Measured(label=name, timed=timed, **fields)


def test_row_metrics_equal_hand_calculations() -> None:
    first = measured("py", [1.0, 2.0, 3.0], [4.0, 4.0, 4.0], first_call_ms=9.0)
    second = measured("py", [2.0, 2.0, 8.0], [5.0, 5.0, 6.0], first_call_ms=7.0)
    (found,) = rows.rows(spec("py"), COMMON, [{"py": first}, {"py": second}])
    assert (found.library, found.model, found.family, found.network) == ("torch", "py", "lstm", "lstm")
    assert (found.forward_ms, found.backward_ms) == (2.0, 4.5)
    assert (found.forward_mean_ms, found.backward_mean_ms) == (3.0, pytest.approx(28 / 6))
    assert found.forward_std_ms == pytest.approx(statistics.stdev([1, 2, 3, 2, 2, 8]))
    assert (found.forward_process_medians_ms, found.backward_process_medians_ms) == ((2.0, 2.0), (4.0, 5.0))
    assert (found.forward_spread, found.backward_spread) == (0, pytest.approx(1 / 4.5))
    assert (found.latency_ms, found.samples, found.first_call_ms) == (6.5, 6, 9.0)  # of medians 6 and 7
    assert found.steps_per_s == pytest.approx(5 / 6.5e-3)
    assert found.gflops_per_step == pytest.approx(2 * 4 * 4 * (3 + 4) * 2 / 1e9)
    assert found.gflops == pytest.approx(5 * 2 * 4 * 4 * (3 + 4) * 2 / 1e9)
    assert found.flags == ("unstable", "below_floor")
    assert found.fuser == found.executor == ""


def test_time_steps_per_second_are_those_of_queued_calls() -> None:
    queued = Timed(rounds=(0, 1), phases={"back_to_back": (2.0, 3.0)}, calls=(1, 1))
    (found,) = rows.rows(spec("py"), COMMON, [{"py": measured("py", [1.0] * 3, [4.0] * 3, back_to_back=queued)}])
    assert (found.latency_ms, found.back_to_back_ms) == (5.0, 2.5)
    assert found.steps_per_s == pytest.approx(5 / 2.5e-3)


def test_forward_only_runner_has_no_backward_metrics() -> None:
    (found,) = rows.rows(spec("aten_layernorm"), COMMON, [{"aten_layernorm": measured("aten_layernorm", [2.0], None)}])
    assert (found.forward_ms, found.latency_ms, found.forward_mean_ms) == (2.0, 2.0, 2.0)
    assert (found.backward_ms, found.backward_mean_ms, found.forward_std_ms) == (None, None, None)
    assert found.steps_per_s is None, "time steps per second need both passes"


def test_forward_only_runner_has_no_speedup_over_one_with_backward() -> None:
    found = {"aten": measured("aten", [1.0] * 70, [2.0] * 70), "aten_layernorm": measured("x", [2.0] * 70, None)}
    aten, forward = rows.rows(spec("aten,aten_layernorm", baseline="aten"), COMMON, [found] * 3)
    assert (forward.latency_ms, forward.baseline, forward.speedup, forward.verdict) == (2.0, "", None, None)
    assert "not compared with aten: only one of them was timed backward too" in forward.notes
    assert aten.notes == ()


def test_speedup_refers_to_the_first_timed_runner_of_the_network() -> None:
    failed = Measured(label="cudnn", status="error", error="Refused: no")
    found = {
        name: measured(name, [ms] * 70, [ms] * 70) for name, ms in (("aten", 1.0), ("jit", 2.0), ("jit_dropout", 4.0))
    }
    request = spec("cudnn,aten,jit,jit_dropout")
    cudnn, aten, jit, dropout = rows.rows(request, COMMON, [{"cudnn": failed, **found}] * 3)
    assert (cudnn.status, cudnn.error, cudnn.latency_ms, cudnn.speedup) == ("error", "Refused: no", None, None)
    assert (aten.baseline, aten.speedup) == ("", None)
    assert (jit.baseline, jit.speedup, jit.verdict) == ("aten", 0.5, "slower")
    assert (dropout.baseline, dropout.speedup) == ("", None)
    assert (jit.fuser, jit.executor) == ("te", "default")
    chosen = rows.rows(request.model_copy(update={"baseline": "jit"}), COMMON, [{"cudnn": failed, **found}] * 3)
    assert [(row.baseline, row.speedup, row.verdict) for row in chosen] == [
        ("jit", None, None),
        ("jit", 2.0, "faster"),
        ("", None, None),
        ("jit", 0.5, "not comparable"),
    ]
    assert chosen[3].differs_in == ("network",)


def test_resnet_has_counted_flops_and_no_time_steps() -> None:
    request = spec("resnet18", mini_batch=3, image_size=64)
    (found,) = rows.rows(request, COMMON, [{"resnet18": measured("resnet18", [4.0], [6.0])}])
    assert found.library == "torchvision"
    assert (found.seq_length, found.hidden_size, found.image_size) == (None, None, "64")
    # 1.81 GMACs at 224 are published (torchvision); all but the head, 0.5 MMACs, goes with the area
    published, head = 1.814e9, 512 * 1000
    assert found.gflops == pytest.approx(3 * 2 * ((published - head) * (64 / 224) ** 2 + head) / 1e9, rel=0.01)
    assert (found.steps_per_s, found.gflops_per_step) == (100.0, found.gflops)


# the work of one process


def reports(names: str, build: Callable[[str, RecurrentSpec], Network] = recurrent.build) -> dict[str, Measured]:
    found = (item.measured for item in work(Job(spec=spec(names), parent=1), build) if item.measured)
    return {item.label: item for item in found}


@pytest.mark.slow
def test_runner_is_checked_and_timed() -> None:
    found = reports("py")["py"]
    assert found.status == "ok", found.error
    assert 0 <= found.row["output_error"] < 1e-6
    assert 0 <= found.row["gradient_error"] < 1e-6
    assert set(found.timed.phases) == {"forward", "backward"}
    assert all(len(ms) >= 3 and min(ms) > 0 for ms in found.timed.phases.values())


def test_runner_with_wrong_outputs_is_not_timed_and_has_an_error() -> None:
    def wrong(name: str, request: RecurrentSpec) -> Network:
        network = recurrent.build(name, request)

        def capture() -> Callable[[], tuple[Tensor, ...]]:
            run = network.capture()
            return lambda: (run()[0] * 1.01, *run()[1:])

        return replace(network, capture=capture)

    found = reports("py", wrong)["py"]
    assert found.status == "error"
    assert found.error.startswith("not timed: its outputs differ from the control in float64 by 0.0")
    assert found.error.endswith("and 0.001 is allowed")
    assert found.row["output_error"] > 1e-3
    assert found.timed.phases == {}


def test_gradients_do_not_accumulate_over_passes() -> None:
    network = recurrent.build("py", spec("py"))
    with network.settings():
        phases = phases_of(network, network.capture())
        gradients = []
        for _ in range(3):
            phases["forward"]()
            phases["backward"]()
            gradients.append(
                {name: weight.grad.clone() for name, weight in network.parameters.items() if weight.grad is not None}
            )
            phases["clear"]()
            assert all(parameter.grad is None for parameter in network.parameters.values())
    assert set(gradients[0]) == set(network.parameters)
    for later in gradients[1:]:
        assert all(torch.equal(later[name], gradients[0][name]) for name in later)


@pytest.mark.slow
def test_other_runners_are_timed_when_one_raises() -> None:
    def failing(name: str, request: RecurrentSpec) -> Network:
        if name == "jit":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return recurrent.build(name, request)

    found = reports("jit,py", failing)
    assert (found["jit"].status, found["py"].status) == ("out_of_memory", "ok")


# the task with real processes


def events(tmp_path: Path, runners: str, **fields: Any) -> list[Event]:
    def without_progress(all_events: Generator[Event] | Any) -> list[Event]:
        return [item for item in all_events if not isinstance(item, Progress)]

    return without_progress(run(spec(runners, **fields), tmp_path))


@pytest.mark.slow
@pytest.mark.soak
def test_sweep_in_worker_processes_gives_rows_and_files(tmp_path: Path) -> None:
    environment, *found = events(tmp_path, "cudnn,aten,py", replicates=1, sweep="hidden_size", sweep_values="4,6")
    assert isinstance(environment, Environment)
    sweep_rows = [item for item in found if isinstance(item, RecurrentRow)]
    assert [(item.model, item.hidden_size, item.status) for item in sweep_rows] == [
        (name, size, "error" if name == "cudnn" else "ok") for size in (4, 6) for name in ("cudnn", "aten", "py")
    ]
    assert "needs an NVIDIA GPU" in sweep_rows[0].error
    files = [item.name for item in found if isinstance(item, Artifact)]
    assert files == ["samples/lstm__hidden_size__4.csv", "samples/lstm__hidden_size__6.csv"]
    for row in (item for item in sweep_rows if item.status == "ok"):
        check_against_samples(row, tmp_path)
        assert row.processes == len(row.process_medians_ms) == 1
        assert row.baseline == ("" if row.model == "aten" else "aten")
        assert "below_floor" in row.flags


def check_against_samples(row: RecurrentRow, folder: Path) -> None:
    """Check the metrics of a row against those computed from its file of samples."""
    with (folder / row.samples_file).open(newline="") as file:
        lines: list[Mapping[str, str]] = [line for line in csv.DictReader(file) if line["runner"] == row.model]
    forward, backward = (np.array([float(line[f"{phase}_ms"]) for line in lines]) for phase in ("forward", "backward"))
    assert len(lines) == row.samples
    processes = np.array([line["process"] for line in lines])

    def median_of_processes(samples: "np.ndarray[Any, Any]") -> float:
        return float(np.median([np.median(samples[processes == process]) for process in sorted(set(processes))]))

    assert median_of_processes(forward + backward) == pytest.approx(row.latency_ms, rel=1e-12)
    assert [float(np.mean(times)) for times in (forward, backward)] == pytest.approx(
        [row.forward_mean_ms, row.backward_mean_ms], rel=1e-12
    )
    assert [median_of_processes(times) for times in (forward, backward)] == [row.forward_ms, row.backward_ms]


@pytest.mark.slow
def test_compiled_runners_pass_their_check_and_have_compile_times(tmp_path: Path) -> None:
    """Two processes load PyTorch's compiler, and a C++ compiler builds the generated code: 20 s.

    A row has no error only if its runner passed the check.
    """
    found = events(tmp_path, "jit,compile_cell,compile_loop", replicates=2, seq_length=2)
    script, cell, loop = (item for item in found if isinstance(item, RecurrentRow))
    for row in (script, cell, loop):
        assert row.status == "ok", row.error
        assert None not in (row.compile_cold_ms, row.compile_warm_ms, row.first_call_ms)
        assert row.compile_cold_ms > row.first_call_ms > row.forward_ms
    check_against_samples(script, tmp_path)
    assert script.processes == len(script.process_medians_ms) == 2
    assert script.unique_graphs is None
    assert cell.unique_graphs == 2  # the initial state has no gradient, the states after it have
    assert loop.unique_graphs == 1
    for row in (cell, loop):
        assert row.speedup is not None
        assert row.baseline == "jit"


@pytest.mark.slow
def test_time_limit_gives_every_runner_a_timeout_row(tmp_path: Path) -> None:
    _, *found = events(tmp_path, "aten,py", time_limit=0.2)
    assert [(item.model, item.status) for item in found if isinstance(item, RecurrentRow)] == [
        ("aten", "timeout"),
        ("py", "timeout"),
    ]


def test_passes_are_marked_in_a_trace_and_only_while_profiling() -> None:
    network = recurrent.build("py", spec("py").comparisons[0])
    with network.settings():
        phases = phases_of(network, network.capture())
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for phase in phases.values():
                phase()
        marks = [event.name for event in profile.events() if event.name.startswith("## ")]
        assert marks == ["## forward ##", "## backward ##"]
        inside = next(event for event in profile.events() if event.name == "## forward ##")
        assert any(child.name.startswith("aten::") for child in inside.cpu_children)
    assert marked("forward") is UNMARKED
