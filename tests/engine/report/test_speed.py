"""Reports of timings: plots, samples, published speeds, summaries, estimates of memory and time, checked by hand."""

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine.published import speeds as published_speeds
from engine.report import frames
from engine.report.catalog import catalog
from engine.report.compare.timed import by_setting
from engine.report.figures import speed
from engine.report.quantities import QUANTITIES
from engine.report.style import COLOURS
from engine.report.timings import by_model, estimates, needs, rates, readable, samples, stored
from engine.results import DeviceRow, Flag, Parts
from engine.settings import Settings
from engine.specs import BenchmarkSpec, ModelName, Refused
from engine.specs.benchmark import CONDITIONS
from engine.store import Store
from tests.support.clip import train_row
from tests.support.page import benchmark_row, finish, profile_row, queue_benchmark, write_catalogue, write_samples


def spec(**fields: object) -> BenchmarkSpec:
    return BenchmarkSpec.model_validate({"models": ["resnet18"], **fields})


def annotation_texts(figure: object) -> list[str]:
    return [annotation.text for annotation in figure.layout.annotations]


def test_percentiles_name_the_number_of_samples_they_need() -> None:
    row = benchmark_row("m", samples=100, p90_ms=23.456)
    assert readable.percentile(row, 90) == "23.5 ms"
    assert readable.percentile(row, 95) == "needs 130 samples"
    assert readable.percentile(row, 99) == "needs 662 samples"
    assert readable.percentile(benchmark_row("m", samples=0), 99) == "–"


def test_help_of_percentiles_says_what_a_sample_of_quick_calls_is() -> None:
    for name in ("p90_ms", "p95_ms", "p99_ms", "forward_p90_ms", "backward_p90_ms"):
        assert "the mean of a block of calls" in QUANTITIES[name].help


def test_every_flag_and_verdict_has_a_description() -> None:
    from typing import get_args

    from engine.results import FLAGS, VERDICTS, Flag, Verdict
    from engine.results.flags import SPOILING

    assert set(FLAGS) == set(get_args(Flag))
    assert not [flag for flag in SPOILING if "_" in flag], "`spoiled` in report/catalog/choose.py would not find these"
    assert set(VERDICTS) == set(speed.VERDICTS) == set(get_args(Verdict))


def test_latency_bars_show_flags_and_start_with_the_fastest_model() -> None:
    rows = [
        benchmark_row("a", p90_ms=25.0, flags=("unstable", "single_process")),
        benchmark_row("a", "compile", latency_ms=15.0, process_medians_ms=(14.0, 15.0, 17.0)),
        benchmark_row("b", status="error", latency_ms=None, p90_ms=None),
    ]
    others = [benchmark_row("c", latency_ms=16.0), benchmark_row("d", latency_ms=14.0)]
    ordered = speed.latency(frames.benchmark([*rows, *others])).layout.yaxis.categoryarray
    assert list(ordered) == ["d · eager", "a · eager", "a · compile", "c · eager"]
    figure = speed.latency(frames.benchmark(rows), source="run 7")
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [(bar.name, list(bar.x)) for bar in bars] == [("eager", [20.0]), ("compile", [15.0])]
    assert list(bars[0].error_x.array) == [5.0]  # from the median to p90
    assert list(bars[1].error_x.array) == [0.0]
    assert annotation_texts(figure) == ["20 ms  <i>unstable, single process</i>", "15 ms"]
    assert [annotation.x for annotation in figure.layout.annotations] == [25.0, 17.0]
    reversed_figure = speed.latency(frames.benchmark(rows)[::-1])
    assert [annotation.x for annotation in reversed_figure.layout.annotations] == [17.0, 25.0]
    assert list(figure.layout.yaxis.categoryarray) == ["a · eager", "a · compile"]
    assert figure.layout.xaxis.title.text == "Latency p50 (ms)"
    assert "run 7" in bars[0].hovertemplate
    assert bars[0].customdata[0][2] == "processes differ by 4.5 %; unstable, single process"
    ticks = figure.data[-1]
    assert sorted(ticks.x) == [14.0, 15.0, 17.0, 19.5, 20.0, 20.4]


def test_latency_bars_name_the_batch_size_of_a_sweep_if_only_one_could_be_timed() -> None:
    failed = benchmark_row("resnet18", batch_size=64, latency_ms=None, status="out_of_memory", error="no memory")
    figure = speed.latency(frames.benchmark([benchmark_row("resnet18", batch_size=1), failed]))
    assert list(figure.layout.yaxis.categoryarray) == ["resnet18 · batch 1"]


def test_latency_bars_escape_html_in_names() -> None:
    figure = speed.latency(frames.benchmark([benchmark_row("<b>x</b>", image_size=size) for size in ("<i>", "8")]))
    assert list(figure.data[0].y) == [f"&lt;b&gt;x&lt;/b&gt; · {size} px" for size in ("&lt;i&gt;", "8")]


