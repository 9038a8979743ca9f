"""Compare the timings of several runs, or the rows of one run: ratios with intervals and verdicts."""

from collections.abc import Mapping, Sequence

import streamlit as st

from engine.report.compare import timings
from engine.report.compare.rows import APART
from engine.report.compare.timed import Timed, timed_rows
from engine.report.compare.timings import METRICS, MOST
from engine.report.figures import speed
from engine.report.style import duration
from engine.results import FLAGS
from engine.store import Run, Store
from engine.words import in_words, numbered_runs, plural, shortened
from pages.shared import backend, rerun
from pages.shared.chart.chart import chart, choice
from pages.shared.runs import comparison_link, launch
from pages.shared.table import download_table, results_table
from pages.shared.text import plain
from pages.shared.timing import timed

ALIKE, ALL = "matching rows", "all with one row"
COLUMNS = (
    *("model", "run", "variant", "ms", "baseline_ms", "speedup", "speedup_low", "speedup_high", "verdict"),
    *("differs_in", "image_size", "mode", "batch_size", *APART, "flags", "baseline_flags", "note"),
)
SPEEDUP = (
    "In each process, the ratio is the baseline's median / the row's median. The speed-up is the geometric mean of "
    "these ratios. It can differ from the ratio of the two times, because each time is a median over processes."
)
BETWEEN = (
    " Rows of different runs, and different models and sizes of one run, were timed one after the other. They get a "
    "verdict only if their requests took at least 3 turns each on one host; then the medians of whole runs are "
    "compared. Otherwise the interval does not include changes of the machine in between."
)


def draw(runs: Sequence[Run]) -> None:
    """Draw the comparison of timing runs of one kind."""
    by_run = {run.id: _timed_rows(backend.store(), run) for run in runs}
    all_rows = [entry for entries in by_run.values() for entry in entries]
    metrics = timings.metrics(entry.row for entry in all_rows)
    if not metrics:
        st.info("These runs have no timings to compare yet.", icon=":material/timer_off:")
        return
    st.header("Speed", anchor=False)
    with st.container(horizontal=True):
        help = "Compare rows with the same model and settings between runs, or all rows of all runs with one row."
        options = {"key": "compare_how", "bind": "query-params", "help": help}
        how = ALL if len(runs) == 1 else choice("Rows", [ALIKE, ALL], **options)
        metric = st.selectbox(
            "Metric", metrics, format_func=METRICS.__getitem__, key="compare_figure", bind="query-params"
        )
        if how == ALIKE:
            number = int(comparison_link.baseline([f"run {run.id}" for run in runs]).removeprefix("run "))
            pairs = timings.matching_pairs(by_run, number)
        else:
            usable = {entry.name: entry for entry in all_rows if timings.milliseconds(entry.row, metric) is not None}
            baseline = usable[comparison_link.baseline(list(usable), "Baseline row")]
            number = baseline.run
            pairs = [(baseline, entry) for entry in all_rows if entry is not baseline]
    if how == ALIKE:
        _draw_unmatched(by_run, pairs)
    elif not pairs:
        message = "There is only one timing. Choose a second run to compare with it."
        st.info(message, icon=":material/compare_arrows:")
    if pairs:
        draw_ratios(pairs, metric, seed=next(getattr(run.spec, "seed", 0) for run in runs if run.id == number))


