"""Draw the raw samples of a benchmark, and a comparison of any two variants."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.report.compare import timings
from engine.report.compare.timings import Timed
from engine.report.figures import speed
from engine.report.timings import readable, samples
from engine.results import VERDICTS, BenchmarkRow
from engine.specs import BenchmarkSpec
from engine.store import Run
from pages.shared import backend
from pages.shared.chart.chart import chart
from pages.shared.text import plain
from pages.shared.timing import timed


def raw(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    """Draw every sample of one model, in the order of measurement. rows: those with samples."""
    chosen = _choose(run, rows, "raw")
    frame = timed.read(run, chosen[0])
    if frame is None:
        return
    of_mode, variants = frame[frame["mode"] == chosen[0].mode], [row.variant for row in chosen]
    alt = "Every sample over its round, one panel per process"
    chart(speed.raw(of_mode, variants, source=f"run {run.id}"), key=f"raw_{run.id}", alt=alt)
    st.caption(timed.SAMPLES.format(subject="variant"))


def compare(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    """Draw the speed-up between any two variants of one model, computed from the samples. rows: those with samples."""
    chosen = _choose(run, rows, "compare")
    by_variant = {row.variant: row for row in chosen}
    if len(by_variant) < 2:
        st.caption("Only one variant of this model could be timed.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        baseline = st.selectbox("Baseline", list(by_variant), key=f"baseline_{run.id}")
        others = [variant for variant in by_variant if variant != baseline]
        other = st.selectbox("Compare with", others, key=f"other_{run.id}")
    frame = timed.read(run, by_variant[other])
    if frame is None:
        return
    assert isinstance(run.spec, BenchmarkSpec)
    folder, publishable = backend.folder(run), run.spec.publishable
    first, second = (Timed(run.id, folder, by_variant[variant], publishable) for variant in (baseline, other))
    (ratio,) = timings.ratios([(first, second)], samples.TOTAL, seed=run.spec.seed).to_dict("records")
    verdict, times = ratio["verdict"], speed.times
    with st.container(horizontal=True):
        st.metric("Speed-up", times(ratio["speedup"]), width="content")
        if pd.notna(low := ratio["speedup_low"]):  # absent without samples
            st.metric("99 % interval", readable.ends(low, ratio["speedup_high"], times), width="content")
        st.metric("Verdict", verdict, width="content", help=VERDICTS[verdict])
    difference = f" They differ in {ratio['differs_in']}." if ratio["differs_in"] else ""
    note = f" Note: {ratio['note']}." if ratio["note"] else ""
    ratio_text = f"Median of {baseline} / median of {other}: above 1, {other} is faster."
    st.caption(plain(f"{ratio_text} {VERDICTS[verdict]}{difference}{note}"))


def _choose(run: Run, rows: Sequence[BenchmarkRow], place: str) -> list[BenchmarkRow]:
    """Draw the choice of model, mode and batch size, and return the rows of all its variants. place: the tab."""
    groups: dict[str, list[BenchmarkRow]] = {}
    for row in rows:
        groups.setdefault(f"{row.library}:{row.model}, {row.mode}, batch {row.batch_size}", []).append(row)
    chosen = (
        st.selectbox("Model", list(groups), key=f"{place}_model_{run.id}") if len(groups) > 1 else next(iter(groups))
    )
    return groups[chosen]
