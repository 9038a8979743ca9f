"""The card of a timed row: its values with units, its flags and verdict in words, and its conditions."""

from collections.abc import Iterable, Mapping, Sequence

import streamlit as st

from engine.report.quantities import QUANTITIES, title
from engine.report.style import digits
from engine.report.timings import readable
from engine.results import FLAGS, VERDICTS, TimedRow
from pages.shared.text import duration, plain, plural

GRAPHS = ("calls_captured", "unique_graphs", "graph_breaks", "unique_graph_breaks")


def card(
    row: TimedRow,
    name: str,
    *,
    values: Sequence[str],
    utilisation: float | None,
    conditions: Iterable[str],
    further: Mapping[str, str] | None = None,
) -> None:
    """Draw everything known about one row.

    values: fields to show, in order. utilisation: FLOP utilisation as a share, or None if unknown. conditions: sizes
    and settings of this kind of timing; those of all timings are added. further: other values, by title.
    """
    with st.container(border=True):
        st.header(plain(name), anchor=False)
        if row.status != "ok":
            st.error(plain(row.error), title=row.status.replace("_", " "), icon=":material/error:")
        with st.container(horizontal=True):
            _values(row, values, utilisation)
            for label, text in (further or {}).items():
                st.metric(label, text, width="content")
        for flag in row.flags:
            st.markdown(f":orange-badge[:material/flag: {flag.replace('_', ' ')}] {plain(FLAGS[flag])}")
        if row.verdict:
            _verdict(row)
        st.caption(plain("; ".join(part for part in (*_device(row), *conditions, *_sampling(row)) if part)))
        for note in (*row.notes, *_durations(row)):
            st.caption(plain(note))


def _values(row: TimedRow, values: Sequence[str], utilisation: float | None) -> None:
    for column in values:
        if (value := getattr(row, column)) is not None:
            st.metric(title(column), digits(value), width="content", help=QUANTITIES[column].help)
        if column == "latency_ms" and row.samples:
            for name in readable.LONG:
                text = readable.percentile(row, int(name[1:])).removesuffix(" ms")
                st.metric(title(f"{name}_ms"), text, width="content", help=QUANTITIES[f"{name}_ms"].help)
    if row.spread is not None:
        st.metric(title("spread_percent"), digits(100 * row.spread), width="content")
    if utilisation is not None:
        st.metric(title("utilisation_percent"), digits(100 * utilisation), width="content")
    elif row.latency_ms is not None:
        help = "Needs the device's measured matmul rate in this data type (page Device) and a complete FLOP count."
        st.metric(title("utilisation_percent"), "–", width="content", help=help)
    for column in GRAPHS:
        if (value := getattr(row, column)) is not None:
            st.metric(title(column), f"{value:,}", width="content")


def _verdict(row: TimedRow) -> None:
    interval = f"{digits(row.speedup_low)} to {digits(row.speedup_high)}, 99 %"
    ratio = f"{digits(row.speedup)} times as fast as {row.baseline} ({interval})"
    differs = f" They differ in {readable.words(row.differs_in)}." if row.differs_in else ""
    st.markdown(plain(f"{row.verdict}{row.compared_in}: {ratio}. {VERDICTS[row.verdict]}{differs}"))


def _device(row: TimedRow) -> list[str]:
    device = f"{row.device} ({row.device_name})" if row.device_name else row.device
    threads = f"{row.threads} threads" if row.threads else ""
    tf32, tuned = ("on" if on else "off" for on in (row.tf32, row.cudnn_benchmark))
    return [device, threads, f"TF32 {tf32}", f"cuDNN benchmark {tuned}"]


def _durations(row: TimedRow) -> list[str]:
    """Return notes on what ran before the first call and how long the parts of the timing took."""
    notes = []
    if row.first_call_after:
        earlier = ", ".join(row.first_call_after)
        notes.append(f"First call after {earlier} in the same process, which may have loaded kernels it shares.")
    if row.parts and row.seconds is not None:
        notes.append(f"All rows timed side by side took {duration(row.seconds)}: {readable.spent(row.parts)}.")
    return notes


def _sampling(row: TimedRow) -> list[str]:
    """Return the number of samples and processes, and the load of other programs during the timing."""
    parts = []
    if row.samples:
        calls, processes = plural(row.calls_per_sample or 1, "call"), plural(row.processes, "process", "es")
        parts.append(f"{row.samples:,} samples of {calls} in {processes}")
    if row.loop_ms is not None:
        parts.append(f"the timing loop itself takes {digits(row.loop_ms)} ms per call")
    if load := row.contention:
        if load.cpu_share is not None:
            parts.append(f"CPU share {digits(100 * load.cpu_share)} %")
        if load.neighbour_share is not None:
            parts.append(f"other programs {digits(100 * load.neighbour_share)} %")
        if load.switches_per_s is not None:
            parts.append(f"{digits(load.switches_per_s)} involuntary switches/s")
    return parts
