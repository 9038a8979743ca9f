"""Compare trainings: their curves, and the values of their best epochs."""

from collections.abc import Mapping, Sequence
from functools import partial

import streamlit as st

from engine.datasets import captions_repeat
from engine.report.compare import values as compare_values
from engine.results import Row, TrainRow
from engine.store import Run
from engine.words import numbered_runs
from pages.clip import curves
from pages.compare import values as values_view
from pages.shared.table import download_table


def draw(runs: Sequence[Run], rows: Mapping[int, Sequence[Row]]) -> None:
    """Draw the comparison of trainings."""
    best = {run.id: compare_values.best_row(rows[run.id]) for run in runs}
    if curves.of_runs(runs).empty:
        ended = all(run.state.ended for run in runs)
        text = "These runs ended without curves." if ended else "No curves yet. They appear after the first steps."
        st.info(text, icon=":material/show_chart:")
        return
    st.header("Curves", anchor=False)
    recall = not any(captions_repeat(row.notes) for run in runs for row in rows[run.id] if isinstance(row, TrainRow))
    smooth = curves.draw_smoothing("compare_smooth")
    curves.draw_large(runs, _marks(best), smooth, recall=recall, key="compare", whose=" of all runs")
    curves.draw_small(runs, smooth, recall=recall, key="compare", whose=" of all runs")
    download_table(partial(curves.of_runs, runs), "compare-curves", key="compare_curves", label="curves")
    st.header("Best epochs", anchor=False)
    values = compare_values.of_runs(best)
    subjects = {f"run {run.id}": run.name or run.spec.summary for run in runs}
    chosen_by = [compare_values.metric_name(row.best_metric) for rows in best.values() for row in rows]
    first = (*chosen_by, *values_view.FIRST)
    values_view.side_by_side(
        values, subjects, how="difference", caption=values_view.CAPTIONS["difference"], first=first
    )


def _marks(best: Mapping[int, Sequence[TrainRow]]) -> dict[str, int]:
    """Return the step of each run's best model, by label. Runs with the same step share a label."""
    steps: dict[int, list[str]] = {}
    for run, rows in best.items():
        for row in rows:
            if row.best:
                steps.setdefault(row.step, []).append(str(run))
    return {numbered_runs(numbers): step for step, numbers in steps.items()}
