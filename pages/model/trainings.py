"""What was trained from a model here, and evaluated of it."""

from typing import Any

import pandas as pd
import streamlit as st

from engine.report.catalog import trainings
from engine.report.timings import by_model
from engine.specs.train import TrainSpec
from pages.model.runs_table import runs_table
from pages.shared import backend, download
from pages.shared.form_link import form_link

LATEST = 100
"""Trainings, and evaluations, that are looked through, newest first."""
SHARES = {
    "zeroshot_top1": "Zero-shot top-1",
    "linear_probe_top1": "Linear probe top-1",
    "image_to_text_r1": "Image → text R@1",
    "text_to_image_r1": "Text → image R@1",
}
COLUMNS = ("run", "date", "what", "state", *SHARES, "clip_val_loss", "data", "begins_with", "epochs", "seconds")


def draw(name: str) -> None:
    """All of it; where there is nothing, the way to change that."""
    frame = _found(name)
    if frame.empty:
        st.caption("Nothing was trained from this model here, nor evaluated of it.")
        spec = TrainSpec(model=name.partition(":")[2])
        form_link(spec, "Train it", icon=":material/model_training:", key="model_train")
        return
    config: dict[str, Any] = {
        share: st.column_config.NumberColumn(title, format="percent") for share, title in SHARES.items()
    }
    config |= {
        "what": st.column_config.Column("What"),
        "clip_val_loss": st.column_config.NumberColumn("Held-out loss", format="%.4g"),
        "begins_with": st.column_config.Column("Weights it began with"),
    }
    shown = frame.dropna(axis=1, how="all")
    runs_table(
        shown,
        key="model_trainings",
        alt="Trainings and evaluations of this model, newest first",
        columns=COLUMNS,
        config={column: look for column, look in config.items() if column in shown},
    )
    st.caption(
        "Of a training, the figures of its best epoch. They hold on the data of their own run: only runs on the same "
        "data compare."
    )
    with st.container(horizontal=True):
        stem = f"{name.partition(':')[2]}-trainings"
        download.table(lambda: frame, stem, key="model_trainings_file", label="trainings")


def _found(name: str) -> pd.DataFrame:
    store = backend.store()
    runs = [run for kind in ("train", "evaluate") for run in by_model.runs(store, name, kind, LATEST)]
    return trainings.of_runs([(run, store.rows(run.id)) for run in runs], name)
