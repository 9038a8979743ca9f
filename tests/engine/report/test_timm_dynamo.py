"""Exports of timings in the formats of timm's benchmark.py and PyTorch's dynamo benchmark, column for column."""

import json

import pandas as pd
import pytest

from engine.report import frames
from engine.report.export import tables, timm_dynamo
from engine.results import BenchmarkRow, Contention
from tests.support.page import benchmark_row

# columns as written by timm's benchmark.py (bench=both, with detail, `error` for a failed model) and dynamo's common.py
TIMM = (
    "model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,infer_gmacs,infer_macts,"
    "train_samples_per_sec,train_step_time,train_fwd_time,train_bwd_time,train_opt_time,train_batch_size,"
    "train_img_size,param_count,error"
)
GRAPHS = "calls_captured,unique_graphs,graph_breaks,unique_graph_breaks"
PERFORMANCE = (
    "dev,name,batch_size,speedup,abs_latency,compilation_latency,compression_ratio,eager_peak_mem,dynamo_peak_mem,"
    + GRAPHS
)


def failed(model: str, variant: str = "eager", **fields: object) -> BenchmarkRow:
    missing = {"latency_ms": None, "samples_per_s": None, "speedup": None, "verdict": None, "process_peak_mb": None}
    return benchmark_row(model, variant, **({"status": "error", "error": "no"} | missing | fields))


def lines(frame: pd.DataFrame) -> list[str]:
    return tables.to_csv(frame).splitlines()


def test_timm_joins_modes_per_model_and_sorts_by_throughput() -> None:
    parts = {"forward_ms": 40.0004, "backward_ms": 80.1236, "optimizer_ms": 13.2}
    rows = [
        benchmark_row("slow", samples_per_s=100.126, latency_ms=79.8994, image_size="160x224"),
        benchmark_row("fast", samples_per_s=900.0, latency_ms=8.8888),
        benchmark_row("slow", mode="training", samples_per_s=30.0, latency_ms=133.3333, batch_size=4, **parts),
        benchmark_row("slow", "compile"),
        failed("broken"),
    ]
    assert lines(timm_dynamo.timm(rows)) == [
        TIMM,
        "fast,900.0,8.889,8,224,1.82,2.5,,,,,,,,11.69,",
        "slow,100.13,79.899,8,224,1.82,2.5,30.0,133.333,40.0,80.124,13.2,4,224,11.69,",
        "broken,,,,,,,,,,,,,,11.69,no",
    ]
    towers = [benchmark_row("a", library="open_clip", tower=tower) for tower in ("image", "text")]
    assert len(timm_dynamo.timm(towers)) == 2
    both = [failed("a"), failed("a", mode="training", error="never")]
    assert list(timm_dynamo.timm(both)["error"]) == ["no; never"]


def test_timm_of_only_training_is_sorted_by_training_throughput() -> None:
    rows = [benchmark_row(name, mode="training", samples_per_s=speed) for name, speed in (("a", 1.0), ("b", 2.0))]
    assert list(timm_dynamo.timm(rows)["model"]) == ["b", "a"]


@pytest.mark.parametrize("requested", ["sweep", "1,2"])
def test_timm_of_a_sweep_has_a_line_per_batch_size(requested: str) -> None:
    swept = {"batch_size_requested": requested}
    rows = [benchmark_row("m", batch_size=size, samples_per_s=size, **swept) for size in (1, 2, 4)]
    rows += [benchmark_row("m", mode="training", batch_size=2, samples_per_s=0.5, **swept)]
    rows += [failed("m", batch_size=8, **swept), failed("m", mode="training", batch_size=16, **swept)]
    frame = timm_dynamo.timm(rows)
    assert list(frame["infer_batch_size"].fillna(0)) == [4, 2, 1, 8, 0]
    assert list(frame["train_batch_size"].fillna(0)) == [0, 2, 0, 0, 16]
    assert list(frame["train_samples_per_sec"].fillna(0)) == [0, 0.5, 0, 0, 0]
    assert list(frame["error"].fillna("")) == ["", "", "", "no", "no"]


