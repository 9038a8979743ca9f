"""Rates of a device: rates against their samples, rows of the task, and utilisation and roofline by hand."""

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from sqlalchemy import func, select, update

from engine.__main__ import main
from engine.measure import environment, rates
from engine.measure.plan import Plan, Session, Subject, Timed
from engine.report import frames
from engine.report.figures.roofline import roofline, sizes
from engine.report.timings import rates as timings_rates
from engine.results import BenchmarkRow, Device, DeviceRow, Environment, Machine, Progress, Row
from engine.specs import BenchmarkSpec, DeviceSpec, Spec
from engine.specs.benchmark import CONDITIONS
from engine.store import Exit, State, Store, attempts, tables
from engine.store import queue as queueing
from engine.tasks import device as task
from tests.support.page import ENVIRONMENT

BRIEF = Plan(min_samples=3, min_seconds=0.01, warmup_calls=1, warmup_seconds=0.01)


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a copy move a few megabytes: with a server's caches it moves gigabytes and takes seconds."""
    monkeypatch.setattr(environment, "caches", lambda: {"L2": 1_000_000})
    monkeypatch.setattr(rates, "SMALLEST_COPY", 2**20)


@pytest.mark.slow
def test_matmul_counts_2n3_flops_and_reports_the_fastest_size() -> None:
    rate = rates.matmul("cpu", "float32", BRIEF)
    assert rate.by_size[rate.size] == pytest.approx(2 * rate.size**3 / (median(rate.timed.samples_ms) / 1e3))
    assert rate.by_size[rate.size] == max(rate.by_size.values())
    assert list(rate.by_size) == list(rates.SIZES[: len(rate.by_size)])
    for size, per_s in rate.by_size.items():
        assert per_s == pytest.approx(2 * size**3 / (median(rate.session.timed[str(size)].samples_ms) / 1e3))


def test_sizes_that_do_not_fit_in_memory_are_skipped_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.randn

    def small_only(rows: int, *shape: int, **options: Any) -> torch.Tensor:
        if rows > 256:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(rows, *shape, **options)

    monkeypatch.setattr(torch, "randn", small_only)
    monkeypatch.setattr(rates, "LONGEST_MS", float("inf"))
    rate = rates.matmul("cpu", "float32", BRIEF)
    assert list(rate.by_size) == [256]
    assert rate.notes == ("matrices of 512 do not fit in memory",)


def test_sizes_that_take_too_long_are_skipped_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "LONGEST_MS", 0.0)
    rate = rates.matmul("cpu", "float32", BRIEF)
    assert list(rate.by_size) == [256]
    (note,) = rate.notes
    assert note.startswith("matrices above 256 were not tried: one product would take about ")


def test_disturbed_prediction_does_not_skip_larger_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def product_ms(size: int) -> float:
        return 0.16 * (size / 256) ** 3

    def measure(subjects: Sequence[Subject], *_: object, **__: object) -> Session:
        samples = {subject.name: {"call": (product_ms(int(subject.name)),)} for subject in subjects}
        timed = {name: Timed((0,), phases, (1,), 0.0, 1, 0) for name, phases in samples.items()}
        return Session(timed, {}, None, None)

    predictions = iter([15.4, *map(product_ms, (512, 1024, 2048))])  # other processes disturb the first
    monkeypatch.setattr(rates, "_product", lambda *_: lambda: None)
    monkeypatch.setattr(rates, "_quickest", lambda *_: next(predictions))
    monkeypatch.setattr(rates.timing, "measure", measure)
    rate = rates.matmul("cpu", "float32", BRIEF)
    assert list(rate.by_size) == [256, 512, 1024, 2048]
    assert rate.notes == ("matrices above 2048 were not tried: one product would take about 655 ms",)


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "size"), [(2**20, 256 * 2**20), (80_000_000, 320_000_000)])
def test_copy_moves_its_bytes_twice_and_is_larger_than_the_caches(
    cache: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's own caches may be so large that the copy moves gigabytes."""
    monkeypatch.setattr(environment, "caches", lambda: {"L1d": 49152, "L3": cache})
    rate = rates.copy("cpu", BRIEF)
    assert rate.size == size
    assert rate.by_size[rate.size] == pytest.approx(2 * rate.size / (median(rate.timed.samples_ms) / 1e3))


def test_copy_that_does_not_fit_is_out_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**8, total=10**9))
    row = task.measure("copy", "float32", DeviceSpec(), threads=1)
    assert row.status == "out_of_memory"
    assert "100 MB are free" in row.error
    assert row.gb_per_s is None


