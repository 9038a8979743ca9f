"""Compare trainings: their curves, and the values of their best epochs."""

from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd
import streamlit as st

from engine.datasets import captions_repeat
from engine.report.compare import values as compare_values
from engine.report.figures import training
from engine.results import Row, TrainRow
from engine.results.clip import best_epoch
from engine.specs.train import TrainSpec
from engine.store import Run
from engine.words import numbered_runs
from pages.clip.curves import FOLDED, SMOOTH, curve_points
from pages.compare import values as values_view
from pages.shared.chart.chart import chart
from pages.shared.form.spec_form import BIND
from pages.shared.rerun import fold
from pages.shared.table import download_table
from pages.shared.text import plain


def draw(runs: Sequence[Run], rows: Mapping[int, Sequence[Row]]) -> None:
    """Draw the comparison of trainings."""
    best = {run.id: _best(rows[run.id]) for run in runs}
    points = _points(runs)
    if points.empty:
        ended = all(run.state.ended for run in runs)
        text = "These runs ended without curves." if ended else "No curves yet. They appear after the first steps."
        st.info(text, icon=":material/show_chart:")
        return
    st.header("Curves", anchor=False)
    recall = not any(captions_repeat(row.notes) for run in runs for row in rows[run.id] if isinstance(row, TrainRow))
    clip_loss = all(isinstance(run.spec, TrainSpec) and run.spec.loss == "clip" for run in runs)
    _curves(points, _marks(best), recall=recall, clip_loss=clip_loss)
    with st.container(horizontal=True):
        download_table(partial(_points, runs), "compare-curves", key="compare_curves", label="curves")
    st.header("Best epochs", anchor=False)
    values = compare_values.of_runs({run: [row] if row else [] for run, row in best.items()})
    subjects = {f"run {run.id}": run.name or run.spec.summary for run in runs}
    chosen_by = [compare_values.metric_name(row.best_metric) for row in best.values() if row]
    first = (*chosen_by, *values_view.FIRST)
    values_view.side_by_side(
        values, subjects, how="difference", caption=values_view.CAPTIONS["difference"], first=first
    )


def _best(rows: Sequence[Row]) -> TrainRow | None:
    """Return the row of the best epoch; of the last epoch if none is marked as best; None without rows."""
    trained = [row for row in rows if isinstance(row, TrainRow)]
    return best_epoch(trained) or (trained[-1] if trained else None)


def _marks(best: Mapping[int, TrainRow | None]) -> dict[str, int]:
    """Return the step of each run's best model, by label. Runs with the same step share a label."""
    steps: dict[int, list[str]] = {}
    for run, row in best.items():
        if row and row.best:
            steps.setdefault(row.step, []).append(str(run))
    return {numbered_runs(numbers): step for step, numbers in steps.items()}


def _points(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the curves of all runs in one frame."""
    return pd.concat(map(curve_points, runs), ignore_index=True)


def _curves(points: pd.DataFrame, best: Mapping[str, int], *, recall: bool, clip_loss: bool) -> None:
    """Draw loss and accuracy as large charts and the other metrics as small ones, with one colour per run.

    recall: draw recall at 1 as a large chart if there is no zero-shot accuracy. clip_loss: as for `training.large`.
    """
    smooth = SMOOTH[
        st.segmented_control(
            "Smoothing (points)", list(SMOOTH), default="off", required=True, key="compare_smooth", bind=BIND
        )
    ]
    large = training.large(points, recall=recall, clip_loss=clip_loss)
    for column, panel in zip(st.columns(max(1, len(large))), large, strict=False):
        with column:
            figure = training.curves(points, panel, best=best, smooth=smooth)
            chart(figure, key=f"compare_curve_{panel.title}", alt=f"{panel.title} of all runs over optimizer steps")
    if (small := training.small(points, recall=recall)) and (section := fold(FOLDED, key="compare_more")):
        with section:
            alt = f"Small charts of all runs over optimizer steps: {', '.join(panel.title for panel in small)}"
            chart(training.overview(points, small, smooth=smooth), key="compare_overview", alt=alt)
            if key := training.overview_key(points, small):
                st.caption(plain(key))