@st.cache_resource(max_entries=16, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _timed_rows(store: Store, run: Run) -> list[Timed]:
    """Return the timed rows of a run with their repeats."""
    return timed_rows(store, run, backend.folder(run))


def _draw_unmatched(timed: Mapping[int, Sequence[Timed]], pairs: Sequence[tuple[Timed, Timed]]) -> None:
    """Draw the number of rows of each run without a row of the same model and settings in another run."""
    if not pairs:
        message = f"No two rows of different runs have the same model and settings. Choose “{ALL}” to compare them."
        st.info(message, icon=":material/info:")
    elif left_out := timings.unmatched(timed, pairs):
        st.caption(f"Rows without a matching row in another run are left out: {left_out}.")


def _draw_flags(shown: Sequence[Timed]) -> None:
    """Draw each flag of the timings, baselines included, with its meaning and the timings that have it."""
    names = list(dict.fromkeys(entry.name for entry in shown))
    for flag, meaning in FLAGS.items():
        flagged = list(dict.fromkeys(entry.name for entry in shown if flag in entry.row.flags))
        if flagged:
            subject = "All timings" if len(flagged) == len(names) else shortened(flagged)
            st.markdown(f":orange-badge[:material/flag: {in_words([flag])}] {plain(f'{subject}. {meaning}')}")


def draw_ratios(pairs: Sequence[tuple[Timed, Timed]], metric: str, *, seed: int) -> None:
    """Draw chart, table and downloads of the ratios. pairs: (baseline, other row)."""
    if len(pairs) > MOST:
        st.warning(f"Only the first {MOST} of {len(pairs)} ratios are shown. Choose fewer runs to see the others.")
    timings_shown = [entry for pair in pairs[:MOST] for entry in pair]
    ratios = timed.ratios(pairs[:MOST], metric, seed)
    drawn = ratios.dropna(subset=["speedup"])
    if len(drawn):
        prefix = drawn["run"].map("run {}: ".format) if ratios["run"].nunique() > 1 else ""
        figure = speed.speedups(drawn.assign(model=prefix + drawn["model"]), source=METRICS[metric])
        alt = "Speed-up of every row over its baseline, with 99 % intervals and verdicts"
        chart(figure, key="compare_speedups", alt=alt)
    shown = ratios.assign(
        **{name: [in_words(flags.split("; ")) for flags in ratios[name]] for name in ("flags", "baseline_flags")}
    )
    config = {
        "ms": st.column_config.NumberColumn(f"{METRICS[metric]} (ms)", format="%,.3g"),
        "baseline_ms": st.column_config.NumberColumn("Baseline (ms)", format="%,.3g"),
        "run": st.column_config.NumberColumn("Run", format="%d"),
        "note": st.column_config.Column("Note", width="large"),
    }
    named = shown.replace(["", "whole"], None).notna().any()
    columns = [name for name in dict.fromkeys(COLUMNS) if named[name]]
    results_table(shown, key="compare_ratios", alt="Ratios with intervals and verdicts", columns=columns, config=config)
    baselines = list(dict.fromkeys(ratios["baseline"]))
    caption = SPEEDUP + BETWEEN * any(not timings.side_by_side(*pair) for pair in pairs)
    st.caption(plain(f"Baseline: {baselines[0]}. " if len(baselines) == 1 else "") + caption)
    timed.verdicts(ratios)
    if lacking := [pair for pair, verdict in zip(pairs, ratios["verdict"], strict=False) if verdict == "needs 3 runs"]:
        _draw_turns(lacking, metric)
    _draw_flags(timings_shown)
    download_table(lambda: ratios, "compare-speed", key="compare_speed")


def _draw_turns(pairs: Sequence[tuple[Timed, Timed]], metric: str) -> None:
    """Draw the button that runs the requests of pairs again, in turns, until each has enough turns for a verdict."""
    runs, missing = timings.to_repeat(backend.store(), pairs, metric)
    if not runs:
        return
    if not missing:
        st.caption("The runs that a verdict needs are queued or running.")
        return
    took = duration(missing * sum(run.seconds() or 0.0 for run in runs))
    numbers, times = numbered_runs([run.id for run in runs]), plural(missing, "time")
    how_often = f"in turns, {times} each (about {took})" if len(runs) > 1 else f"({times}, about {took})"
    label = f"Repeat {numbers} {how_often}"
    help = "Start new runs of the same requests, one after the other, so that a change of the machine affects them all."
    disabled = not backend.may_start()
    pressed = st.button(label, key="compare_turns", icon=":material/repeat:", help=help, disabled=disabled)
    if pressed and (ids := launch.submit_sweep_once("turns", timings.in_turns(runs, missing))):
        rerun.show(f"{numbered_runs(ids).capitalize()} queued", ":material/schedule:")