@pytest.mark.slow
@pytest.mark.usefixtures("small_caches")
def test_task_gives_a_row_per_operation(tmp_path: Path) -> None:
    spec = DeviceSpec(dtypes=("tf32", "float32", "tf32"), seconds=0.05, threads=1)
    events = list(task.run(spec, tmp_path))
    assert isinstance(events[0], Environment)
    assert events[-1] == Progress(done=3, total=3)
    tf32, float32, copy = (event for event in events if isinstance(event, DeviceRow))
    assert (tf32.status, tf32.gflop_per_s) == ("error", None)
    assert "tf32 needs an NVIDIA GPU" in tf32.error
    assert (float32.model, float32.device, float32.threads) == ("matmul float32", "cpu", 1)
    assert float32.size
    assert float32.gflop_per_s == pytest.approx(2e-9 * float32.size**3 / (float32.latency_ms or 0) * 1e3)
    assert float32.gflop_per_s == pytest.approx(max(float32.rates.values()))
    assert float32.contention is not None
    assert {"single_process", "below_floor"} <= set(float32.flags)
    assert (copy.model, copy.status, copy.gflop_per_s) == ("copy", "ok", None)
    assert copy.gb_per_s


def test_unsupported_data_type_gives_an_error_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")

    monkeypatch.setattr(torch, "mm", refuse)
    row = task.measure("matmul", "float16", DeviceSpec(), threads=1)
    assert (row.status, row.dtype) == ("error", "float16")
    assert "not implemented for 'Half'" in row.error


@pytest.mark.slow
@pytest.mark.usefixtures("settings", "small_caches")
def test_command_line_writes_rates_and_reports_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rates.csv"
    assert main(["device", "--dtypes", "tf32", "--seconds", "0.05", "--output", str(out)]) == 1
    assert "matmul tf32 failed (error)" in capsys.readouterr().err
    tf32, copy = csv.DictReader(out.read_text().splitlines())
    assert (tf32["status"], tf32["gflop_per_s"]) == ("error", "")
    assert (copy["status"], float(copy["gb_per_s"]) > 0) == ("ok", True)


def rate(operation: str = "matmul", dtype: str = "float32", **metrics: object) -> DeviceRow:
    defaults = {"device": "cpu", "device_name": "x", "threads": 2, "operation": operation, "dtype": dtype, "size": 1024}
    return DeviceRow.model_validate(defaults | {"model": f"{operation} {dtype}"} | metrics)


def timed(model: str = "resnet18", **metrics: object) -> BenchmarkRow:
    defaults: dict[str, object] = {
        **{"library": "timm", "model": model, "family": "resnet", "mode": "inference", "variant": "eager"},
        **{"device": "cpu", "device_name": "x", "threads": 2, "batch_size_requested": "4", "batch_size": 4},
        **{"precision": "float32", "dtype": "float32", "gflops": 2.0, "latency_ms": 100.0, "intensity": 20.0},
    }
    return BenchmarkRow.model_validate(defaults | metrics)


def finish(store: Store, spec: Spec, *rows: Row, **changes: str) -> int:
    """Store a finished run with these rows; `changes` are fields of its environment. Return the ID of the run."""
    run_id = store.enqueue(spec)
    attempt = queueing.claim(store.database, "here", run_id)
    assert attempt
    attempts.begin(store.database, attempt)
    attempts.record(store.database, attempt, [ENVIRONMENT.model_copy(update=changes), *rows])
    attempts.finish(store.database, attempt, State.FINISHED)
    attempts.close(store.database, attempt, Exit(code=0), None, "")
    return run_id


