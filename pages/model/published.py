"""Published accuracies and speeds of a model, each with its source."""

from typing import Any

import pandas as pd
import streamlit as st

from engine.published import speeds as published_speeds
from engine.report.catalog import model
from pages.shared import backend, download
from pages.shared.table import results_table
from pages.shared.text import plain

SPEEDS = ("setup", "mode", "image_size", "batch_size", "samples_per_s")


def draw(name: str, lines: pd.DataFrame) -> None:
    """Draw both tables. lines: published accuracies of the model, one per row."""
    stem = name.partition(":")[2]
    st.header("Accuracies (%)", anchor=False)
    if lines.empty:
        st.caption("No published accuracy of this model is shipped or imported.")
    else:
        _accuracy_table(lines)
        with st.container(horizontal=True):
            download.table(lambda: lines, f"{stem}-accuracies", key="model_accuracies_file", label="accuracies")
    st.header("Speeds", anchor=False)
    speeds = backend.published_speeds()
    rows = speeds[speeds["model"] == stem] if name.startswith("timm:") else speeds.head(0)
    if rows.empty:
        st.caption("No shipped table has a published speed of this model.")
        return
    rows = rows.sort_values("samples_per_s", ascending=False)
    results_table(rows, key="model_speeds", alt="Published throughput", columns=SPEEDS, pinned="setup")
    st.caption(
        plain(f"Measured by others on their machines: {published_speeds.PUBLISHER}. {published_speeds.SETTINGS}")
    )
    with st.container(horizontal=True):
        download.table(lambda: rows, f"{stem}-published-speeds", key="model_speeds_file", label="speeds")


def _accuracy_table(lines: pd.DataFrame) -> None:
    wide = model.by_tag(lines)
    formats: dict[str, Any] = {
        tag: st.column_config.NumberColumn(tag, format="%.2f") for tag in wide.columns if tag not in ("label", "source")
    }
    formats["label"] = st.column_config.Column("Data set", pinned=True)
    formats["source"] = st.column_config.Column("Published by", width="medium")
    results_table(wide, key="model_accuracies", alt="Accuracy by data set and weights", pinned="label", config=formats)
    sources = "; ".join(lines["source"].unique())
    st.caption(
        "One column per pretrained tag. Each value is from one publisher; values of two publishers are not combined. "
        + plain(f"Published by {sources}.")
    )
