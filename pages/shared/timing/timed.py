"""Show timings: the card of one row, captions and sources, and raw samples, cached per file."""

import re
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import streamlit as st

from engine.report.compare import timings
from engine.report.compare.timed import Timed
from engine.report.quantities import QUANTITIES, title
from engine.report.style import digits, duration
from engine.report.timings import rates, readable, samples
from engine.results import FLAGS, VERDICTS, BenchmarkRow, RecurrentRow, TimedRow
from engine.statistics import CONFIDENCE, NEEDED
from engine.store import Run
from engine.words import in_words, plural, sentence
from pages.shared import backend
from pages.shared.text import plain, show_error

GRAPHS = ("calls_captured", "unique_graphs", "graph_breaks", "unique_graph_breaks", "recompilations")


def card(
    row: TimedRow,
    name: str,
    *,
    values: Sequence[str],
    utilisation: float | None,
    conditions: Iterable[str],
    extra_values: Mapping[str, str] | None = None,
) -> None:
    """Draw everything known about one row.

    values: fields to show, in order. utilisation: FLOP utilisation as a share, or None if unknown. conditions: sizes
    and settings of this kind of timing; settings common to all timings are added. extra_values: by title.
    """
    with st.container(border=True):
        st.header(plain(name), anchor=False)
        if row.status != "ok":
            show_error(row.error, title=row.status.replace("_", " ").capitalize())
        with st.container(horizontal=True):
            _values(row, values, utilisation)
            for label, text in (extra_values or {}).items():
                st.metric(label, text, width="content")
        for flag in row.flags:
            st.markdown(f":orange-badge[:material/flag: {flag.replace('_', ' ')}] {plain(FLAGS[flag])}")
        if row.verdict:
            _verdict(row)
        st.caption(plain("; ".join(part for part in (*_device(row), *conditions, *_sampling(row)) if part)))
        if notes := (*row.notes, *_durations(row)):
            st.caption("  \n".join(plain(sentence(note)) for note in notes))


def _values(row: TimedRow, values: Sequence[str], utilisation: float | None) -> None:
    for column in values:
        if (value := getattr(row, column)) is not None:
            st.metric(title(column), digits(value), width="content", help=QUANTITIES[column].help)
        if column == "latency_ms" and row.samples:
            for q in NEEDED:
                name = f"p{q}_ms"
                st.metric(
                    title(name),
                    digits(getattr(row, name)),
                    readable.percentile(row, q) if getattr(row, name) is None else None,  # why it is missing
                    delta_color="off",
                    delta_arrow="off",
                    width="content",
                    help=QUANTITIES[name].help,
                )
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
    interval = readable.interval(row.speedup_low, row.speedup_high)
    ratio = f"{digits(row.speedup)} times as fast as {row.baseline} ({interval})"
    differs = f" They differ in {in_words(row.differs_in)}." if row.differs_in else ""
    assert row.verdict, "a row with a ratio has a verdict"
    st.markdown(plain(f"{row.verdict}{row.compared_in}: {ratio}. {VERDICTS[row.verdict]}{differs}"))


def _device(row: TimedRow) -> list[str]:
    device = f"{row.device} ({row.device_name})" if row.device_name else row.device
    threads = plural(row.threads, "thread") if row.threads else ""
    tf32, benchmark = ("on" if enabled else "off" for enabled in (row.tf32, row.cudnn_benchmark))
    return [device, threads, f"TF32 {tf32}", f"cuDNN benchmark {benchmark}"]


def _durations(row: TimedRow) -> list[str]:
    """Return notes on the variants that ran before the first call and on the duration of the timing's parts."""
    notes = []
    if row.first_call_after:
        earlier = ", ".join(row.first_call_after)
        notes.append(f"First call after {earlier} in the same process, which may have loaded shared kernels.")
    if row.parts and row.seconds is not None:
        notes.append(f"This row and those timed beside it took {duration(row.seconds)}: {readable.spent(row.parts)}.")
    return notes


def _sampling(row: TimedRow) -> list[str]:
    """Return the number of samples and processes, and the load of other programs during the timing."""
    parts = []
    if row.samples:
        calls, processes = plural(row.calls_per_sample or 1, "call"), plural(row.processes, "process", "es")
        parts.append(f"{plural(row.samples, 'sample')} of {calls} in {processes}")
    if row.loop_ms is not None:
        parts.append(f"the timing loop itself takes {digits(row.loop_ms)} ms per call")
    if load := row.contention:
        if load.cpu_share is not None:
            parts.append(f"its threads ran {digits(100 * load.cpu_share)} % of the time")
        if load.neighbour_share is not None:
            parts.append(f"other programs used {digits(100 * load.neighbour_share)} % of the CPUs")
        if load.switches_per_s is not None:
            parts.append(f"{digits(load.switches_per_s)} involuntary switches/s")
    return parts


MANY_VERDICTS = 50
"""From this number on, the caption mentions false verdicts: at 99 % confidence, 50 contain 0.5 on average."""
WITH_CONFIDENCE = ("faster", "slower", "no difference", "undecided")
SAMPLES = (
    "Each point is a sample. In every round the {subject}s take turns in random order, with one or two samples per "
    "turn; no sample is dropped. Each panel is a fresh process; differences between panels show the spread between "
    "processes."
)


def source(run: Run) -> str:
    """Return the source of a value for hover texts: `run 7 on AMD EPYC`."""
    return f"run {run.id} on {run.environment.device_name if run.environment else run.spec.devices[0]}"


def utilisation(run: Run, rows: Sequence[BenchmarkRow | RecurrentRow]) -> list[float | None]:
    """Return the share (1 is all) of the device's measured rate that each row reaches, or None if unknown."""
    return rates.utilisation(rows, rates.rates(backend.store()), run.host)


def verdicts(frame: pd.DataFrame) -> None:
    """Explain the verdicts of a table and, if there are many, how many may be false."""
    present = [verdict for verdict in VERDICTS if (frame["verdict"] == verdict).any()]
    lines = [f"**{verdict}**: {plain(VERDICTS[verdict])}" for verdict in present]
    if differing := dict.fromkeys(name for names in frame["differs_in"] for name in re.split("[;,] ", names) if name):
        lines.append(f"Here the rows differ in {in_words(differing)}.")
    count = int(frame["verdict"].isin(WITH_CONFIDENCE).sum())
    if count >= MANY_VERDICTS:
        expected = (1 - CONFIDENCE) * count
        lines.append(f"Each verdict has 99 % confidence, so about {expected:.0f} of {count} verdicts may be false.")
    st.caption("  \n".join(lines))


@st.cache_data(max_entries=32, show_spinner="Comparing samples", hash_funcs=backend.BY_VERSION)
def ratios(pairs: Sequence[tuple[Timed, Timed]], metric: str, seed: int) -> pd.DataFrame:
    """Return the ratios of pairs of rows, as `timings.ratios` does."""
    return timings.ratios(pairs, metric, seed=seed)


def read(run: Run, row: TimedRow) -> pd.DataFrame | None:
    """Return all samples in a row's file. If it is missing or damaged, show a message and return None."""
    return backend.read_file(run, row.samples_file, samples.read, tuple(samples.place(row)))