def store_old_device_names(store: Store) -> None:
    """Replace `cuda:0` by `cuda` in everything that runs have stored, as earlier versions wrote it."""
    with store.database.write() as connection:
        for column in (tables.runs.c.spec, tables.runs.c.environment, tables.rows.c.payload):
            connection.execute(update(column.table).values({column: func.replace(column, '"cuda:0"', '"cuda"')}))
        stored = connection.scalars(select(tables.rows.c.payload)).all()
    assert stored
    assert all('"device":"cuda"' in payload for payload in stored)


def test_latest_rates_are_returned_despite_later_failures(store: Store) -> None:
    assert timings_rates.rates(store).empty
    finish(store, DeviceSpec(), rate(gflop_per_s=100.0), rate("copy", gb_per_s=20.0), rate(gflop_per_s=60.0, threads=1))
    finish(store, DeviceSpec(), rate(gflop_per_s=110.0), rate("copy", status="error", error="no"), host="there")
    second = finish(store, DeviceSpec(), rate(gflop_per_s=120.0), rate("copy", status="error", error="no"))
    known = timings_rates.rates(store)
    host_rates = known[known["host"] == "here"]
    found = {(row.operation, row.threads): (row.gflop_per_s, row.gb_per_s, row.run) for row in host_rates.itertuples()}
    assert found["matmul", 2][::2] == (120.0, second)
    assert found["matmul", 1][0] == 60.0
    assert found["copy", 2][1] == 20.0
    assert len(found) == 3
    assert set(known["host"]) == {"here", "there"}
    assert str(host_rates["date"].iloc[0]) == "2026-11-20 00:00:00+00:00"


def test_undisturbed_rate_is_preferred_to_a_later_disturbed_one(store: Store) -> None:
    finish(store, DeviceSpec(), rate(gflop_per_s=5.0, flags=("contended",)))
    finish(store, DeviceSpec(), rate(gflop_per_s=6.0, flags=("single_process", "contended")))
    assert timings_rates.rates(store)["gflop_per_s"].to_list() == [6.0]
    quiet = finish(store, DeviceSpec(), rate(gflop_per_s=100.0, flags=("single_process",)))
    finish(store, DeviceSpec(), rate(gflop_per_s=7.0, flags=("throttled",)), rate(dtype="bfloat16", gflop_per_s=9.0))
    found = timings_rates.rates(store).set_index("dtype")
    assert found.loc["float32", ["gflop_per_s", "run"]].to_list() == [100.0, quiet]
    assert found.loc["bfloat16", "gflop_per_s"] == 9.0


def test_utilisation_is_flops_per_time_divided_by_the_measured_rate(store: Store) -> None:
    rows = (rate(gflop_per_s=100.0), rate(dtype="bfloat16", gflop_per_s=400.0), rate("copy", gb_per_s=20.0))
    finish(store, DeviceSpec(), *rows)
    known = timings_rates.rates(store)
    lines = [
        timed(),  # 4 samples x 2 GFLOPs in 0.1 s are 80 GFLOP/s
        timed(autocast_dtype="bfloat16", precision="amp"),
        timed(mode="training", forward_ms=40.0, latency_ms=120.0),  # 8 GFLOPs in 0.04 s
        timed(threads=1),
        timed(dtype="float64"),
        timed(tf32=True),
        timed(gflops=None),
        timed(latency_ms=None),
        timed(device_name="y"),
    ]
    assert timings_rates.utilisation(lines, known, "here") == [0.8, 0.2, 2.0, None, None, None, None, None, None]
    assert timings_rates.utilisation([timed()], known, "elsewhere") == [None]


