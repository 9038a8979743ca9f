"""Tests of the Vision page with AppTest. Runs stay queued, and tests store the results as a worker would."""

import json
import os
import shlex

import pytest
from streamlit.testing.v1 import AppTest

from engine.cli import speed
from engine.results import BenchmarkRow, Device, DeviceRow, Machine, Parts, SlowOperator, trace_name
from engine.settings import Settings
from engine.specs import BenchmarkSpec, DeviceSpec
from engine.store import Run, Store
from engine.store.files import RunFiles
from pages.shared.form.command import command
from pages.shared.runs import launch
from tests.support.command import parsed
from tests.support.page import (
    ENVIRONMENT,
    benchmark_row,
    finish,
    followed,
    further,
    open_page,
    queue_benchmark,
    texts,
    ticked,
    unfold,
    verbatim,
    write_samples,
)

PAGE = "vision/page.py"

# The scheduler outlives the process that starts it, so the warning about a running subprocess is expected.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def open_run(store: Store, *rows: BenchmarkRow, **fields: object) -> AppTest:
    """Store a finished run with these rows, and open its page."""
    run_id = queue_benchmark(store, "resnet18", **fields)
    finish(store, run_id, list(rows))
    return open_page(PAGE, run=str(run_id))


def plain_text(app: AppTest) -> str:
    return texts(app).replace("\\", "")


@pytest.mark.slow
def test_empty_form_asks_for_models_and_disables_its_button() -> None:
    app = open_page(PAGE)
    assert not app.exception
    assert "Choose models" in texts(app)
    assert app.button(key="benchmark_go").disabled
    assert ticked(app) == ["3 processes"]


@pytest.mark.slow
def test_contended_runs_do_not_change_the_time_estimate(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def estimate(seconds: float, **figures: object) -> str:
        finish(store, queue_benchmark(store, "resnet18", threads=1), [benchmark_row("resnet18", **figures)])
        seconds_by_run[store.runs()[0].id] = seconds
        return next(
            text for text in texts(open_page(PAGE, benchmark_models="resnet50")).splitlines() if "Times" in text
        )

    seconds_by_run: dict[int, float] = {}
    monkeypatch.setattr(Run, "seconds", lambda run: seconds_by_run.get(run.id))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    estimate_before = estimate(20.0)
    assert estimate(2000.0, flags=("contended",)) == estimate_before
    assert estimate(2000.0) != estimate_before


@pytest.mark.slow
def test_time_estimate_mentions_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (9.8, 3.0, 1.0))
    assert "(longer now: the load is 10 on 2 CPUs)" in texts(open_page(PAGE, benchmark_models="resnet50"))
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2, 3.0, 9.8))
    assert "longer now" not in texts(open_page(PAGE, benchmark_models="resnet50"))


@pytest.mark.slow
def test_run_of_several_models_links_to_compare(store: Store) -> None:
    app = followed(open_run(store, benchmark_row("a"), benchmark_row("b")), "Compare rows")
    assert app.title[0].value == "Compare"
    assert "The speed-up is the geometric mean of these ratios" in plain_text(app)
    assert not [ref for ref in open_run(store, benchmark_row("a")).get("page_link") if "Compare r" in ref.proto.label]


@pytest.mark.slow
def test_presets_fill_the_form_and_matching_presets_are_ticked(store: Store) -> None:
    app = open_page(PAGE, benchmark_models="resnet18")
    app.button(key="benchmark_preset_Compile or not?").click().run()
    assert not app.exception
    assert app.multiselect(key="benchmark_variants").value == ["eager", "compile"]
    assert "2 variants interleaved" in texts(app)
    assert "in 3 fresh processes, " in texts(app)
    app.button(key="benchmark_preset_Quick look").click().run()
    assert app.multiselect(key="benchmark_variants").value == ["eager"]
    assert "in 1 fresh process, " in texts(app)
    app.number_input(key="benchmark_replicates").set_value(7).run()
    assert ticked(app) == []
    app.button(key="benchmark_go").click().run()
    spec = store.runs()[0].spec
    assert spec == BenchmarkSpec(models=("resnet18",), replicates=7, max_seconds=5)
    assert app.query_params["run"] == "1"


@pytest.mark.slow
def test_plan_shows_processes_per_model_and_batch_size() -> None:
    for batch_size in ("sweep", "1,16"):
        several = open_page(PAGE, benchmark_models="resnet*", benchmark_batch_size=batch_size)
        assert "in 3 fresh processes per model and batch size, " in texts(several)
    assert "in 3 fresh processes per model, " in texts(open_page(PAGE, benchmark_models="resnet*"))


