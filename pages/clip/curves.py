"""Curves of trainings: their points, the choice of smoothing, and their charts."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from engine.report.figures import training
from engine.specs.train import TrainSpec
from engine.store import Run
from pages.shared import backend
from pages.shared.chart.chart import chart, choice
from pages.shared.rerun import fold
from pages.shared.text import plain

SMOOTH = {"off": 1, "5": 5, "20": 20, "100": 100}
"""Span of the moving average over a curve, in points, by the label of the choice."""
FOLDED = "Learning rate, throughput, gradients, memory, ranks"


PAUSE = 10
"""Keep the points of an active run for this multiple of the CPU time that reading them took, so that its updates leave
most of the server's time to other pages. A million points take 3 s."""


@dataclass(frozen=True)
class _Points:
    run: Run
    """The version of the run that they belong to."""
    frame: pd.DataFrame
    read_again_at: float
    """Time by time.monotonic() until which they are drawn although the active run has newer ones."""


def of_run(run: Run) -> pd.DataFrame:
    """Return the curves of a run as a frame of `training.frame`, which all sessions share. Do not change it."""
    return _points(run).frame


def _points(run: Run) -> _Points:
    """Return the points of a run, read again if it has changed."""
    kept = _kept(run.id, run.created_at)
    if not kept or (
        kept[0].run.revision != run.revision and (run.state.ended or time.monotonic() >= kept[0].read_again_at)
    ):
        started = time.thread_time()
        frame = training.frame({f"run {run.id}": backend.store().metrics(run.id)})
        kept[:] = [_Points(run, frame, time.monotonic() + PAUSE * (time.thread_time() - started))]
    return kept[0]


@st.cache_resource(max_entries=32, show_spinner=False)
def _kept(run_id: int, created_at: datetime) -> list[_Points]:
    """Return a list that keeps the points of a run, only those of one version. created_at: tells stores apart."""
    return []


def of_runs(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the curves of several runs in one frame."""
    return of_run(runs[0]) if len(runs) == 1 else pd.concat(map(of_run, runs), ignore_index=True)


def draw_smoothing(key: str) -> int:
    """Draw the choice of smoothing. Return the span of the moving average in points."""
    return SMOOTH[choice("Smoothing (points)", list(SMOOTH), key=key, bind="query-params")]


def draw_large(
    runs: Sequence[Run], best: Mapping[str, int], smooth: int, *, recall: bool, key: str, whose: str = ""
) -> None:
    """Draw loss and accuracy as large charts. With several runs, each has one colour.

    best: step of each run's best model, by the run's label. smooth: span of the moving average in points. recall: draw
    recall at 1 if there is no zero-shot accuracy. whose: added to each title in its text alternative.
    """
    figures = _figures(_drawn(runs), best, smooth, recall=recall, small=False)
    grid = st.grid(max(1, len(figures)), min_column_width=300)
    for title, figure in figures.items():
        with grid.cell():
            chart(figure, key=f"curve_{title}_{key}", alt=f"{title}{whose} over optimizer steps")


def draw_small(runs: Sequence[Run], smooth: int, *, recall: bool, key: str, whose: str = "") -> None:
    """Draw the other metrics as small charts in a collapsed section. The arguments are as for `draw_large`."""
    points = of_runs(runs)
    panels = training.small(points, recall=recall)

    def draw() -> None:
        for titles, figure in _figures(_drawn(runs), {}, smooth, recall=recall, small=True).items():
            chart(figure, key=f"overview_{key}", alt=f"Small charts{whose} over optimizer steps: {titles}")
        if styles := training.overview_key(points, panels):
            st.caption(plain(styles))

    if panels:
        fold(FOLDED, draw, key=f"more_{key}")


def _drawn(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the versions of runs that their points belong to. Figures are made again only if these change."""
    return tuple(_points(run).run for run in runs)


@st.cache_resource(max_entries=16, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _figures(
    runs: tuple[Run, ...], best: Mapping[str, int], smooth: int, *, recall: bool, small: bool
) -> dict[str, go.Figure]:
    """Return the large figures by title, or the overview of the small charts by all their titles.

    All sessions that follow these runs share the figures, because making them takes most of an update. Do not change
    them.
    """
    points, source = of_runs(runs), "" if len(runs) > 1 else f"run {runs[0].id}"
    if small:
        panels = training.small(points, recall=recall)
        titles = ", ".join(panel.title for panel in panels)
        return {titles: training.overview(points, panels, smooth=smooth, source=source)}
    clip_loss = all(isinstance(run.spec, TrainSpec) and run.spec.loss == "clip" for run in runs)
    panels = training.large(points, recall=recall, clip_loss=clip_loss)
    return {panel.title: training.curves(points, panel, smooth=smooth, best=best, source=source) for panel in panels}