def test_utilisation_uses_the_undisturbed_rate_of_the_same_host(store: Store) -> None:
    finish(store, DeviceSpec(), rate(gflop_per_s=100.0))
    finish(store, DeviceSpec(), rate(gflop_per_s=20.0, flags=("contended",)))
    finish(store, DeviceSpec(), rate(gflop_per_s=40.0), host="another of the same name")
    known = timings_rates.rates(store)
    assert timings_rates.utilisation([timed()], known, "here") == [0.8]
    assert timings_rates.utilisation([timed()], known, "another of the same name") == [2.0]
    assert timings_rates.utilisation([timed(host="another of the same name")], known, "here") == [2.0], "its host"


def test_rate_of_a_gpu_holds_for_every_gpu_number_and_thread_count(store: Store) -> None:
    gpu = {"device": "cuda:0", "device_name": "H", "threads": None}
    finish(store, DeviceSpec(device="cuda"), rate(dtype="tf32", gflop_per_s=160.0, **gpu))
    row = timed(device="cuda:1", device_name="H", threads=16, tf32=True)
    assert timings_rates.utilisation([row], timings_rates.rates(store), "here") == [0.5]


def test_cuda_and_cuda_0_are_the_same_device_with_one_roof(store: Store) -> None:
    """Earlier versions stored `cuda`, today's stores `cuda:0`: rates and timings of both belong to one device."""
    gpu = {"device": "cuda:0", "device_name": "H", "threads": None}
    finish(store, DeviceSpec(device="cuda"), rate(gflop_per_s=100.0, **gpu), rate("copy", gb_per_s=20.0, **gpu))
    finish(store, BenchmarkSpec(models=("resnet18",), device="cuda"), timed(**gpu))
    store_old_device_names(store)
    finish(store, BenchmarkSpec(models=("resnet18",), device="cuda:0"), timed("resnet50", **gpu))
    finish(store, DeviceSpec(device="cuda:0"), rate(dtype="bfloat16", gflop_per_s=400.0, **gpu))
    rates_, points = timings_rates.rates(store), timings_rates.models(store)
    assert set(rates_["where"]) == set(points["where"]) == {"cuda:0 H, on here"}
    assert list(points["model"]) == ["resnet50", "resnet18"]
    figure = roofline(rates_, points, styles={})
    assert sum(trace.mode == "lines" for trace in figure.data) == 3, "the slope and two roofs"


def test_roofline_points_are_the_latest_timings_with_counted_flops(store: Store) -> None:
    spec = BenchmarkSpec(models=("resnet18",))
    finish(store, spec, timed(), timed("old", latency_ms=50.0), timed("uncounted", gflops=None, intensity=None))
    last = finish(store, spec, timed(latency_ms=200.0), timed("failed", status="error", error="no"))
    points = timings_rates.models(store).set_index("model")
    assert list(points.index) == ["resnet18", "old"]
    assert points.loc["resnet18", ["gflop_per_s", "intensity", "run"]].to_list() == [40.0, 20.0, last]
    assert points.loc["old", "gflop_per_s"] == 160.0
    assert points.loc["old", "where"] == "x, 2 threads, on here"
    assert timings_rates.where("here", "cpu", "x", 1) == "x, 1 thread, on here"


def test_towers_and_cold_caches_are_separate_roofline_points(store: Store) -> None:
    spec = BenchmarkSpec(models=("resnet18",))
    finish(store, spec, timed())
    finish(store, spec, timed(tower="image", latency_ms=50.0), timed(cache="cold", latency_ms=400.0))
    points = timings_rates.models(store)
    assert list(zip(points["tower"], points["cache"], points["latency_ms"], strict=True)) == [
        ("image", "hot", 50.0),
        ("whole", "cold", 400.0),
        ("whole", "hot", 100.0),
    ]
    (trace,) = roofline(timings_rates.rates(store), points, styles={}).data
    assert ["the image tower alone" in text for text in trace.text] == [True, False, False]
    assert ["cold cache" in text for text in trace.text] == [False, True, False]


