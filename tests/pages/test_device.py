"""Tests of the device page with AppTest. Runs stay queued, and tests store the results as a worker would."""

import json
import shlex

import pytest

from engine.cli import speed
from engine.report.timings.rates import LATEST
from engine.results import Device, DeviceRow, Machine
from engine.specs import DeviceSpec
from engine.store import Store
from pages.shared.form.command import command
from pages.shared.kinds import form_page
from tests.support.command import parsed
from tests.support.page import benchmark_row, charts, finish, open_page, queue_benchmark, texts, verbatim

PAGE = "device/page.py"
DEVICE_FIELDS = {"device": "cpu", "device_name": "a cpu", "threads": 2}

# The scheduler outlives the process that starts it, so the warning about a running subprocess is expected.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def device_rows() -> list[DeviceRow]:
    """Return the rows of a measurement in which float16 failed."""
    shared = {**DEVICE_FIELDS, "samples": 40, "flags": ("single_process",)}
    matmul = {"operation": "matmul", "dtype": "float32", "size": 512, "gflop_per_s": 123.4, "latency_ms": 2.2}
    copy = {"operation": "copy", "dtype": "float32", "size": 268435456, "gb_per_s": 20.0, "latency_ms": 26.8}
    failed = {"operation": "matmul", "dtype": "float16", "status": "timeout", "error": "RuntimeError: **no**"}
    return [
        DeviceRow(model="matmul float32", rates={"256": 90.0, "512": 123.4}, **matmul, **shared),
        DeviceRow(model="matmul float16", **failed, **DEVICE_FIELDS),
        DeviceRow(model="copy", **copy, **shared),
    ]


@pytest.mark.slow
def test_page_without_measurements_explains_the_first_step() -> None:
    app = open_page(PAGE)
    assert not app.exception
    assert "No measurements yet" in texts(app)
    assert "Measure the device and time models" in texts(app)
    assert not app.button(key="device_go").disabled


@pytest.mark.slow
def test_page_shows_the_probed_machine(store: Store) -> None:
    machine = {"host": "here", "platform": "Linux", "cpu": "x_y", "threads": 2, "memory_gb": 8.0, "date": "2026-11-20"}
    devices = (Device(name="cpu", model="x"), Device(name="cuda:0", model="H200"))
    store.save_machine(Machine.model_validate(machine | {"devices": devices, "caches": {"L2": "1 MiB"}}))
    app = open_page(PAGE)
    assert not app.exception
    table = app.table[0].value
    assert len(table) == 10
    assert dict(zip(table["what"], table["value"], strict=True))["Processor"] == "x\\_y"
    assert app.selectbox(key="device_device").options == ["cpu", "cuda:0"]


@pytest.mark.slow
def test_form_queues_a_run(store: Store) -> None:
    app = open_page(PAGE)
    app.multiselect(key="device_dtypes").set_value(["float32", "tf32"]).run()
    app.number_input(key="device_seconds").set_value(5.0).run()
    assert verbatim(app)[0] == "python -m engine device --dtypes float32,tf32 --seconds 5.0"
    app.button(key="device_go").click().run()
    assert not app.exception
    assert store.runs()[0].spec == DeviceSpec(dtypes=("float32", "tf32"), seconds=5)
    assert "next in the queue" in texts(app)


@pytest.mark.slow
def test_results_show_rates_and_failures(store: Store) -> None:
    run_id = store.enqueue(DeviceSpec())
    finish(store, run_id, device_rows())
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    peaks, results = (table.value for table in app.dataframe)
    assert list(peaks["what"]) == ["matmul float32", "copy"]
    assert list(peaks["rate"]) == ["123 GFLOP/s", "20 GB/s"]
    assert list(results["status"]) == ["ok", "timeout", "ok"]
    assert "1 of 3 rows could not be measured" in texts(app)
    assert "single process" in texts(app)


@pytest.mark.slow
def test_roofline_shows_device_rates_and_timed_models(store: Store) -> None:
    finish(store, store.enqueue(DeviceSpec()), device_rows())
    app = open_page(PAGE)
    assert [link.label for link in app.get("page_link")][-1] == "No timed models yet. Time models"
    rows = [benchmark_row("resnet18", intensity=30.0), benchmark_row("resnet50", intensity=30.0, device_name="b")]
    finish(store, queue_benchmark(store, "resnet*"), rows)
    app = open_page(PAGE)
    assert not app.exception
    (chart,) = charts(app)
    names = [trace.get("name") for trace in chart["data"]]
    assert names == ["resnet", None, None]
    assert chart["alt"] == "Roofline of a cpu, 2 threads, on here: 2 measured rates and 1 timed model"
    assert "may lie above the slope. For training, the point is the forward pass. The points are mode" in texts(app)
    assert f"models of the latest {LATEST} benchmarks." in texts(app)
    assert "No rates of this device" not in texts(app)
    assert "Hollow" not in texts(app)
    headings = json.loads(app.dataframe[0].proto.columns)
    assert [headings[name]["label"] for name in ("what", "at")] == ["Operation", "At size"]
    app.selectbox(key="device_where").set_value("b, 2 threads, on here").run()
    (chart,) = charts(app)
    assert chart["alt"] == "Roofline of b, 2 threads, on here: 0 measured rates and 1 timed model"
    assert "No rates of this device are measured yet" in texts(app)


@pytest.mark.slow
def test_roofline_marks_compiled_models_as_hollow_points(store: Store) -> None:
    rows = [benchmark_row("resnet18", intensity=30.0), benchmark_row("resnet18", intensity=30.0, variant="compile")]
    finish(store, queue_benchmark(store, "resnet18"), rows)
    app = open_page(PAGE)
    assert not app.exception
    (chart,) = charts(app)
    (trace,) = chart["data"]
    assert sorted(symbol.endswith("-open") for symbol in trace["marker"]["symbol"]) == [False, True]
    assert "Hollow points: intensity of eager" in texts(app)


def test_device_runs_open_the_device_form() -> None:
    assert form_page(DeviceSpec) == PAGE


@pytest.mark.parametrize("fields", [{}, {"dtypes": "float64", "seconds": 0.5}, {"device": "cuda:1", "threads": 3}])
def test_command_has_the_same_settings_as_the_run(fields: dict[str, object]) -> None:
    spec = DeviceSpec.model_validate(fields)
    arguments = shlex.split(command(spec))
    assert arguments[:4] == ["python", "-m", "engine", "device"]
    assert parsed(speed.Device, arguments[4:]) == spec
