"""Results of a benchmark: the table of rows, charts, and one card per selected row."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from engine.published import speeds as published_speeds
from engine.report import frames
from engine.report.compare.rows import full_label
from engine.report.export import timm_dynamo
from engine.report.figures import speed
from engine.report.timings import estimates, readable, reliability, stored
from engine.results import VERDICTS, BenchmarkRow
from engine.roots import file_within, open_within
from engine.specs.fields.building import OPTIONS, changes
from engine.store import Run
from pages.shared import backend
from pages.shared.chart.chart import chart, tabs
from pages.shared.runs import comparison_link, view
from pages.shared.table import (
    PERCENT,
    csv_rows,
    download,
    download_rows,
    failures,
    in_percent,
    informative_columns,
    results_table,
)
from pages.shared.text import plain
from pages.shared.timing import speeds, timed

COLUMNS = (
    *("model", "library", "mode", "variant", "status", "accuracy", "latency_ms"),
    *("back_to_back_ms", "samples_per_s", "speedup", "verdict", "host"),
    *("flags", "batch_size", "image_size", "p90_ms", "spread_percent", "error", "speedup_low", "speedup_high"),
    *("differs_in", "gradient_deviation", "max_deviation", "mean_deviation", "std_deviation"),
    *("forward_ms", "backward_ms", "optimizer_ms"),
    *("p95_ms", "p99_ms", "mean_ms", "std_ms", "first_call_ms", "compile_cold_ms", "compile_warm_ms"),
    *("device_peak_mb", "process_peak_mb", "utilisation_percent", "joules_per_sample", "graph_breaks"),
    *("unique_graphs", *OPTIONS, "samples", "notes"),
)


def draw(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    """Draw the results of the rows so far."""
    if run.name == estimates.CALIBRATION and run.state.ended:
        _calibrated(run, rows)
    utilisation = timed.utilisation(run, rows)
    table = readable.table(frames.benchmark(rows), rows, utilisation)
    table.index = [full_label(row) for row in rows]
    # a narrow window would hide them behind the flags: a latency means little without the sizes that rows differ in
    sizes = (name for name in ("batch_size", "image_size") if table[name].nunique() > 1)
    first = (*COLUMNS[:4], *sizes)
    columns = list(dict.fromkeys((*first, *COLUMNS)))
    shown, alt = informative_columns(table, ("library", "mode")), "Timings, model by model"
    selected = results_table(shown, key=f"rows_{run.id}", alt=alt, columns=columns, selectable=True)
    with st.container(horizontal=True, vertical_alignment="center"):
        _downloads(run, rows)
        if rows[0].purpose == "performance":
            view.more_processes(run, min_samples=None, max_seconds=None)
            if sum(row.latency_ms is not None for row in rows) > 1:
                address = {comparison_link.RUNS: str(run.id)}
                icon, help = ":material/compare_arrows:", "Compare any two rows: ratios with intervals and verdicts."
                st.page_link("compare/page.py", label="Compare rows", icon=icon, help=help, query_params=address)
        failures(rows)
    _charts(run, rows)
    by_label = {full_label(row): (row, share) for row, share in zip(rows, utilisation, strict=True)}
    for label in selected:
        card(*by_label[label])
    if not selected:
        st.caption("Select rows to see percentiles, memory, compilation, conditions and what each flag means.")


def _calibrated(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    """Draw how reliable the estimates are on the device that a calibration timed."""
    settings = {setting.label for row in rows if (setting := stored.setting_of(run, row))}
    found = [device for device in speeds.devices(speeds.timed()) if device.fitted.label in settings]
    speeds.draw_warnings(found)
    for device in found:
        st.caption(plain(f"Estimated speeds on {reliability.error_sentence(device)}."))


def _downloads(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    exports: dict[str, tuple[str, Callable[[Sequence[BenchmarkRow]], pd.DataFrame]]] = {}
    if rows[0].purpose == "performance":
        exports["timm"] = "CSV as timm's benchmark.py", timm_dynamo.timm
    if any(row.baseline for row in rows):
        exports["dynamo"] = "CSV as PyTorch's dynamo", timm_dynamo.dynamo
    with download_rows(run):
        for format, (label, export) in exports.items():
            file = f"benchmark-{run.id}-{format}.csv"
            download(label, csv_rows(run, export), file, icon=None, key=f"csv_{format}_{run.id}")


def _charts(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    """Draw a tab per chart that has data."""
    frame = frames.benchmark(rows)
    has_time = frame["latency_ms"].notna()
    batch_sizes = frame[has_time].groupby(["library", "model", "mode", "variant"])["batch_size"].nunique()
    contents: dict[str, Any] = {}
    if any(has_time):
        contents["Latency"] = lambda: _latency(run, frame)
    if frame["speedup"].notna().any():
        contents["Speed-up"] = lambda: _speedup(run, rows, frame)
    elif frame["accuracy"].notna().any():
        contents["Passed"] = lambda: _summary(run, rows)
    if (batch_sizes > 1).any():
        contents["Batch sizes"] = lambda: _curves(run, frame)
    # a row that failed in a later process has the file of the earlier ones, but no value
    if with_samples := [row for row in rows if row.samples_file and row.samples]:
        contents["Samples"] = lambda: _samples(run, with_samples)
    if any(row.graph_break_reasons or row.recompile_reasons for row in rows):
        contents["Graph breaks"] = lambda: _breaks(rows)
    if any(row.slowest or row.trace_file for row in rows):
        contents["Slowest"] = lambda: _slowest(run, rows)
    if any(has_time) and (frame["library"] == "timm").any():
        contents["Published"] = lambda: _published(run, rows)
    tabs(contents, key=f"charts_{run.id}", bind="query-params")


def _latency(run: Run, frame: pd.DataFrame) -> None:
    alt = "Median latency of every row, with p90 and the medians of the single processes"
    chart(speed.latency(frame, source=timed.source(run)), key=f"latency_{run.id}", alt=alt)
    st.caption(
        "Bars show the median of the processes' medians, whiskers the p90 (needs 64 samples), ticks the median of each "
        "process. Hatched bars have flags, written beside them."
    )


def _speedup(run: Run, rows: Sequence[BenchmarkRow], frame: pd.DataFrame) -> None:
    alt = "Speed-up of every variant over its baseline, with its 99 % interval and verdict"
    chart(speed.speedups(frame, source=timed.source(run)), key=f"speedup_{run.id}", alt=alt)
    timed.verdicts(frame)
    _summary(run, rows)


def _summary(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    summary = readable.summary(rows)
    empty = [name for name in (*VERDICTS, "failed", "passed") if not summary[name].astype(bool).any()]
    if summary["geometric_mean"].isna().all():
        empty.append("geometric_mean")
    results_table(
        summary.drop(columns=empty), key=f"summary_{run.id}", alt="Summary of all models per variant", pinned="variant"
    )


def _curves(run: Run, frame: pd.DataFrame) -> None:
    alt = "Throughput against latency, one point per batch size"
    chart(speed.curves(frame, source=timed.source(run)), key=f"curves_{run.id}", alt=alt)
    st.caption("Each point is a batch size. Where a line is flat, a larger batch adds latency but no throughput.")


def _samples(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    """Draw every sample of one model, in the order of measurement. rows: those with samples."""
    groups: dict[str, list[BenchmarkRow]] = {}
    for row in rows:
        groups.setdefault(f"{row.name}, {row.mode}, batch {row.batch_size}", []).append(row)
    name = next(iter(groups))
    if len(groups) > 1:
        name = st.selectbox("Model", list(groups), key=f"raw_model_{run.id}", bind="query-params")
    chosen = groups[name]
    if (frame := timed.read(run, chosen[0])) is None:
        return
    of_mode, variants = frame[frame["mode"] == chosen[0].mode], [row.variant for row in chosen]
    alt = "Every sample over its round, one panel per process"
    chart(speed.raw(of_mode, variants, source=timed.source(run)), key=f"raw_{run.id}", alt=alt)
    st.caption(timed.SAMPLES.format(subject="variant"))


def _breaks(rows: Sequence[BenchmarkRow]) -> None:
    """Draw where and why torch.compile split the models, and why it compiled graphs again."""
    lines = [
        {"timing": full_label(row), "what": what, "reason": reason}
        for row in rows
        for what, reasons in (("graph break", row.graph_break_reasons), ("recompilation", row.recompile_reasons))
        for reason in reasons
    ]
    config = {"reason": st.column_config.TextColumn("Where and why", width="large")}
    st.dataframe(pd.DataFrame(lines), hide_index=True, column_config=config, alt="Graph breaks and recompilations")


SLOWEST: dict[str, Any] = {
    "name": st.column_config.TextColumn("Kernel or operator", width="large"),
    "calls": st.column_config.NumberColumn("Calls", format="%,.3g", help="Number of calls per call of the model."),
    "ms": st.column_config.NumberColumn(
        "Own time (ms)",
        format="%,.3g",
        help="Time per call of the model, without operators inside it, with the profiler's overhead.",
    ),
    "share": st.column_config.ProgressColumn("Share", format=PERCENT, min_value=0, max_value=100),
}


def _slowest(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    """Draw the slowest kernels or operators of one traced row, and the download of its trace."""
    traced = [row for row in rows if row.slowest or row.trace_file]
    by_label = {full_label(row): row for row in traced}
    label = st.selectbox("Timing", list(by_label), key=f"traced_{run.id}", bind="query-params")
    row = by_label[label or next(iter(by_label))]
    table = pd.DataFrame([operator.model_dump() for operator in row.slowest])
    st.dataframe(
        in_percent(table, ["share"]), hide_index=True, column_config=SLOWEST, alt="The slowest kernels or operators"
    )
    path, roots = backend.folder(run) / row.trace_file, backend.own_files(run)
    if row.trace_file and file_within(path, roots):

        def content() -> bytes:
            with open_within(path, roots) as file:
                return file.read()

        help = "Open it at ui.perfetto.dev, or in Chromium at chrome://tracing."
        download("Chrome trace", content, path.name, key=f"trace_{run.id}", help=help)


def _published(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    published = backend.published_speeds()
    setups = published_speeds.setups(published, rows)
    if not setups:
        st.caption("No published speeds of these models at this image size and in this mode.")
        return
    setup = st.selectbox("Published set-up", setups, key=f"setup_{run.id}", bind="query-params")
    frame = published_speeds.beside(rows, published)
    frame = frame[frame["setup"] == setup]
    alt = "Throughput on this machine against published throughput"
    chart(speed.against(frame, setup, backend.family_colours()), key=f"published_{run.id}", alt=alt)
    columns = ["model", "variant", "mode", "image_size", "batch_size", "here", "theirs", "their_batch_size", "times"]
    results_table(frame, key=f"published_table_{run.id}", alt="Throughput here and published", columns=columns)
    source = f"Published values: {published_speeds.PUBLISHER}; {setup}. Own values: {timed.source(run)}."
    st.caption(plain(f"{source} {published_speeds.SETTINGS}" if "NVIDIA" in setup else source))


VALUES = (
    *("latency_ms", "back_to_back_ms", "samples_per_s", "mean_ms", "std_ms"),
    *("forward_ms", "backward_ms", "optimizer_ms"),
    *("first_call_ms", "compile_cold_ms", "compile_warm_ms", "device_peak_mb", "process_peak_mb"),
    *("joules_per_sample", "gradient_deviation", "max_deviation", "mean_deviation", "std_deviation"),
)


def card(row: BenchmarkRow, utilisation: float | None) -> None:
    """Draw everything known about one row. utilisation: FLOP utilisation as a share, or None if unknown."""
    name = f"{row.library}:{row.model}" + (f", {row.tower} tower" if row.tower != "whole" else "")
    timed.card(
        row,
        f"{name}, {row.variant}, {row.mode}, batch {row.batch_size}",
        values=VALUES,
        utilisation=utilisation,
        conditions=_conditions(row),
        extra_values={"Accuracy check": row.accuracy.replace("_", " ")} if row.accuracy else None,
    )


def _conditions(row: BenchmarkRow) -> list[str]:
    """Return the settings that the result depends on."""
    return [
        f"batch {row.batch_size} (requested: {row.batch_size_requested})",
        f"{row.image_size} px" if row.image_size else "",
        f"{row.context_length} tokens" if row.context_length else "",
        changes(row),
        f"{row.precision}: weights {row.dtype or row.precision}"
        + (f", autocast {row.autocast_dtype}" if row.autocast_dtype else ""),
        row.memory_format.replace("_", " "),
        "deterministic" if row.deterministic else "not deterministic",
        f"{row.cache} cache",
        row.optimizer,
    ]