def test_speedups_show_their_verdict_and_a_line_at_1() -> None:
    rows = [
        benchmark_row("a", "compile", verdict="faster"),
        benchmark_row("b", "compile", speedup=1.001, speedup_low=0.99, speedup_high=1.01, verdict="no difference"),
        benchmark_row("c", "compile", verdict="not comparable"),
        benchmark_row("c"),
    ]
    figure = speed.speedups(frames.benchmark(rows))
    assert annotation_texts(figure) == [
        "1.25×  <i>faster</i>",
        "1.00×  <i>no difference</i>",
        "1.25×  <i>not comparable</i>",
    ]
    traces = {trace.name: trace for trace in figure.data}
    assert set(traces) == {"faster", "no difference", "not comparable"}
    assert traces["faster"].error_x.array[0] == pytest.approx(0.05)
    assert traces["faster"].error_x.arrayminus[0] == pytest.approx(0.05)
    assert traces["not comparable"].marker.color == "#7B7F86"
    line = [shape for shape in figure.layout.shapes if shape.type == "line"]
    assert [(shape.x0, shape.x1) for shape in line] == [(1, 1)]


def test_huge_interval_is_cut_on_the_chart() -> None:
    rows = [
        benchmark_row("a", "compile", speedup=0.05, speedup_low=0.04, speedup_high=2e17, verdict="undecided"),
        benchmark_row("b", "compile", speedup=2.0, speedup_low=1.9, speedup_high=2.1, verdict="faster"),
    ]
    figure = speed.speedups(frames.benchmark(rows))
    assert annotation_texts(figure)[0].startswith("0.05×  <i>undecided</i> (up to 2")
    assert [trace.x[0] + trace.error_x.array[0] for trace in figure.data] == pytest.approx([6.0, 2.1])
    assert figure.layout.xaxis.range[1] < 10


def test_limits_of_a_narrow_interval_differ() -> None:
    assert readable.interval(1.0051, 1.0144) == "1.005 to 1.014, 99 %", "and not 1.01 to 1.01"


def test_interval_without_upper_limit_has_the_longest_whisker() -> None:
    rows = [
        benchmark_row("a", "compile", speedup=4.0, speedup_low=0.0, speedup_high=None, verdict="undecided"),
        benchmark_row("b", "compile", speedup=2.0, speedup_low=0.5, speedup_high=80.0, verdict="undecided"),
        benchmark_row("c", "compile", speedup=2.0, speedup_low=None, speedup_high=None, verdict="undecided"),
    ]
    figure = speed.speedups(frames.benchmark(rows))
    (trace,) = figure.data
    assert list(trace.error_x.array) == [8.0, 10.0, 0.0]
    assert list(trace.error_x.arrayminus) == [4.0, 1.5, 0.0]
    assert [interval for _, interval in trace.customdata] == [
        "0 to no upper limit, 99 %",
        "0.5 to 80, 99 %",
        "no interval",
    ]
    assert annotation_texts(figure) == [
        "4.00×  <i>undecided</i> (no upper limit)",
        "2.00×  <i>undecided</i> (up to 80×)",
        "2.00×  <i>undecided</i>",
    ]
    assert figure.layout.xaxis.range[1] == 12
    only = speed.speedups(frames.benchmark(rows[:1]))
    assert list(only.data[0].error_x.array) == [8.0]
    infinite = [benchmark_row("a", "compile", speedup=4.0, speedup_low=0.0, speedup_high=math.inf, verdict="undecided")]
    assert annotation_texts(speed.speedups(frames.benchmark(infinite))) == annotation_texts(only)


def test_curves_have_a_line_per_model_and_variant_and_a_point_per_batch_size() -> None:
    rows = [
        benchmark_row(model, variant, batch_size=size, latency_ms=float(size), samples_per_s=100.0 * size)
        for model in ("a", "b")
        for variant in ("eager", "compile")
        for size in (4, 1, 2)
    ]
    figure = speed.curves(frames.benchmark(rows))
    assert [trace.name for trace in figure.data] == ["a · eager", "a · compile", "b · eager", "b · compile"]
    assert list(figure.data[0].text) == [1, 2, 4]
    assert [trace.line.color for trace in figure.data] == list(COLOURS[:4])
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


def test_all_curves_look_different() -> None:
    rows = [
        benchmark_row(model, variant, mode=mode, batch_size=size, family="resnet")
        for model in ("a", "b", "c", "d")
        for variant in ("eager", "compile")
        for mode in ("inference", "training")
        for size in (1, 2)
    ]
    figure = speed.curves(frames.benchmark(rows))
    styles = {trace.name: (trace.line.color, trace.line.dash, trace.marker.symbol) for trace in figure.data}
    assert len(set(styles.values())) == len(styles) == 16
    inference, training = styles["a · inference · eager"], styles["a · training · eager"]
    assert inference == (COLOURS[0], "solid", "circle")
    assert training == (COLOURS[0], "dash", "circle-open")
    assert {trace.marker.color for trace in figure.data} <= set(COLOURS)


