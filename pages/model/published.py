"""What others have published of a model: accuracies and speeds, each with whose they are."""

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
    """Both. lines: of accuracies."""
    stem = name.partition(":")[2]
    st.header("Accuracies (%)", anchor=False)
    if lines.empty:
        st.caption("No accuracy of this model is shipped or imported here.")
    else:
        _accuracy_table(lines)
        with st.container(horizontal=True):
            download.table(lambda: lines, f"{stem}-accuracies", key="model_accuracies_file", label="accuracies")
    st.header("Speeds", anchor=False)
    speeds = backend.published_speeds()
    known = speeds[speeds["model"] == stem] if name.startswith("timm:") else speeds.head(0)
    if known.empty:
        st.caption("Nobody has published speeds of this model in a table that is shipped here.")
        return
    known = known.sort_values("samples_per_s", ascending=False)
    results_table(known, key="model_speeds", alt="Published throughput", columns=SPEEDS, pinned="setup")
    st.caption(
        plain(f"Somebody else's figures, on their machines: {published_speeds.PUBLISHER}. {published_speeds.SETTINGS}")
    )
    with st.container(horizontal=True):
        download.table(lambda: known, f"{stem}-published-speeds", key="model_speeds_file", label="speeds")


def _accuracy_table(lines: pd.DataFrame) -> None:
    wide = model.by_tag(lines)
    formats: dict[str, Any] = {
        tag: st.column_config.NumberColumn(tag, format="%.2f") for tag in wide.columns if tag not in ("label", "source")
    }
    formats["label"] = st.column_config.Column("On", pinned=True)
    formats["source"] = st.column_config.Column("Published by", width="medium")
    results_table(wide, key="model_accuracies", alt="Accuracy by data set and weights", pinned="label", config=formats)
    said = "; ".join(lines["source"].unique())
    st.caption(
        "A column per pretrained tag. Each figure is its publisher's own; figures of two are never combined. "
        + plain(f"Published by {said}.")
    )
