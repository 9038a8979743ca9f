"""Curves of trainings: their points and the choices of smoothing."""

import pandas as pd
import streamlit as st

from engine.report.figures import training
from engine.store import Run
from pages.shared import backend

SMOOTH = {"off": 1, "5": 5, "20": 20, "100": 100}
"""Span of the moving average over a curve, in points, by the label of the choice."""
FOLDED = "Learning rate, throughput, gradients, memory, ranks"


def curve_points(run: Run) -> pd.DataFrame:
    """Return the curves of a run as a frame of `training.frame`, cached by the run's revision."""
    return points_of(backend.settings().store_url, run.id, run.revision)


@st.cache_data(max_entries=32, show_spinner=False)
def points_of(store: str, run_id: int, revision: int) -> pd.DataFrame:
    """Return the curves of a run. store: URL of the store; it and the revision are keys of the cache."""
    return training.frame({f"run {run_id}": backend.store().metrics(run_id)})