def test_samples_are_read_by_variant_and_drawn_per_process(tmp_path: Path) -> None:
    row = benchmark_row("m")
    rng = random.Random(3)
    eager_ms = [[rng.gauss(20, 0.2) for _ in range(20)] for _ in range(3)]
    compiled_ms = [[rng.gauss(10, 0.1) for _ in range(20)] for _ in range(3)]
    write_samples(tmp_path, row, eager=eager_ms, compile=compiled_ms)
    frame = samples.read(tmp_path / row.samples_file, None, samples.place(row))
    eager, compiled = (benchmark_row("m", variant, samples_file=row.samples_file) for variant in ("eager", "compile"))
    assert list(samples.of(frame, samples.place(compiled))["ms"]) == [ms for process in compiled_ms for ms in process]
    reader = samples.Reader()
    assert reader.phase(tmp_path, eager) == eager_ms
    assert reader.phase(tmp_path, compiled.model_copy(update={"mode": "training"})) == []
    assert reader.phase(tmp_path, compiled, "optimizer_ms") == []
    assert reader.phase(tmp_path, compiled, "queued_ms") == []
    figure = speed.raw(frame, ["eager", "compile"])
    assert [len(trace.x) for trace in figure.data] == [20] * 6  # three panels of two variants
    assert annotation_texts(figure) == ["Process 1", "Process 2", "Process 3"]
    assert figure.layout.xaxis.dtick is None
    single = speed.raw(frame[frame["round"] == 0], ["eager", "compile"])
    assert single.layout.xaxis.dtick == 1  # no tick at round 0.5
    assert (single.layout.xaxis.range, single.layout.xaxis3.range) == ((-0.5, 0.5), (-0.5, 0.5))  # no round -1
    assert figure.layout.xaxis.range is None
    assert figure.layout.yaxis.title.text == "Time per call (ms)"


def test_sample_with_a_long_pause_is_drawn_at_the_upper_edge(tmp_path: Path) -> None:
    row = benchmark_row("m")
    write_samples(tmp_path, row, eager=[[900.0, *[10.0] * 39], [10.0] * 40])
    frame = samples.read(tmp_path / row.samples_file, None, samples.place(row))
    figure = speed.raw(frame, ["eager"])
    assert max(max(trace.y) for trace in figure.data) == 15.0
    assert figure.layout.yaxis.title.text == "Time per call (ms, △ above 15)"
    (pause,) = [index for index, symbol in enumerate(figure.data[0].marker.symbol) if symbol == "triangle-up-open"]
    assert (figure.data[0].x[pause], figure.data[0].customdata[pause][0]) == (0, 900.0)
    assert figure.data[0].marker.symbol[0] != "triangle-up-open", "the legend shows the first symbol"


def test_phases_add_up_and_only_files_of_the_run_are_read(tmp_path: Path) -> None:
    row = benchmark_row("m", mode="training")
    path = tmp_path / row.samples_file
    path.parent.mkdir()
    path.write_text(
        "process,mode,variant,round,calls,forward_ms,backward_ms,optimizer_ms\n1,training,eager,0,2,1.5,2.5,0.25\n"
    )
    frame = samples.read(tmp_path / row.samples_file, None, samples.place(row))
    assert list(frame["ms"]) == [4.25]
    (tmp_path / "run").mkdir()
    for folder, name in ((tmp_path, "samples/none.csv"), (tmp_path, ""), (tmp_path / "run", f"../{row.samples_file}")):
        other = benchmark_row("m", samples_file=name)  # the last file is outside the run's folder
        assert samples.Reader().phase(folder, other) is None


@pytest.mark.parametrize("ms", ["0", "-1", "inf"])
def test_zero_negative_and_infinite_times_are_refused(tmp_path: Path, ms: str) -> None:
    (tmp_path / "samples.csv").write_text(f"process,mode,variant,round,calls,call_ms\n0,inference,eager,0,1,{ms}\n")
    with pytest.raises(ValueError, match="zero, negative or infinite"):
        samples.read(tmp_path / "samples.csv", None, ("mode", "variant"))