@pytest.mark.slow
def test_models_with_different_image_sizes_get_a_note() -> None:
    note = "Image sizes differ (224, 320 px). For verdicts between models, set one under Computation."
    app = open_page(PAGE, benchmark_models=["timm:resnet18", "timm:odd_one"])
    assert note in plain_text(app)
    further(app, "Computation").text_input(key="benchmark_image_size").set_value("224").run()
    assert "Image sizes differ" not in plain_text(app)
    assert "(eager, inference, batch 1, 224 px) on cpu" in plain_text(app)
    app = open_page(PAGE, benchmark_models="timm:odd_one")
    assert "Image sizes differ" not in texts(app)
    assert "(eager, inference, batch 1, 320 px) on cpu" in plain_text(app)


@pytest.mark.slow
def test_empty_batch_size_shows_the_current_default() -> None:
    app = open_page(PAGE)
    assert app.selectbox(key="benchmark_batch_size").placeholder == "default: 1"
    app = open_page(PAGE, benchmark_purpose="accuracy", benchmark_mode="training")
    assert app.selectbox(key="benchmark_batch_size").placeholder == "default: 8"
    app.selectbox(key="benchmark_batch_size").set_value("32").run()
    app.get_by_key("benchmark_purpose").set_value("performance").run()
    assert app.selectbox(key="benchmark_batch_size").value == "32"


@pytest.mark.slow
def test_form_queues_a_run(store: Store) -> None:
    app = open_page(PAGE, benchmark_models="resnet18", benchmark_batch_size="sweep")
    further(further(app, "Computation"), "Timing")
    app.multiselect(key="benchmark_variants").set_value(["eager", "compile:max-autotune"]).run()
    app.multiselect(key="benchmark_precision").set_value(["float32", "bfloat16"]).run()
    app.number_input(key="benchmark_min_seconds").set_value(0.5).run()
    app.text_input(key="benchmark_image_size").set_value("160").run()
    app.button(key="benchmark_go").click().run()
    assert not app.exception
    assert store.runs()[0].spec == BenchmarkSpec(
        models=("resnet18",),
        batch_size="sweep",
        variants=("eager", "compile:max-autotune"),
        precision=("float32", "bfloat16"),
        min_seconds=0.5,
        image_size=(160, 160),
    )


@pytest.mark.slow
def test_invalid_filter_shows_an_error() -> None:
    app = open_page(PAGE, benchmark_models="resnet18", benchmark_filter="^nothing$")
    assert not app.exception
    assert "filter: none of 1 model is left, so allow more" in plain_text(app)
    assert app.button(key="benchmark_go").disabled


@pytest.mark.slow
def test_form_estimates_whether_memory_is_enough(store: Store) -> None:
    machine = {"host": "here", "platform": "Linux", "cpu": "x", "threads": 2, "memory_gb": 1.0, "date": "2026-11-20"}
    devices = (Device(name="cpu", model="x"),)
    store.save_machine(Machine.model_validate(machine | {"devices": devices}))
    app = open_page(PAGE, benchmark_models="resnet18")
    assert "of 1 GB for timm:resnet18 at batch 1: fits" in texts(app)
    app = open_page(PAGE, benchmark_models="resnet18", benchmark_batch_size="4096")
    assert "of 1 GB for timm:resnet18 at batch 4096: will not fit" in plain_text(app)
    assert [warning.icon for warning in app.warning] == [":material/memory:"], "the message is a warning"
    app = open_page(PAGE, benchmark_models="resnet18", benchmark_batch_size="max")
    assert "the run finds the largest batch that fits" in texts(app)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "precision"), [(PAGE, "bfloat16"), ("train/page.py", "amp_bf16")])
