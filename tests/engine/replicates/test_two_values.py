"""Latency and back-to-back time of an asynchronous device, from the timing to rows, files and output lines."""

import csv
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from engine.cli.output import print_progress
from engine.measure.plan import Plan
from engine.replicates import side_by_side, summary
from engine.replicates.benchmark import rows
from engine.replicates.benchmark.job import Job
from engine.replicates.benchmark.rows import Outcome
from engine.replicates.messages import Measured
from engine.replicates.ready import Ready
from engine.report import frames
from engine.report.export import timm_dynamo
from engine.results import BenchmarkRow
from engine.specs import BenchmarkSpec
from tests.support.timing import Device, DeviceEvent


def spec(device: str) -> BenchmarkSpec:
    request = {"models": "timm:toy", "batch_size": 2, "variants": "eager,trace", "replicates": 1}
    return BenchmarkSpec.model_validate(request | {"device": device})


def measure_in_process(device: str, *, fails_queued: bool = False) -> dict[str, Measured]:
    """Return what one process measures for calls of 6 ms of launch and 10 ms of device time."""
    timeline = Device(launch_s=0.006)

    def prepare(label: str) -> Ready:
        call = timeline.launch(0.010)
        return Ready(label, {"forward": call}, nullcontext, Measured(label=label, row={"dtype": "float32"}))

    def fail() -> DeviceEvent:
        raise RuntimeError("the queue is full")

    request = spec(device)
    job = Job(spec=request, model="timm:toy", mode="inference", batch_size=2, parent=1)
    stopwatch = replace(timeline.stopwatch(), event=fail) if fails_queued else timeline.stopwatch()
    reports = side_by_side.measure(job, stopwatch, Plan(min_seconds=0.2), prepare)
    return {item.measured.label: item.measured for item in reports if item.measured}


def rows_of(device: str, measured: dict[str, Measured]) -> list[BenchmarkRow]:
    common = {"library": "timm", "model": "toy", "device": device, "batch_size_requested": "2"}
    return rows.rows(spec(device), common, Outcome("inference", 2, (measured,)))


@pytest.fixture(scope="module")
def measured() -> dict[str, Measured]:
    return measure_in_process("cuda")


@pytest.mark.slow
def test_row_of_an_accelerator_has_latency_and_back_to_back_time(measured: dict[str, Measured]) -> None:
    eager, trace = rows_of("cuda", measured)
    assert (eager.latency_ms, eager.back_to_back_ms) == pytest.approx((16.0, 10.0))
    assert eager.samples_per_s == pytest.approx(2 / 0.010), "throughput is that of back-to-back calls"
    assert trace.speedup == pytest.approx(1)
    assert (eager.first_call_after, trace.first_call_after) == ((), ("eager",))
    line = frames.benchmark([eager]).iloc[0]
    assert (line["latency_ms"], line["back_to_back_ms"]) == pytest.approx((16.0, 10.0))
    timm_row = timm_dynamo.timm([eager]).iloc[0]
    assert (timm_row["infer_step_time"], timm_row["infer_samples_per_sec"]) == (16.0, 125.0), (
        "timm synchronizes every step"
    )


def test_row_of_a_cpu_has_only_latency() -> None:
    (eager, _) = rows_of("cpu", measure_in_process("cpu"))
    assert eager.latency_ms == pytest.approx(16.0)
    assert eager.back_to_back_ms is None
    assert eager.samples_per_s == pytest.approx(2 / 0.016)


def test_output_lines_name_latency_and_back_to_back_time(
    measured: dict[str, Measured], capsys: pytest.CaptureFixture[str]
) -> None:
    for row in rows_of("cuda", measured):
        print_progress(row)
    lines = capsys.readouterr().err.splitlines()
    assert all("latency 16 ms, back to back 10 ms, 200 samples/s" in line for line in lines)
    assert "1 times as fast as eager in latency (" in lines[1]


def test_samples_of_latency_and_back_to_back_time_are_written(measured: dict[str, Measured], tmp_path: Path) -> None:
    file, columns = "samples/timm__toy__2.csv", {"constants": {"mode": "inference"}, "label": "variant"}
    files = list(summary.write_samples(tmp_path, file, [measured], set(), **columns, phases=["forward"]))
    assert [artifact.name for artifact in files] == [file, "samples/timm__toy__2__back_to_back.csv"]
    with (tmp_path / files[1].name).open() as file:
        lines = list(csv.DictReader(file))
    assert {line["variant"] for line in lines} == {"eager", "trace"}
    assert [float(line["back_to_back_ms"]) for line in lines] == pytest.approx([10.0] * len(lines))
    sampled_ms = sum(int(line["calls"]) * float(line["back_to_back_ms"]) for line in lines)
    assert sampled_ms >= 2 * 200, "back-to-back samples cover at least 0.2 s per variant, as those of latency do"
    cpu_files = summary.write_samples(
        tmp_path, "a.csv", [measure_in_process("cpu")], set(), **columns, phases=["forward"]
    )
    assert [artifact.name for artifact in cpu_files] == ["a.csv"]


def test_back_to_back_failure_is_a_note_and_keeps_the_latency() -> None:
    eager, _ = rows_of("cuda", measure_in_process("cuda", fails_queued=True))
    assert eager.latency_ms == pytest.approx(16.0)
    assert eager.back_to_back_ms is None
    assert "not timed back to back: RuntimeError: the queue is full" in eager.notes