@pytest.mark.parametrize(
    ("change", "words"),
    [({name: True}, name.replace("cudnn_", "cuDNN ")) for name in CONDITIONS if name != "cache"]
    + [({"context_length": 16}, "16 tokens")],
)
def test_roofline_points_in_other_conditions_name_them(change: dict[str, object], words: str, store: Store) -> None:
    finish(store, BenchmarkSpec(models=("resnet18",)), timed(), timed(**change))
    (trace,) = roofline(timings_rates.rates(store), timings_rates.models(store), styles={}).data
    assert [f"<br>{words}<br>" in text for text in trace.text] == [False, True]
    assert all("batch 4, float32<br>" in text for text in trace.text), "without an image size, as for a text tower"


def test_roofline_point_of_a_training_names_the_forward_time(store: Store) -> None:
    row = timed(mode="training", forward_ms=40.0, latency_ms=120.0, optimizer="sgd", flags=("unstable", "drifting"))
    finish(store, BenchmarkSpec(models=("resnet18",)), row)
    points = timings_rates.models(store)
    assert points.loc[0, ["gflop_per_s", "forward_ms", "latency_ms"]].to_list() == [200.0, 40.0, 120.0], "8 GFLOPs"
    figure = roofline(timings_rates.rates(store), points, styles={})
    assert figure.data[0].text[0] == (
        "<b>timm:resnet18</b><br>eager, training, its forward pass, batch 4, float32<br>optimizer sgd<br>"
        "200 GFLOP/s at 20 FLOP/B, 40 ms<br>unstable, drifting<br>2026-11-20, run 1"
    )
    assert [label.text for label in figure.layout.annotations] == ["resnet18, training"]


def test_compiled_models_are_hollow_points_with_the_eager_intensity(store: Store) -> None:
    hollow = ("compile", "compile:max-autotune+bfloat16", "trace+channels_last")
    filled = ("eager", "eager+channels_last", "export", "cudagraphs")
    finish(store, BenchmarkSpec(models=("resnet18",)), *(timed(variant=label) for label in hollow + filled))
    points = timings_rates.models(store)
    (trace,) = roofline(timings_rates.rates(store), points, styles={}).data
    drawn = dict(zip(points["variant"], zip(trace.marker.symbol, trace.text, strict=True), strict=True))
    assert set(drawn) == {*hollow, *filled}
    for label, (symbol, text) in drawn.items():
        assert symbol.endswith("-open") == (label in hollow)
        assert ("intensity of eager" in text) == (label in hollow)
    exported = points.set_index("variant")["intensity_of"]
    assert (exported[list(hollow)] == "eager").all()
    assert (exported[list(filled)] == "itself").all()


def test_slope_meets_each_roof_where_bandwidth_suffices(store: Store) -> None:
    rows = (rate(gflop_per_s=100.0), rate(dtype="bfloat16", gflop_per_s=400.0), rate("copy", gb_per_s=20.0))
    finish(store, DeviceSpec(), *rows, rate(dtype="float64", gflop_per_s=90.0))
    finish(store, BenchmarkSpec(models=("resnet18",)), timed(family="", image_size="224"))
    figure = roofline(timings_rates.rates(store), timings_rates.models(store), styles={})
    point, slope, high, low, _ = figure.data
    assert (point.name, point.x[0], point.y[0]) == ("no family", 20.0, 80.0)
    assert point.text[0] == (
        "<b>timm:resnet18</b><br>eager, inference, batch 4, 224 px, float32<br>"
        "80 GFLOP/s at 20 FLOP/B, 100 ms<br>2026-11-20, run 2"
    )
    assert slope.hovertemplate == "copy: 20 GB/s<extra></extra>"
    assert high.hovertemplate == ("matmul bfloat16: 400 GFLOP/s at 1024 × 1024<br>2026-11-20, run 1<extra></extra>")
    assert (slope.x[-1], slope.y[-1]) == pytest.approx((20.0, 400.0))  # 400 GFLOP/s at 20 GB/s: 20 FLOPs per byte
    assert (high.x[0], high.y[0]) == pytest.approx((20.0, 400.0))
    assert (low.x[0], low.y[0]) == pytest.approx((5.0, 100.0))
    assert np.allclose(slope.y / slope.x, 20.0)
    shifts = {annotation.text: annotation.yshift for annotation in figure.layout.annotations}
    assert {"copy 20 GB/s", "resnet18"} <= shifts.keys()
    roofs = {"bfloat16 400 GFLOP/s": 9, "float32 100 GFLOP/s": 9, "float64 90 GFLOP/s": -9}
    assert shifts | roofs == shifts, "the lowest roof nearly touches the next one, so its label is below it"


