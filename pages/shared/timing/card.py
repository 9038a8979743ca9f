"""What the cards of all timed rows share: figures with their units, flags and verdicts in words, conditions."""

from collections.abc import Iterable, Mapping, Sequence

import streamlit as st

from engine.report.quantities import QUANTITIES, title
from engine.report.style import digits
from engine.report.timings import readable
from engine.results import FLAGS, VERDICTS, TimedRow
from pages.shared.text import duration, plain

GRAPHS = ("calls_captured", "unique_graphs", "graph_breaks", "unique_graph_breaks")


def card(
    row: TimedRow,
    name: str,
    *,
    figures: Sequence[str],
    utilisation: float | None,
    conditions: Iterable[str],
    further: Mapping[str, str] | None = None,
) -> None:
    """Everything known of one row.

    figures: the fields to show, in order; utilisation: a share, None where it cannot be told; conditions: what was
    timed, where every timing's own are added; further: metrics of this kind alone, by title.
    """
    with st.container(border=True):
        st.header(plain(name), anchor=False)
        if row.status != "ok":
            st.error(plain(row.error), title=row.status.replace("_", " "), icon=":material/error:")
        with st.container(horizontal=True):
            _figures(row, figures, utilisation)
            for label, said in (further or {}).items():
                st.metric(label, said, width="content")
        for flag in row.flags:
            st.markdown(f":orange-badge[:material/flag: {flag.replace('_', ' ')}] {plain(FLAGS[flag])}")
        if row.verdict:
            _verdict(row)
        st.caption(plain("; ".join(part for part in (*_where(row), *conditions, *_how(row)) if part)))
        for note in (*row.notes, *_took(row)):
            st.caption(plain(note))


def _figures(row: TimedRow, figures: Sequence[str], utilisation: float | None) -> None:
    for column in figures:
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


def _verdict(row: TimedRow) -> None:
    interval = f"{digits(row.speedup_low)} to {digits(row.speedup_high)}, 99 %"
    ratio = f"{digits(row.speedup)} times as fast as {row.baseline} ({interval})"
    differs = f" They differ in {readable.words(row.differs_in)}." if row.differs_in else ""
    st.markdown(plain(f"{row.verdict}{row.compared_in}: {ratio}. {VERDICTS[row.verdict]}{differs}"))


def _where(row: TimedRow) -> list[str]:
    device = f"{row.device} ({row.device_name})" if row.device_name else row.device
    threads = f"{row.threads} threads" if row.threads else ""
    tf32, tuned = ("on" if on else "off" for on in (row.tf32, row.cudnn_benchmark))
    return [device, threads, f"TF32 {tf32}", f"cuDNN benchmark {tuned}"]


def _took(row: TimedRow) -> list[str]:
    """Return what went before the first call, and where the time went."""
    notes = []
    if row.first_call_after:
        earlier = ", ".join(row.first_call_after)
        notes.append(f"First call after {earlier} in the same process, which may have loaded kernels it shares.")
    if row.parts and row.seconds is not None:
        notes.append(f"Everything timed side by side took {duration(row.seconds)}: {readable.spent(row.parts)}.")
    return notes


def _how(row: TimedRow) -> list[str]:
    """How it was timed, and who else used the machine."""
    said = []
    if row.samples:
        calls = row.calls_per_sample or 1
        each, processes = f"{calls:,} call{'s' * (calls != 1)}", f"{row.processes} process{'es' * (row.processes != 1)}"
        said.append(f"{row.samples:,} samples of {each} in {processes}")
    if row.loop_ms is not None:
        said.append(f"the timing loop itself takes {digits(row.loop_ms)} ms per call")
    if found := row.contention:
        if found.cpu_share is not None:
            said.append(f"CPU share {digits(100 * found.cpu_share)} %")
        if found.neighbour_share is not None:
            said.append(f"neighbours {digits(100 * found.neighbour_share)} %")
        if found.switches_per_s is not None:
            said.append(f"{digits(found.switches_per_s)} involuntary switches/s")
    return said