def test_vision_and_train_propose_bf16_if_measured_as_faster(store: Store, page: str, precision: str) -> None:
    machine = {"platform": "Linux", "cpu": "x", "threads": 2, "memory_gb": 8.0, "date": "2026-11-20"}
    device = {"host": ENVIRONMENT.host, "devices": (Device(name="cpu", model="x"),)}
    store.save_machine(Machine.model_validate(machine | device))
    query = {"benchmark_models": "resnet18"} if page == PAGE else {}
    assert "times as fast" not in plain_text(open_page(page, **query))
    fields = {"device": "cpu", "device_name": "x", "threads": 2, "operation": "matmul"}
    rates = {"float32": 196.0, "bfloat16": 827.0}
    rows = [DeviceRow(model=f"matmul {name}", dtype=name, gflop_per_s=rate, **fields) for name, rate in rates.items()]
    finish(store, store.enqueue(DeviceSpec()), rows)
    assert f"Precision {precision} may be up to 4.22 times as fast" in plain_text(open_page(page, **query))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "query", "gain"),
    [
        (PAGE, {"benchmark_models": "resnet18", "benchmark_precision": ["float32", "tf32"]}, "14 times as fast"),
        (PAGE, {"benchmark_models": "resnet18", "benchmark_precision": "tf32"}, "1.75 times as fast"),
        ("train/page.py", {"train_precision": "fp32"}, "1.75 times as fast"),
        ("train/page.py", {"train_precision": "auto"}, ""),
    ],
)
def test_gain_of_bf16_on_a_gpu_is_that_over_what_the_request_computes_in(
    store: Store, page: str, query: dict[str, str | list[str]], gain: str
) -> None:
    """On CUDA, a training in fp32 uses TF32, and one in auto uses bfloat16 already."""
    machine = {"platform": "Linux", "cpu": "x", "threads": 2, "memory_gb": 8.0, "date": "2026-11-20"}
    devices = (Device(name="cpu", model="x"), Device(name="cuda:0", model="y", memory_gb=80.0, bf16=True))
    store.save_machine(Machine.model_validate(machine | {"host": ENVIRONMENT.host, "devices": devices}))
    rates = {"float32": 50e3, "tf32": 400e3, "bfloat16": 700e3}
    fields = {"device": "cuda:0", "device_name": "y", "operation": "matmul"}
    rows = [DeviceRow(model=f"matmul {name}", dtype=name, gflop_per_s=rate, **fields) for name, rate in rates.items()]
    finish(store, store.enqueue(DeviceSpec(device="cuda:0")), rows)
    prefix = "benchmark" if page == PAGE else "train"
    app = open_page(page, **query | {f"{prefix}_device": "cuda:0"})
    assert (gain in plain_text(app)) if gain else ("times as fast" not in plain_text(app))


@pytest.mark.slow
def test_rows_show_values_flags_and_failures(store: Store) -> None:
    app = open_run(
        store,
        benchmark_row("resnet18", flags=("unstable", "contended"), p90_ms=None),
        benchmark_row("resnet18", "compile", status="error", error="no compiler", latency_ms=None, speedup=None),
        variants="eager,compile",
    )
    assert not app.exception
    table = app.dataframe[0].value
    assert list(table["variant"]) == ["eager", "compile"]
    assert list(table["flags"]) == ["unstable, contended", ""]
    assert table["p90_ms"].iloc[0] == "needs 64 samples"
    assert list(table["status"]) == ["ok", "error"]
    assert "1 of 2 rows failed" in texts(app)


@pytest.mark.slow
def test_timing_that_failed_in_a_later_process_has_no_chart_of_samples(store: Store) -> None:
    """The file with the samples of the earlier processes is kept, but the row has no values."""
    app = open_run(store, benchmark_row("resnet18", status="timeout", error="too slow", latency_ms=None, samples=0))
    assert not app.exception
    assert "1 of 1 row failed" in plain_text(app)
    assert not app.tabs


@pytest.mark.slow
def test_sizes_that_differ_stand_beside_the_model(store: Store) -> None:
    rows = [benchmark_row("resnet18", batch_size=size) for size in (1, 2)]
    table = open_run(store, *rows, batch_size="sweep").dataframe[0].value
    assert list(table.columns[:3]) == ["model", "variant", "batch_size"]
    assert list(table["batch_size"]) == [1, 2]
    assert list(table["image_size"]) == ["224", "224"], "the Catalogue's costs may be those of another size"
    models = [benchmark_row("resnet18", image_size="288"), benchmark_row("vit", image_size="224")]
    app = open_run(store, *models)
    assert list(app.dataframe[0].value.columns[:3]) == ["model", "variant", "image_size"]