@pytest.mark.parametrize("operations", [[], ["matmul"], ["copy"]])
def test_roofline_is_drawn_with_any_part_of_the_rates(store: Store, operations: list[str]) -> None:
    metrics = {"matmul": {"gflop_per_s": 100.0}, "copy": {"gb_per_s": 20.0}}
    finish(store, DeviceSpec(), *(rate(operation, **metrics[operation]) for operation in operations))
    figure = roofline(timings_rates.rates(store), timings_rates.models(store), styles={})
    assert len(figure.data) == operations.count("matmul")


def test_rates_are_shown_with_their_units() -> None:
    rows = [
        rate(gflop_per_s=1234.0, flags=("single_process", "drifting"), rates={"512": 1000.0, "1024": 1234.0}),
        rate("copy", gb_per_s=23.45, size=268435456, rates={"268435456": 23.45}),
        rate(dtype="tf32", status="error", error="none", size=None),
    ]
    shown = timings_rates.readable(frames.device(rows))
    assert list(shown["rate"]) == ["1.23 TFLOP/s", "23.4 GB/s", "–"]
    assert list(shown["at"]) == ["1,024 × 1,024", "268 MB", "–"]
    assert list(shown["what"]) == ["matmul float32", "copy", "matmul tf32"]
    assert shown.loc[0, "flags"] == "single process, drifting"
    figure = sizes(rows)
    (line,) = figure.data
    assert (line.x, line.y) == ((512, 1024), (1000.0, 1234.0))
    assert (line.text, line.textposition) == (("", "float32 1.23 TFLOP/s"), ("top right", "top left"))
    assert line.hovertemplate == "matmul float32, %{x} × %{x}<br>%{y:,.3~r} GFLOP/s<extra></extra>"
    assert figure.layout.xaxis.tickvals == (512, 1024)
    _, slower = sizes([rows[0], rate(dtype="bfloat16", gflop_per_s=500.0, rates={"1024": 500.0})]).data
    assert slower.textposition == ("bottom right",), "below the faster line"


def test_machine_facts_have_ten_lines() -> None:
    known: dict[str, Any] = {"host": "h", "platform": "Linux", "cpu": "x", "threads": 4, "memory_gb": 16.0, "date": ""}
    devices = (Device(name="cpu", model="x"), Device(name="cuda:0", model="H200", memory_gb=141.0, driver="570.1"))
    caches = {"L1d": "48 KiB", "L3": "32 MiB"}
    lines = frames.machine_facts(
        Machine(**known, devices=devices, caches=caches, cores=2, versions={"torch": "2", "timm": "1"})
    )
    assert len(lines) == 10
    assert lines["Accelerators"] == "cuda:0 H200, 141 GB"
    assert (lines["Driver"], lines["torch"], lines["Libraries"]) == ("570.1", "2", "timm 1")
    assert lines["Caches"] == "L1d 48 KiB, L3 32 MiB"
    assert lines["Cores"] == "2 physical; 4 threads may be used"
    bare = frames.machine_facts(Machine(**known | {"threads": 1}, devices=devices[:1]))
    assert bare["Cores"] == "unknown physical; 1 thread may be used"
    assert (bare["Accelerators"], bare["Caches"]) == ("none that torch can use", "unknown")
