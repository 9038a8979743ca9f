"""Trainings and evaluations of a model."""

from typing import Any

import pandas as pd
import streamlit as st

from engine.report.catalog import trainings
from engine.report.timings import by_model
from engine.specs.train import TrainSpec
from pages.model.runs_table import runs_table
from pages.shared import backend, download
from pages.shared.form.link import form_link

LATEST = 100
"""Most trainings, and most evaluations, that are read, newest first."""
SHARES = {
    "zeroshot_top1": "Zero-shot top-1",
    "linear_probe_top1": "Linear probe top-1",
    "image_to_text_r1": "Image → text R@1",
    "text_to_image_r1": "Text → image R@1",
}
COLUMNS = ("run", "date", "what", "state", *SHARES, "clip_val_loss", "data", "begins_with", "epochs", "seconds")


def draw(name: str) -> None:
    """Draw the tab of trainings. Without any, draw a link to the form that trains the model."""
    frame = _trainings(name)
    if frame.empty:
        st.caption("No trainings or evaluations of this model yet.")
        spec = TrainSpec(model=name.partition(":")[2])
        form_link(spec, "Train it", icon=":material/model_training:", key="model_train")
        return
    config: dict[str, Any] = {
        share: st.column_config.NumberColumn(title, format="percent") for share, title in SHARES.items()
    }
    config |= {
        "what": st.column_config.Column("Request"),
        "clip_val_loss": st.column_config.NumberColumn("Held-out loss", format="%.4g"),
        "begins_with": st.column_config.Column("Initial weights"),
    }
    shown = frame.dropna(axis=1, how="all")
    runs_table(
        shown,
        key="model_trainings",
        alt="Trainings and evaluations of this model, newest first",
        columns=COLUMNS,
        config={column: options for column, options in config.items() if column in shown},
    )
    st.caption(
        "A training shows the values of its best epoch. Values depend on the data of the run: compare only runs on the "
        "same data."
    )
    with st.container(horizontal=True):
        stem = f"{name.partition(':')[2]}-trainings"
        download.table(lambda: frame, stem, key="model_trainings_file", label="trainings")


def _trainings(name: str) -> pd.DataFrame:
    store = backend.store()
    runs = [run for kind in ("train", "evaluate") for run in by_model.runs(store, name, kind, LATEST)]
    return trainings.of_runs([(run, store.rows(run.id)) for run in runs], name)