@pytest.mark.slow
def test_two_variants_have_a_verdict_and_a_speedup_chart(store: Store) -> None:
    app = open_run(store, benchmark_row("resnet18"), benchmark_row("resnet18", "compile"), variants="eager,compile")
    assert [tab.label for tab in app.tabs] == ["Latency", "Speed-up", "Samples", "Published"]
    assert list(app.dataframe[0].value["verdict"].fillna("")) == ["", "faster"]
    app.session_state["charts_1"] = "Speed-up"
    app.run()
    assert not app.exception
    assert "faster: The whole interval lies above the margin of 2 %." in plain_text(app).replace("**", "")
    linked = open_page(PAGE, run="1", charts_1="Speed-up")
    assert "faster: The whole interval lies above the margin of 2 %." in plain_text(linked).replace("**", "")


@pytest.mark.slow
def test_graph_breaks_slow_operators_and_trace_are_available(store: Store, settings: Settings) -> None:
    slow = SlowOperator(name="aten::mm", calls=2, ms=1.5, share=0.75)
    reasons = {"graph_break_reasons": ("norm.py:3 in forward: data-dependent",), "recompile_reasons": ("x.py:1: size",)}
    row = benchmark_row("resnet18", "compile", **reasons, slowest=(slow,), trace_file=trace_name("timm", "resnet18"))
    run_id = queue_benchmark(store, "resnet18", variants="eager,compile")
    trace = RunFiles(settings.runs_dir, run_id).dir / row.trace_file
    trace.parent.mkdir(parents=True)
    trace.write_bytes(b"a trace")
    finish(store, run_id, [benchmark_row("resnet18"), row])
    app = open_page(PAGE, run=str(run_id))
    assert {"Graph breaks", "Slowest"} <= {tab.label for tab in app.tabs}
    for tab, text in (("Graph breaks", "norm.py:3 in forward: data-dependent x.py:1: size"), ("Slowest", "aten::mm")):
        app.session_state[f"charts_{run_id}"] = tab
        app.run()
        assert not app.exception
        (table,) = (frame.value for frame in app.dataframe if {"reason", "share"} & set(frame.value.columns))
        assert " ".join(table["reason" if "reason" in table else "name"]) == text
    assert "Chrome trace" in [button.label for button in app.get("download_button")]


@pytest.mark.slow
def test_traces_of_two_libraries_can_be_told_apart(store: Store) -> None:
    slow = (SlowOperator(name="aten::mm", calls=2, ms=1.5, share=0.75),)
    rows = [benchmark_row("resnet18", library=library, slowest=slow) for library in ("timm", "torchvision")]
    app = open_run(store, *rows)
    app.session_state["charts_1"] = "Slowest"
    app.run()
    assert len(app.selectbox(key="traced_1").options) == 2


@pytest.mark.slow
def test_published_gpu_speeds_mention_tf32_and_autotuning(store: Store) -> None:
    app = open_run(store, benchmark_row("resnet18", device="cuda:0"))
    app.session_state["charts_1"] = "Published"
    app.run()
    assert not app.exception
    setup = app.selectbox(key="setup_1")
    assert "NVIDIA" in setup.value
    assert "PyTorch's default has TF32 on in convolutions" in plain_text(app)
    on_cpu = next(name for name in setup.options if "NVIDIA" not in name)
    setup.set_value(on_cpu).run()
    assert "Published values: " in plain_text(app)
    assert "TF32" not in plain_text(app), "a CPU has no TF32"


