"""Timings of several runs, or all of one, over each other: ratios with intervals and verdicts, drawn and listed."""

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from engine.report.compare import timings
from engine.report.compare.timings import FIGURES, MOST, Timed
from engine.report.figures import speed
from engine.report.timings import readable
from engine.results import Row
from engine.store import Run
from pages.shared import backend, comparison_link
from pages.shared.chart.chart import chart
from pages.shared.comparison_link import BIND
from pages.shared.download import table
from pages.shared.table import results_table
from pages.shared.text import plain
from pages.shared.timing import view

ALIKE, ALL = "rows of the same", "all rows with one"
COLUMNS = (
    *("what", "model", "mode", "variant", "batch_size", "run", "ms", "baseline_ms", "speedup", "speedup_low"),
    *("speedup_high", "verdict", "differs_in", "flags", "note"),
)
SPEEDUP = "Speed-up: the mean of the processes' ratios of medians, baseline / other, from all kept samples."
BETWEEN = (
    " Different runs are compared by the medians of whole runs where each request has 3 runs or more on one host. "
    "Otherwise the interval does not include how much runs differ, and there is no verdict."
)


def draw(runs: Sequence[Run], rows: Mapping[int, Sequence[Row]]) -> None:
    """Compare the rows of runs of one kind that times."""
    store = backend.store()
    timed = {run.id: _timed_rows(backend.settings().store_url, store.revision(), run.id) for run in runs}
    every = [each for those in timed.values() for each in those]
    figures = timings.figures(each.row for each in every)
    if not figures:
        st.info("Nothing has been timed in these runs: there is nothing to compare yet.", icon=":material/timer_off:")
        return
    st.header("Speed", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        how = _how(len(runs))
        figure = st.selectbox("Of", figures, format_func=FIGURES.get, key="compare_figure", bind=BIND)
        if how == ALIKE:
            number = int(comparison_link.baseline([f"run {run.id}" for run in runs]).removeprefix("run "))
            pairs = timings.alike(timed, number)
        else:
            usable = {each.name: each for each in every if timings.milliseconds(each.row, figure) is not None}
            first = usable[comparison_link.baseline(list(usable), "Baseline row")]
            number = first.run
            pairs = [(first, each) for each in every if each is not first]
    if how == ALIKE:
        _unmatched(timed, pairs)
    if not pairs:
        return
    show(pairs, figure, seed=next(run.spec.seed for run in runs if run.id == number))


@st.cache_resource(max_entries=16, show_spinner=False)
def _timed_rows(url: str, revision: int, run_id: int) -> list[Timed]:
    """Return the timed rows of a run with their repeats, as of a revision of the store."""
    run = backend.store().run(run_id)
    return timings.timed_rows(backend.store(), run, backend.folder(run))


def _how(runs: int) -> str:
    """Like with like, or every row with one; of a single run, the latter."""
    if runs == 1:
        return ALL
    told = "Like with like, or every row of all runs with one row of your choice."
    return st.segmented_control(
        "Compare", [ALIKE, ALL], default=ALIKE, required=True, key="compare_how", bind=BIND, help=told
    )


def _unmatched(timed: Mapping[int, Sequence[Timed]], pairs: Sequence[tuple[Timed, Timed]]) -> None:
    """How many rows have none of their like."""
    matched = {id(each) for pair in pairs for each in pair}
    left = {run: [each for each in those if id(each) not in matched] for run, those in timed.items()}
    if not pairs:
        st.info(
            f"No row of one run is like a row of another. “{ALL}” compares them nonetheless.", icon=":material/info:"
        )
    elif parts := [f"{len(those)} of run {run}" for run, those in left.items() if those]:
        st.caption(f"Rows without their like in the runs compared are left out: {', '.join(parts)}.")


@st.cache_data(
    max_entries=32,
    show_spinner="Comparing samples",
    hash_funcs={Timed: lambda timed: (str(timed), timed.row.model_dump_json())},
)
def _over(pairs: Sequence[tuple[Timed, Timed]], figure: str, seed: int, written: Sequence[int]) -> pd.DataFrame:
    return timings.over(pairs, figure, seed=seed)


def _written(timed: Timed) -> int:
    """Return when its samples were: other samples are other ratios. 0 where they are not there."""
    return backend.modified_ns(timed.folder, timed.row.samples_file)


def show(pairs: Sequence[tuple[Timed, Timed]], figure: str, *, seed: int) -> None:
    """Ratios of each second row to the first of its pair: chart, table, what verdicts mean, files."""
    if len(pairs) > MOST:
        st.warning(f"The first {MOST} of {len(pairs)} ratios are shown: choose fewer runs to see the others.")
    found = _over(pairs[:MOST], figure, seed, [_written(each) for pair in pairs[:MOST] for each in pair])
    several = found["run"].nunique() > 1
    drawn = found.dropna(subset=["speedup"])
    if len(drawn):
        prefix = drawn["run"].map("run {}: ".format) if several else ""
        figure_ = speed.speedups(drawn.assign(model=prefix + drawn["model"]), source=FIGURES[figure])
        alt = "Speed-up of every row over its baseline, with 99 % intervals and verdicts"
        chart(figure_, key="compare_speedups", alt=alt)
    shown = found.assign(flags=[readable.words(flags.split("; ")) for flags in found["flags"]])
    config = {
        "ms": st.column_config.NumberColumn(f"{FIGURES[figure]} (ms)", format="%.3g"),
        "baseline_ms": st.column_config.NumberColumn("Baseline's (ms)", format="%.3g"),
        "run": st.column_config.NumberColumn("Run", format="%d"),
        "note": st.column_config.Column("Note", width="large"),
    }
    columns = [name for name in COLUMNS if name in shown and shown[name].replace("", None).notna().any()]
    results_table(shown, key="compare_ratios", alt="Ratios with intervals and verdicts", columns=columns, config=config)
    baselines = list(dict.fromkeys(found["baseline"]))
    told = SPEEDUP + BETWEEN * any(one.run != other.run for one, other in pairs)
    st.caption(plain(f"Baseline: {baselines[0]}. " if len(baselines) == 1 else "") + told)
    view.verdicts(found)
    with st.container(horizontal=True):
        table(lambda: found, "compare", key="compare_speed")