def test_samples_of_more_processes_than_a_run_can_have_are_refused(tmp_path: Path) -> None:
    """Their interval takes 0.2 ms per process, so a file of an imported run would occupy Compare for minutes."""
    lines = ["process,mode,variant,round,calls,call_ms", *(f"{number},inference,eager,0,1,1" for number in range(21))]
    (tmp_path / "samples.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"samples\.csv has 21 processes, and a timing has at most 20"):
        samples.read(tmp_path / "samples.csv", None, ("mode", "variant"))


def test_published_speeds_are_joined_by_model_size_and_mode() -> None:
    table = pd.DataFrame(
        {
            **{"model": ["m", "m", "m", "n"], "mode": ["inference", "inference", "training", "inference"]},
            **{"image_size": ["224", "288", "224", "224"], "samples_per_s": [800.0, 500.0, 90.0, 1.0]},
            **{"batch_size": [256] * 4, "setup": ["GPU, amp"] * 4},
        }
    )
    rows = [benchmark_row("m"), benchmark_row("m", library="torchvision"), benchmark_row("k")]
    joined = published_speeds.beside([*rows, benchmark_row("m", status="error", samples_per_s=None)], table)
    assert joined[["model", "here", "theirs", "times", "their_batch_size"]].values.tolist() == [["m", 400, 800, 2, 256]]
    figure = speed.against(joined, "GPU, amp", {})
    assert figure.layout.xaxis.title.text == "Published (samples/s)<br>GPU, amp"
    assert "GPU, amp" in figure.data[0].hovertemplate


def test_published_speeds_keep_the_newest_torch_per_precision(tmp_path: Path) -> None:
    lines = [
        "model,mode,image_size,batch_size,samples_per_s,step_time_ms,device,precision,memory_format,compiled,torch"
    ]
    for precision, version, rate in (
        ("amp", "2.10.0", 3),
        ("amp", "2.9.1", 2),
        ("amp", "1.12", 1),
        ("fp32", "2.9.1", 1),
    ):
        lines.append(f"resnet18,inference,224,64,{rate},9,GPU,{precision},contiguous_format,False,{version}")
    lines.append("resnet18,inference,224,64,9,9,GPU,amp,channels_last,False,2.11.0")
    lines.append("resnet18,inference,224,64,5,9,GPU,amp,contiguous_format,True,2.11.0")
    lines.append("resnet50,inference,224,64,4,9,GPU,fp32,contiguous_format,False,2.9.1")
    path = tmp_path / "speeds.csv"
    path.write_text("\n".join(lines))
    speeds = published_speeds.speeds(path)
    resnet18_speeds = speeds[speeds["model"] == "resnet18"]
    assert dict(zip(resnet18_speeds["setup"], resnet18_speeds["samples_per_s"], strict=True)) == {
        "GPU, amp, eager, torch 2.10.0": 3,
        "GPU, amp, compiled, torch 2.11.0": 5,
        "GPU, fp32, eager, torch 2.9.1": 1,
    }
    setups = published_speeds.setups(speeds, [benchmark_row("resnet18"), benchmark_row("resnet50")])
    assert setups == [
        *("GPU, fp32, eager, torch 2.9.1", "GPU, amp, eager, torch 2.10.0", "GPU, amp, compiled, torch 2.11.0")
    ], "most speeds first"


def test_shipped_speeds_name_their_device_precision_and_torch() -> None:
    speeds = published_speeds.speeds()
    resnet18_speeds = speeds[(speeds["model"] == "resnet18") & (speeds["image_size"] == "224")]
    assert not resnet18_speeds.empty
    assert not speeds.duplicated(["model", "mode", "image_size", "device", "precision", "compiled"]).any()
    assert all(setup.count(", ") == 3 and "torch" in setup for setup in speeds["setup"].unique())
    assert "Intel" in published_speeds.setups(speeds, [benchmark_row("resnet18")])[0]
    on_gpu = benchmark_row("resnet18", device="cuda:0")
    assert "NVIDIA" in published_speeds.setups(speeds, [on_gpu])[0]
    assert "Intel" in published_speeds.setups(speeds, [on_gpu, benchmark_row("resnet18")])[0]


def test_models_with_equal_names_show_their_library() -> None:
    rows = [benchmark_row("resnet18"), benchmark_row("resnet18", library="torchvision"), benchmark_row("resnet50")]
    figure = speed.latency(frames.benchmark(rows))
    assert list(figure.data[0].y) == ["timm:resnet18", "torchvision:resnet18", "resnet50"]


def test_models_timed_at_different_image_sizes_show_them() -> None:
    rows = [benchmark_row("resnet18", image_size="288"), benchmark_row("vit", image_size="224")]
    assert list(speed.latency(frames.benchmark(rows)).data[0].y) == ["resnet18 · 288 px", "vit · 224 px"]


def test_own_image_size_is_the_test_size_in_inference(tmp_path: Path) -> None:
    catalogue = catalog.read(write_catalogue(tmp_path / "catalog"))
    catalogue.loc[catalogue["name"] == "timm:resnet18", "test_size"] = "288"
    models = [ModelName(f"timm:{name}") for name in ("odd_one", "resnet18", "unknown")]
    assert needs.own_image_sizes(spec(), models, catalogue) == ["288", "320"]
    assert needs.own_image_sizes(spec(mode="training"), models, catalogue) == ["224", "320"]


def test_summary_has_geometric_mean_and_number_of_failures() -> None:
    rows = [
        benchmark_row("a"),
        benchmark_row("a", "compile", speedup=2.0),
        benchmark_row("b", "compile", speedup=0.5, verdict="slower"),
        benchmark_row("c", "compile", speedup=8.0),
        benchmark_row("d", "compile", status="error", speedup=None, verdict=None),
    ]
    (line,) = readable.summary(rows).to_dict("records")
    assert line["geometric_mean"] == pytest.approx(math.prod([2, 0.5, 8]) ** (1 / 3))
    assert (line["rows"], line["failed"], line["faster"], line["slower"]) == (4, 1, 2, 1)
    assert readable.summary_lines(rows) == [
        "compile, inference: geometric mean of the speed-ups 2, 2 faster, 1 slower, 1 failed"
    ]
    accuracy_rows = [
        benchmark_row(str(n), "compile", accuracy=a) for n, a in enumerate(("pass", "pass_due_to_skip", "OOM"))
    ]
    assert readable.summary(accuracy_rows)["passed"].tolist() == ["2 of 3"]
    assert "2 of 3 passed (67 %)" in readable.summary_lines(accuracy_rows)[0]
    assert readable.summary_lines([benchmark_row("a")]) == []
    deviations = [benchmark_row("a", "compile", purpose="tolerance", speedup=None, verdict=None, max_deviation=0.01)]
    assert readable.summary_lines(deviations) == []


@pytest.mark.parametrize(
    ("fields", "mb"),
    [
        ({"batch_size": 1}, 56.0),  # as in the catalogue: 46.8 of weights and 9.2 of activations
        ({"batch_size": 10}, 46.8 + 10 * 9.2),
        ({"batch_size": 10, "image_size": 448}, 46.8 + 4 * 10 * 9.2),
        ({"batch_size": 10, "variants": "eager,compile"}, 2 * 46.8 + 10 * 9.2),  # both hold their weights
        ({"batch_size": 10, "precision": "bfloat16"}, 46.8 / 2 + 10 * 9.2 / 2),
        ({"batch_size": 10, "precision": "float32,bfloat16"}, 1.5 * 46.8 + 10 * 9.2),
        ({"batch_size": 10, "precision": "amp"}, 1.5 * 46.8 + 10 * 9.2 * 2.6 / 4),  # autocast keeps copies of weights
        ({"batch_size": 10, "precision": "amp", "device": "cluster:cpu"}, 1.5 * 46.8 + 10 * 9.2 * 2.6 / 4),
        ({"batch_size": 10, "precision": "amp", "device": "cuda:0"}, 1.5 * 46.8 + 10 * 9.2 * 3.6 / 4),
        ({"batch_size": 10, "precision": "amp", "variants": "export"}, 1.5 * 46.8 + 10 * 9.2 * 2.6 / 4),
        ({"batch_size": 10, "precision": "amp", "variants": "compile"}, 46.8 + 10 * 9.2),
        ({"batch_size": "sweep", "max_batch_size": 32}, 46.8 + 32 * 9.2),
        ({"batch_size": "sweep", "max_batch_size": 50}, 46.8 + 32 * 9.2),
        ({"batch_size": 10, "mode": "training"}, 2 * 46.8 + 10 * 20.7),
        ({"batch_size": 10, "mode": "both", "optimizer": "adamw"}, 4 * 46.8 + 10 * 20.7),
    ],
)
def test_memory_estimate_equals_hand_computation(tmp_path: Path, fields: dict[str, object], mb: float) -> None:
    catalogue = catalog.read(write_catalogue(tmp_path / "catalog"))
    need = needs.memory(spec(**fields), [ModelName("timm:resnet18"), ModelName("timm:unknown")], catalogue)
    assert need is not None
    assert (need.model, need.unknown) == ("timm:resnet18", 1)
    assert need.gb == pytest.approx(mb / 1000)


@pytest.mark.parametrize(("live_mb", "mb"), [(4.0, 9.2 + 9 * 4.0), (15.0, 10 * 15.0)])
def test_images_after_the_first_add_what_a_large_batch_needs_per_image(
    tmp_path: Path, live_mb: float, mb: float
) -> None:
    catalogue = catalog.read(write_catalogue(tmp_path / "catalog")).assign(live_mb=live_mb)
    need = needs.memory(spec(batch_size=10), [ModelName("timm:resnet18")], catalogue)
    assert need is not None
    assert need.gb == pytest.approx((46.8 + mb) / 1000)


@pytest.mark.parametrize("name", ["timm:resnet50", "timm:convnext_base"])
def test_memory_estimate_of_inference_uses_the_test_image_size(name: str) -> None:
    catalogue = catalog.read(Settings().catalog_dir)
    trained, tested = (
        catalogue[(catalogue["name"] == name) & (catalogue["image_size"] == size)].iloc[0] for size in ("224", "288")
    )
    weights, activations = tested["weights_mb"], tested["inference_peak_mb"] - tested["weights_mb"]
    need = needs.memory(spec(batch_size=64), [ModelName(ModelName(name))], catalogue)
    assert need is not None
    assert need.gb == pytest.approx((weights + 64 * activations) / 1000, rel=0.02)
    training = needs.memory(spec(batch_size=64, mode="training"), [ModelName(ModelName(name))], catalogue)
    training_at_224 = needs.memory(
        spec(batch_size=64, mode="training", image_size=224), [ModelName(ModelName(name))], catalogue
    )
    assert training == training_at_224
    assert trained["test_size"] == "288"


def test_memory_estimate_names_the_model_with_the_largest_need(tmp_path: Path) -> None:
    catalogue = catalog.read(write_catalogue(tmp_path / "catalog"))
    names = ["timm:vit_tiny_patch16_224", "timm:resnet50", "timm:resnet18"]
    need = needs.memory(spec(batch_size=2), names, catalogue)
    assert need == needs.Need("timm:resnet50", 2, pytest.approx(0.124), 0)


def test_no_memory_estimate_for_largest_batch_or_unknown_models(tmp_path: Path) -> None:
    catalogue = catalog.read(write_catalogue(tmp_path / "catalog"))
    assert needs.memory(spec(batch_size="max"), [ModelName("timm:resnet18")], catalogue) is None
    assert needs.memory(spec(), [ModelName("timm:unknown"), ModelName("timm:broken")], catalogue) is None


def test_recorded_batch_sizes_are_those_of_the_benchmark_suite() -> None:
    # the suite records 128, of which half is used
    assert spec(batch_size="recorded").batch_sizes(ModelName("timm:beit_base_patch16_224")) == (64,)
    with pytest.raises(Refused, match="no batch size is recorded for timm:resnet18"):
        spec(batch_size="recorded").batch_sizes(ModelName("timm:resnet18"))


def test_expected_time_scales_the_work_of_earlier_runs() -> None:
    """A timing of 2 models took 50 s, of which 40 s for its rows; a training took 30 s, of which 24 s for 60 steps."""
    rows = [
        benchmark_row(model, variant, seconds=s)
        for model, s in (("a", 10.0), ("b", 30.0))
        for variant in ("eager", "trace")
    ]
    assert needs.work(rows) == (40.0, 2)
    assert needs.rescaled_s(50.0, *needs.work(rows), 5) == 10 + 5 * 20
    epochs = [train_row(epoch=1, step=30, seconds=12.0), train_row(epoch=2, step=60, seconds=24.0)]
    assert needs.rescaled_s(30.0, *needs.work(epochs), 600) == 6 + 240
    counts = [profile_row(name, batch_size=batch, seconds=3.0) for name, batch in (("a", 1), ("a", 8), ("b", 1))]
    assert needs.work(counts) == (9.0, 3), "a count per model and batch size"
    assert needs.rescaled_s(7.0, *needs.work([]), 5) == 7.0
    assert needs.similar_s([100, 60]) == needs.Span(0.7 * 60, 1.5 * 100)


def test_expected_time_is_corrected_by_earlier_errors() -> None:
    """Two runs took 40 s and 60 s although 20 s were expected."""
    estimate = needs.Span(10, 40)
    corrected = estimate.corrected([2.0, 3.0])
    assert (corrected.low, corrected.high) == pytest.approx((0.7 * 2 * 20, 1.5 * 3 * 20))
    assert estimate.corrected([]) == estimate


def test_expected_time_is_a_range_of_the_sum_of_its_parts(tmp_path: Path) -> None:
    catalogue = catalog.read(write_catalogue(tmp_path / "catalog"))
    start = needs.Span(4, 8)

    def expected(models: tuple[str, ...] = ("timm:resnet18",), **fields: object) -> needs.Span:
        return needs.benchmark_s(spec(threads=8, **fields), models, catalogue, start)

    single_model = expected()
    assert 3 * (4 + 2.5) <= single_model.low <= 3 * (4 + 3)
    assert 3 * (8 + 4) <= single_model.high <= 3 * (8 + 8)
    assert expected(("timm:resnet18", "timm:unknown")).low >= 2 * 3 * (4 + 2.5)
    assert expected(publishable=True).low >= 5 * (4 + 12.5)
    # 2 x 1.82 GFLOPs x 64 images a call, 10 of which are sampled: from 80 to 5 GFLOP/s on each of 8 threads
    assert expected(batch_size=64).low >= 3 * (4 + 10 * 2 * 1.82 * 64 / 640)
    assert expected(batch_size=64).high >= 3 * (8 + 2 * 10 * 2 * 1.82 * 64 / 40)
    assert expected(batch_size=64, mode="training").low >= 3 * (4 + 10 * 3 * 2 * 1.82 * 64 / 640)
    assert expected(variants="eager,compile").low >= single_model.low + 3 * 2.5 + 5
    assert expected(device="cuda").low >= single_model.low + 3 * 2.5, "a GPU is timed twice: per call and back to back"
    assert expected(device="cluster:cpu") == single_model, "a node's CPU is timed as this one"
    assert expected(batch_size=64, replicates=1, max_seconds=5).high == 8 + 3 + 5


def test_expected_time_and_memory_of_one_tower() -> None:
    catalogue = catalog.read(Settings().catalog_dir)
    clip, timm = ModelName("open_clip:ViT-L-14"), ModelName("timm:resnet18")
    macs = catalogue.set_index("name").loc[clip, ["gmacs", "image_gmacs", "text_gmacs"]]
    calls_s = []
    for tower in ("whole", "image", "text"):
        request = spec(threads=8, tower=tower, batch_size=1000, models=clip)
        calls_s.append(needs.benchmark_s(request, [clip], catalogue, needs.Span(0, 0)).low - 3 * needs.READY_S.low)
    assert np.array(calls_s) / calls_s[0] == pytest.approx(macs.to_numpy(float) / macs["gmacs"])
    assert needs.memory(spec(tower="text", models=clip), [clip], catalogue) is None, "it is a quarter of the model's"
    both = needs.memory(spec(tower="image", models=(clip, timm)), [clip, timm], catalogue)
    assert both == replace(needs.memory(spec(), [timm], catalogue), unknown=1)


def test_expected_start_time_comes_from_earlier_starts() -> None:
    parts = Parts(starts_s=18, compilation_s=0, warmup_s=2, sampled_s=6, rest_s=1)
    rows = [benchmark_row("a", parts=parts, processes=3), benchmark_row("b")]
    assert needs.start_s(rows) == needs.Span(0.7 * 6, 1.5 * 6)
    assert needs.start_s([benchmark_row("a")]) == needs.START_S


CHANGES = [{"num_classes": 10}, {"in_chans": 4}, {"model_kwargs": '{"depth": 2}'}]


@pytest.mark.parametrize("changed", CHANGES)
def test_changed_model_has_no_published_speed_and_no_estimate(changed: dict[str, object], tmp_path: Path) -> None:
    published = {"model": ["m"], "mode": ["inference"], "image_size": ["224"], "samples_per_s": [800.0]}
    table = pd.DataFrame(published | {"batch_size": [256], "setup": ["GPU, amp"]})
    assert len(published_speeds.beside([benchmark_row("m")], table)) == 1
    assert published_speeds.beside([benchmark_row("m", **changed)], table).empty
    catalogue = catalog.read(write_catalogue(tmp_path / "catalog"))
    names = [ModelName("timm:resnet18")]
    assert needs.memory(spec(batch_size=8), names, catalogue) is not None
    assert needs.memory(spec(batch_size=8, **changed), names, catalogue) is None


@pytest.mark.parametrize("changed", CHANGES)
def test_catalogue_and_roofline_omit_timings_of_changed_models(changed: dict[str, object], store: Store) -> None:
    rows = [
        benchmark_row("resnet18", latency_ms=5.0, intensity=9.0, **changed),
        benchmark_row("resnet18", intensity=9.0),
    ]
    run_id = queue_benchmark(store, "resnet18")
    finish(store, run_id, list(rows))
    (line,) = stored.of_run(store.run(run_id), rows)
    assert stored.table([line])["latency_ms"].item() == 20.0
    assert rates.models(store)["latency_ms"].to_list() == [20.0]
    frame = by_model.of_run(store.run(run_id), rows, "timm:resnet18")
    assert by_model.settings(frame).nunique() == 2


def test_row_of_an_earlier_attempt_has_its_own_date(store: Store) -> None:
    rows = [benchmark_row("a", intensity=9.0, date="2026-11-01T10:00:00+00:00"), benchmark_row("b", intensity=9.0)]
    run_id = queue_benchmark(store, "a", "b")
    finish(store, run_id, list(rows))
    run = store.run(run_id)
    dates = [str(by_model.of_run(run, rows, row.name)["date"].item().date()) for row in rows]
    assert dates == ["2026-11-01", "2026-11-20"]
    assert rates.models(store)["date"].to_list() == dates
    lines = stored.of_run(run, rows)
    assert [date in source for source, date in zip(stored.table(lines)["measured"], dates, strict=True)] == [True] * 2


def test_disturbed_timing_is_shown_only_if_there_is_no_other(store: Store) -> None:
    """The second timing is the latest undisturbed one: a single process is not a disturbance."""
    timings: tuple[tuple[float, tuple[Flag, ...]], ...] = (
        (20.0, ()),
        (21.0, ("single_process",)),
        (90.0, ("contended",)),
        (80.0, ("unstable", "drifting")),
    )
    runs = []
    for latency, flags in timings:
        run_id = queue_benchmark(store, "a")
        rows_of_run = [benchmark_row("a", latency_ms=latency, flags=flags, intensity=9.0)]
        rows_of_run += [benchmark_row("b", latency_ms=latency, flags=("throttled",), intensity=9.0)]
        finish(store, run_id, list(rows_of_run))
        runs.insert(0, (store.run(run_id), Path(), rows_of_run))
    latest = stored.latest(stored.of_run(run, run_rows) for run, _, run_rows in runs)
    assert latest[["name", "latency_ms", "flags"]].to_numpy().tolist() == [
        ["timm:b", 80.0, "throttled"],
        ["timm:a", 21.0, "single process"],
    ]
    assert latest["measured"].to_list() == [
        "run 4, 2026-11-20, torch 2.15.0, throttled",
        "run 2, 2026-11-20, torch 2.15.0, single process",
    ]
    points = rates.models(store).set_index("model")["latency_ms"]
    assert points.to_dict() == {"a": 21.0, "b": 80.0}
    ((_, compared),) = by_setting(store, runs, ["timm:a", "timm:b"])
    assert [line.row.latency_ms for line in compared] == [21.0, 80.0]
    no_counts = pd.DataFrame({"context_length": []}, index=pd.MultiIndex.from_arrays([[], []]))
    speeds = estimates.of_model([], latest, no_counts, "timm:b", "224")
    assert speeds["source"].to_list() == ["measured, throttled"]


def test_texts_of_another_length_are_no_speed_of_a_model(store: Store) -> None:
    for tokens, latency in ((77, 40.0), (16, 20.0)):
        run_id = queue_benchmark(store, "open_clip:ViT-B-32", context_length=tokens)
        finish(
            store, run_id, [benchmark_row("ViT-B-32", context_length=tokens, latency_ms=latency, library="open_clip")]
        )
    timed, index = estimates.timings(store), pd.MultiIndex.from_tuples([("open_clip:ViT-B-32", "224")])
    work = pd.DataFrame({"context_length": [77.0]}, index=index)
    assert list(estimates.of_model([], timed, work, "open_clip:ViT-B-32", "224")["latency_ms"]) == [40.0]


def test_setting_with_most_timings_comes_first() -> None:
    one, two = stored.Setting(batch_size=1), stored.Setting(batch_size=8)
    lines = [(name, "224", None, setting, 1.0, 1e3, "", "") for name, setting in (("a", one), ("a", two), ("b", two))]
    assert stored.settings(stored.latest([lines])) == [two, one]


def test_setting_has_the_type_of_its_products_and_the_threads_of_a_cpu_only(store: Store) -> None:
    run = store.run(queue_benchmark(store, "a"))
    assert stored.setting_of(run, benchmark_row("a", tower="image")) is None, "a tower is no whole model"
    for fields, dtype, threads in (
        ({}, "float32", 2),
        ({"tf32": True, "device": "cuda:0"}, "tf32", None),
        ({"tf32": True, "dtype": "bfloat16"}, "bfloat16", 2),
        ({"autocast_dtype": "float16"}, "float16", 2),
    ):
        setting = stored.setting_of(run, benchmark_row("a", **fields))
        assert setting
        assert (setting.dtype, setting.threads) == (dtype, threads)


def test_sizes_of_copies_are_read_in_megabytes() -> None:
    operations = ({"operation": "copy", "size": 256_000_000, "gb_per_s": 20.0}, {"operation": "matmul", "size": 2048})
    rows = [DeviceRow(device="cpu", dtype="float32", gflop_per_s=1.0, **operation) for operation in operations]
    table = rates.readable(frames.device(rows))
    assert list(table["at"]) == ["256 MB", "2,048 × 2,048"]
    assert list(table["what"]) == ["copy", "matmul float32"]


def test_shares_are_read_in_per_cent() -> None:
    rows = [benchmark_row("a", spread=0.06), benchmark_row("b", "compile", spread=None)]
    table = readable.table(frames.benchmark(rows), rows, [0.25, None])
    assert table["spread_percent"].to_list() == [6.0, pytest.approx(math.nan, nan_ok=True)]
    assert table["utilisation_percent"].to_list() == [25.0, pytest.approx(math.nan, nan_ok=True)]


@pytest.mark.parametrize("name", CONDITIONS)
def test_labels_of_timings_name_each_condition(name: str) -> None:
    default = stored.Setting()
    changed = replace(default, **{name: True if getattr(default, name) is False else "cold"})  # type: ignore[arg-type]
    assert changed.label != default.label
    assert name in by_model.SETTING_FORMATS