@pytest.mark.slow
def test_any_two_variants_can_be_compared(store: Store, settings: Settings) -> None:
    rows = [benchmark_row("resnet18", variant) for variant in ("eager", "compile", "trace")]
    rows[2] = rows[2].model_copy(update={"memory_format": "channels_last"})
    run_id = queue_benchmark(store, "resnet18", variants="eager,compile,trace")
    folder = RunFiles(settings.runs_dir, run_id).dir
    slow, fast = [[20.0, 20.1, 19.9, 20.0] * 5] * 3, [[10.0, 10.1, 9.9, 10.0] * 5] * 3
    write_samples(folder, rows[0], eager=slow, compile=fast, trace=fast)
    finish(store, run_id, rows)
    app = open_page(PAGE, run=str(run_id))
    compared = followed(app, "Compare rows")
    (eager, compiled, _) = compared.selectbox(key="compare_baseline").options
    assert eager == f"run {run_id}: timm:resnet18 · inference · eager · batch 8 · 224 px"
    table = compared.dataframe[0].value
    assert [f"{ratio:.2f}" for ratio in table["speedup"]] == ["2.00", "2.00"]
    assert list(table["verdict"]) == ["faster", "not comparable"]
    assert "Here the rows differ in memory format." in plain_text(compared)
    table = compared.selectbox(key="compare_baseline").set_value(compiled).run().dataframe[0].value
    assert list(table["variant"]) == ["eager", "trace"]
    assert [f"{ratio:.2f}" for ratio in table["speedup"]] == ["0.50", "1.00"]
    assert list(table["differs_in"]) == ["", "memory format"]
    app.session_state[f"charts_{run_id}"] = "Samples"
    app.run()
    assert not app.exception
    assert "In every round the variants take turns in random order, with one or two samples per turn" in plain_text(app)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "No columns to parse"),
        (b"\xff\xfe\x00", "codec can't decode"),
        (b"a,b\n1,2\n", "lacks the columns calls, mode"),
        (b"process,mode,variant,round,calls,forward_ms\n1,inference,eager,0,1,fast\n", "could not convert"),
    ],
)
def test_unreadable_samples_show_an_error_and_keep_the_table(
    store: Store, settings: Settings, content: bytes, message: str
) -> None:
    run_id = queue_benchmark(store, "resnet18", variants="eager,compile")
    rows = [benchmark_row("resnet18", variant) for variant in ("eager", "compile")]
    file = RunFiles(settings.runs_dir, run_id).dir / rows[0].samples_file
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    finish(store, run_id, rows)
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"charts_{run_id}"] = "Samples"
    app.run()
    assert not app.exception
    assert message in " ".join(error.value for error in app.error).replace("\\", "")
    assert len(app.dataframe)
    notes = followed(app, "Compare rows").dataframe[0].value["note"]
    assert [message in note for note in notes] == [True]


@pytest.mark.slow
def test_quick_run_can_be_repeated_with_quotable_settings(store: Store) -> None:
    app = open_run(store, benchmark_row("resnet18"))
    assert "quotable_1" not in {button.key for button in app.button}
    app = open_run(store, benchmark_row("resnet18", flags=("single_process",)), replicates=1, min_seconds=1)
    app.button(key="quotable_2").click().run()
    assert not app.exception
    assert store.runs()[0].spec == BenchmarkSpec(models=("resnet18",))


@pytest.mark.slow
def test_selected_row_shows_all_details(store: Store) -> None:
    run_id = queue_benchmark(store, "resnet18", variants="eager,compile")
    load = {"cpu_share": 0.97, "neighbour_share": 0.02, "switches_per_s": 12.0}
    notes = ("batch 8 after out of memory at 64",)
    details: dict[str, object] = {"notes": notes, "contention": load, "recompilations": 3}
    row = benchmark_row("resnet18", "compile", flags=("drifting",), **details)
    finish(store, run_id, [benchmark_row("resnet18"), row])
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"rows_{run_id}"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    app.run()
    assert not app.exception
    metrics = {metric.label: metric.value for metric in app.metric}
    assert metrics["Latency p50 (ms)"] == "20"
    assert metrics["p99 (ms)"] == "–"
    assert [metric.delta for metric in app.metric if metric.label == "p99 (ms)"] == ["needs 662 samples"]
    assert (metrics["Spread (%)"], metrics["Recompilations"]) == ("4.5", "3")
    page_text = plain_text(app)
    assert "The first and the last third of the samples differ" in page_text
    assert "faster: 1.25 times as fast as eager (1.2 to 1.3, 99 %)" in page_text
    assert "Batch 8 after out of memory at 64" in page_text
    assert "30 samples of 1 call in 3 processes" in page_text
    for part in ("threads ran 97 % of the time", "other programs used 2 % of the CPUs", "12 involuntary switches/s"):
        assert part in page_text


@pytest.mark.slow
def test_selected_gpu_row_shows_back_to_back_time_and_time_parts(store: Store) -> None:
    run_id = queue_benchmark(store, "resnet18", variants="eager,compile", device="cuda")
    parts = Parts(starts_s=12, compilation_s=31.5, warmup_s=3, sampled_s=12, rest_s=1.5)
    time_fields = {"first_call_after": ("eager",), "parts": parts, "seconds": 60.0}
    compiled = benchmark_row("resnet18", "compile", device="cuda", back_to_back_ms=15.0, **time_fields)
    finish(store, run_id, [benchmark_row("resnet18", device="cuda", back_to_back_ms=16.0), compiled])
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"rows_{run_id}"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    app.run()
    assert not app.exception
    metrics = {metric.label: metric.value for metric in app.metric}
    assert (metrics["Latency p50 (ms)"], metrics["Back to back (ms)"]) == ("20", "15")
    page_text = plain_text(app)
    assert "faster in latency: 1.25 times as fast as eager" in page_text
    assert "First call after eager in the same process" in page_text
    part_text = "starts 12 s, compilation 31.5 s, warm-up 3 s, samples 12 s, rest 1.5 s"
    assert f"This row and those timed beside it took 1 min: {part_text}." in page_text