def test_dynamo_file_of_performance_has_its_columns_and_values() -> None:
    graphs = {"calls_captured": 120, "unique_graphs": 2, "graph_breaks": 1, "unique_graph_breaks": 1}
    rows = [
        benchmark_row("m", process_peak_mb=300.0),
        benchmark_row("m", "compile", latency_ms=16.0, compile_cold_ms=28_500.0, process_peak_mb=600.0, **graphs),
        benchmark_row("broken"),
        failed("broken", "compile"),
    ]
    assert lines(timm_dynamo.dynamo(rows)) == [
        PERFORMANCE,
        "cpu,m,8,1.25,16.0,28.5,0.5,0.3,0.6,120,2,1,1",
        "cpu,broken,8,,,,,0.3,,,,,",
    ]


def test_dynamo_prefers_device_memory_to_process_memory() -> None:
    rows = [benchmark_row("m", device_peak_mb=2000.0), benchmark_row("m", "compile", device_peak_mb=1000.0)]
    (line,) = timm_dynamo.dynamo(rows).to_dict("records")
    assert (line["eager_peak_mem"], line["dynamo_peak_mem"], line["compression_ratio"]) == (2.0, 1.0, 2.0)
    trained = [benchmark_row("m", v, mode="training", device_peak_mb=5000.0) for v in ("eager", "compile")]
    assert list(timm_dynamo.dynamo([*rows, *trained])["eager_peak_mem"]) == [2.0, 5.0]


def test_dynamo_names_include_the_variant_if_there_are_several() -> None:
    rows = [benchmark_row("m", library="open_clip"), *(benchmark_row("m", v) for v in ("compile", "trace"))]
    assert list(timm_dynamo.dynamo(rows)["name"]) == ["m [inference, compile]", "m [inference, trace]"]
    assert list(timm_dynamo.dynamo([benchmark_row("m", "trace", library="open_clip")])["name"]) == ["open_clip:m"]
    assert list(timm_dynamo.dynamo([benchmark_row("m", "trace", device="cuda:1")])["dev"]) == ["cuda"], (
        "as in PyTorch's files"
    )


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"accuracy": "pass"}, "pass"),
        ({"accuracy": "fail_accuracy"}, "fail_accuracy"),
        ({"status": "out_of_memory"}, "OOM"),
        ({"status": "timeout"}, "timeout"),
        ({"status": "error"}, "fail_to_run"),
    ],
)
def test_dynamo_file_of_accuracy_has_its_columns_and_values(fields: dict[str, object], answer: str) -> None:
    rows = [benchmark_row("m", "compile", purpose="accuracy", unique_graphs=1, **fields)]
    assert lines(timm_dynamo.dynamo(rows)) == [f"dev,name,batch_size,accuracy,{GRAPHS}", f"cpu,m,8,{answer},,1,,"]


def test_dynamo_file_of_tolerance_has_its_columns_and_values() -> None:
    deviations = {"max_deviation": 0.25, "mean_deviation": 0.125, "std_deviation": 0.5}
    rows = [benchmark_row("m", "compile", purpose="tolerance", **deviations)]
    assert lines(timm_dynamo.dynamo(rows)) == ["dev,name,batch_size,max,mean,std", "cpu,m,8,0.25,0.125,0.5"]


@pytest.mark.parametrize(
    "frame", [timm_dynamo.timm([]), timm_dynamo.dynamo([]), timm_dynamo.full(frames.benchmark([]), [])]
)
def test_export_of_no_rows_is_a_header(frame: pd.DataFrame) -> None:
    assert len(lines(frame)) == 1


def test_full_table_has_every_field() -> None:
    contention = Contention(cpu_share=0.8, neighbour_share=None, switches_per_s=12.0)
    row = benchmark_row("m", flags=("unstable", "contended"), contention=contention, unique_graphs=3)
    frame = frames.benchmark([row, failed("n")])
    fields = set(BenchmarkRow.model_fields) - {"contention"}
    assert set(frame.columns) == fields | {"cpu_share", "neighbour_share", "switches_per_s"}
    first = frame.iloc[0]
    assert (first["cpu_share"], first["switches_per_s"]) == (0.8, 12.0)
    assert first["flags"] == "unstable; contended"
    assert first["process_medians_ms"] == "19.5; 20.0; 20.4"
    assert frame["latency_ms"].isna().tolist() == [False, True]
    assert timm_dynamo.full(frame, [0.25, None])["utilisation"].fillna(-1).tolist() == [0.25, -1]
    lines_of_json = json.loads(tables.to_json(frame))
    assert (lines_of_json[0]["unique_graphs"], lines_of_json[1]["latency_ms"]) == (3, None)
