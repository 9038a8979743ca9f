"""One timed row in full: figures with their units, flags in words, and the conditions it was timed under."""

import streamlit as st

from engine.report import readable
from engine.report.quantities import QUANTITIES, title
from engine.report.style import digits
from engine.results import BenchmarkRow
from engine.store import Run
from pages.components.text import plain

FIGURES = (
    *("latency_ms", "samples_per_s", "mean_ms", "std_ms", "forward_ms", "backward_ms", "optimizer_ms"),
    *("first_call_ms", "compile_cold_ms", "compile_warm_ms", "device_peak_mb", "process_peak_mb"),
    *("joules_per_sample", "max_deviation", "mean_deviation", "std_deviation"),
)
GRAPHS = ("calls_captured", "unique_graphs", "graph_breaks", "unique_graph_breaks")


def card(run: Run, row: BenchmarkRow, utilisation: float | None) -> None:
    """Everything known of one row. utilisation: a share, None where it cannot be told."""
    with st.container(border=True):
        name = f"{row.library}:{row.model}" + (f", {row.tower} tower" if row.tower != "whole" else "")
        st.subheader(plain(f"{name}, {row.variant}, {row.mode}, batch {row.batch_size}"), anchor=False)
        if row.status != "ok":
            st.error(plain(row.error), title=row.status.replace("_", " "), icon=":material/error:")
        _figures(row, utilisation)
        for flag in row.flags:
            st.markdown(f":orange-badge[:material/flag: {flag.replace('_', ' ')}] {plain(readable.FLAGS[flag])}")
        if row.verdict:
            _verdict(row)
        _conditions(row)
        for note in row.notes:
            st.caption(plain(note))


def _figures(row: BenchmarkRow, utilisation: float | None) -> None:
    with st.container(horizontal=True):
        for column in FIGURES:
            if (value := getattr(row, column)) is not None:
                st.metric(title(column), digits(value), width="content", help=QUANTITIES[column].help)
            if column == "latency_ms" and row.samples:
                for name in readable.LONG:
                    said = readable.percentile(row, int(name[1:])).removesuffix(" ms")
                    st.metric(title(f"{name}_ms"), said, width="content", help=QUANTITIES[f"{name}_ms"].help)
        if row.spread is not None:
            st.metric(title("spread_percent"), digits(100 * row.spread), width="content")
        if utilisation is not None:
            st.metric(title("utilisation_percent"), digits(100 * utilisation), width="content")
        elif row.latency_ms is not None:
            told = "Needs the device's own matmul rate in this data type (page Device) and a complete count of FLOPs."
            st.metric(title("utilisation_percent"), "–", width="content", help=told)
        for column in GRAPHS:
            if (value := getattr(row, column)) is not None:
                st.metric(title(column), f"{value:,}", width="content")
        if row.accuracy:
            st.metric("Accuracy check", row.accuracy.replace("_", " "), width="content")


def _verdict(row: BenchmarkRow) -> None:
    interval = f"{digits(row.speedup_low)} to {digits(row.speedup_high)}, 99 %"
    ratio = f"{digits(row.speedup)} times as fast as {row.baseline} ({interval})"
    differs = f" They differ in {readable.words(row.differs_in)}." if row.differs_in else ""
    st.markdown(plain(f"{row.verdict}: {ratio}. {readable.VERDICTS[row.verdict]}{differs}"))


def _conditions(row: BenchmarkRow) -> None:
    """What a result depends on and cannot be read without."""
    said = [
        f"{row.device} ({row.device_name})" if row.device_name else row.device,
        f"{row.threads} threads" if row.threads else "",
        f"batch {row.batch_size} (asked: {row.batch_size_requested})",
        f"{row.image_size} px" if row.image_size else "",
        f"{row.context_length} tokens" if row.context_length else "",
        f"{row.precision}: weights {row.dtype or row.precision}"
        + (f", autocast {row.autocast_dtype}" if row.autocast_dtype else ""),
        f"TF32 {'on' if row.tf32 else 'off'}",
        row.memory_format.replace("_", " "),
        f"cuDNN benchmark {'on' if row.cudnn_benchmark else 'off'}",
        "deterministic" if row.deterministic else "not deterministic",
        f"{row.cache} cache",
        row.optimizer,
    ]
    if row.samples:
        said.append(f"{row.samples:,} samples of {row.calls_per_sample or 1} calls in {row.processes} processes")
    if row.loop_ms is not None:
        said.append(f"the timing loop itself takes {digits(row.loop_ms)} ms per call")
    if found := row.contention:
        said.append(f"CPU share {digits(100 * found.cpu_share)} %")
        if found.neighbour_share is not None:
            said.append(f"neighbours {digits(100 * found.neighbour_share)} %")
        if found.switches_per_s is not None:
            said.append(f"{digits(found.switches_per_s)} involuntary switches/s")
    st.caption(plain("; ".join(part for part in said if part)))