@pytest.mark.slow
def test_run_without_rows_distinguishes_queued_from_ended(store: Store) -> None:
    run_id = queue_benchmark(store, "resnet18")
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    assert "No results yet" in texts(app)
    store.request_cancel(run_id)
    assert "This run ended without results." in texts(open_page(PAGE, run=str(run_id)))


@pytest.mark.parametrize(
    "fields",
    [
        {"models": "ViT-B-*,{a,b}"},
        {"models": "suite", "batch_size": "recorded", "variants": "eager,compile:max-autotune+bfloat16"},
        {"models": "resnet18", "batch_size_list": "resnet18 8"},
        {"models": "resnet18", "batch_size": 32, "precision": "float32,amp", "channels_last": True, "partition": "1/2"},
        {"models": "resnet18", "filter": "-x|^--y", "min_seconds": 0.25, "replicates": 1, "image_size": "160x224"},
    ],
)
def test_command_has_the_same_settings_as_the_run(fields: dict[str, object]) -> None:
    spec = BenchmarkSpec.model_validate(fields)
    arguments = shlex.split(command(spec))
    assert arguments[:4] == ["python", "-m", "engine", "benchmark"]
    assert parsed(speed.Benchmark, arguments[4:]) == spec


@pytest.mark.slow
def test_batch_size_list_is_accepted_and_impossible_runs_are_refused(store: Store) -> None:
    app = further(open_page(PAGE, benchmark_models="resnet18"), "Batch sizes")
    app.text_area(key="benchmark_batch_size_list").set_value("resnet50 4").run()
    assert "has no line for timm:resnet18" in plain_text(app)
    assert app.button(key="benchmark_go").disabled
    app.text_area(key="benchmark_batch_size_list").set_value("resnet50 4\nresnet18,8").run()
    app.button(key="benchmark_go").click().run()
    assert store.runs()[0].spec == BenchmarkSpec(models=("resnet18",), batch_size_list="resnet50 4, resnet18 8")
    refused = open_page(PAGE, benchmark_models="timm:resnet18", benchmark_tower="text")
    assert "timm:resnet18 has no text tower" in plain_text(refused)
    refused = open_page(PAGE, benchmark_models="timm:resnet18", benchmark_variants=["eager", "cudagraphs"])
    assert "cudagraphs needs CUDA graphs" in plain_text(refused)
    assert refused.button(key="benchmark_go").disabled


@pytest.mark.slow
def test_uploaded_configuration_can_be_timed(store: Store) -> None:
    config = {"embed_dim": 64, "vision_cfg": {}, "text_cfg": {}}
    app = unfold(open_page(PAGE), "Models from files")
    app.file_uploader[0].upload("mine.json", json.dumps(config).encode())
    app.run()
    assert "Times 1 model" in texts(app)
    assert "--models mine.json" in verbatim(app)[0]
    app.button(key="benchmark_go").click().run()
    assert not app.exception
    assert store.runs()[0].spec == BenchmarkSpec(models=("config:mine",), configs={"mine": config})


@pytest.mark.slow
def test_link_to_python_code_is_refused(store: Store) -> None:
    app = open_page(PAGE, benchmark_models="python:os:getcwd")
    assert "building it runs the Python code that it names" in texts(app)
    assert app.button(key="benchmark_go").disabled
    assert store.runs() == []


@pytest.mark.slow
def test_rows_show_model_arguments_that_were_set(store: Store) -> None:
    app = open_run(store, benchmark_row("resnet18", num_classes=10, model_kwargs='{"depth": 2}'), num_classes=10)
    assert not app.exception
    table = app.dataframe[0].value
    assert (list(table["num_classes"]), list(table["model_kwargs"])) == ([10], ['{"depth": 2}'])
    assert "in_chans" not in table


@pytest.mark.slow
def test_cluster_settings_appear_only_if_a_cluster_has_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def groups() -> list[str]:
        app = open_page(PAGE)
        return next(pills.options for pills in app.pills if pills.label.startswith("Further settings"))

    assert "Cluster" not in groups()
    monkeypatch.setattr(launch, "cluster_devices", lambda: ["cluster:cpu"])
    assert "Cluster" in groups()
