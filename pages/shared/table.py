"""Tables of results: names pinned, units in headers, three significant digits."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from engine.report.quantities import QUANTITIES, title

HELP = {
    "flags": "What is to be known before quoting a figure; select a row to read what each means.",
    "status": "ok, or why there are no figures; `error` at the end says more.",
    "verdict": "Of the interval of the ratio to the baseline, with a margin of 2 %.",
    "baseline": "What the speed-up refers to.",
    "differs_in": "Settings for which a variant is not comparable with its baseline.",
}


def column_config(frame: pd.DataFrame, pinned: str) -> dict[str, Any]:
    """Headers with units and formats for the columns of a frame."""
    config: dict[str, Any] = {}
    for column in frame.columns:
        if column in QUANTITIES and not pd.api.types.is_numeric_dtype(frame[column]):  # figures, or why there is none
            config[column] = st.column_config.TextColumn(title(column), help=QUANTITIES[column].help, alignment="right")
        elif column in QUANTITIES:
            config[column] = st.column_config.NumberColumn(
                title(column), help=QUANTITIES[column].help, format="%.3g", alignment="right"
            )
        elif column in HELP:
            width = "medium" if column == "flags" else None
            config[column] = st.column_config.Column(title(column), help=HELP[column], width=width)
        elif column in ("image_size", "calls", "batch_size", "processes", "samples", "rate", "at"):
            config[column] = st.column_config.Column(title(column), alignment="right")
        else:
            width = "medium" if column in ("model", "error") else None
            config[column] = st.column_config.Column(title(column), pinned=column == pinned, width=width)
    return config


def telling(table: pd.DataFrame, alike: Sequence[str]) -> pd.DataFrame:
    """A table of timings without columns that say nothing. alike: columns left out where all rows agree in them."""
    said = [name for name in table if table[name].replace(["", "–"], None).notna().any()]
    same = [name for name in alike if table[name].nunique() == 1 and len(table) > 1]
    plain = [name for name, value in (("status", "ok"), ("samples", 0)) if (table[name] == value).all()]
    return table[[name for name in said if name not in (*same, *plain)]]


def results_table(
    frame: pd.DataFrame,
    *,
    key: str,
    alt: str,
    pinned: str = "model",
    columns: Sequence[str] | None = None,
    height: int | str = "auto",
    selectable: bool = False,
    config: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Draw a table; answers the index labels of the rows selected in it. config: of columns that QUANTITIES does not
    know, or not as what they are here."""
    shown = frame if columns is None else frame[[column for column in columns if column in frame]]
    options: dict[str, Any] = {}
    if selectable:
        options = {"on_select": "rerun", "selection_mode": "multi-row"}
        _keep_selection(key, list(shown.index))
    event = st.dataframe(
        shown,
        key=key,
        alt=alt,
        hide_index=True,
        height=height,
        column_config=column_config(shown, pinned) | dict(config or {}),
        placeholder="–",
        **options,
    )
    if not selectable:
        return []
    return [shown.index[position] for position in event.selection.rows if position < len(shown)]


def _keep_selection(key: str, labels: list[Any]) -> None:
    """Ticks go by position: when rows come, leave or move, let them follow the rows they were set for."""
    before = st.session_state.get(f"{key}_labels")
    st.session_state[f"{key}_labels"] = labels
    if before in (None, labels) or not (state := st.session_state.get(key)):
        return
    places = {label: place for place, label in enumerate(labels)}
    ticked = [before[place] for place in state["selection"]["rows"] if place < len(before)]
    rows = [places[label] for label in ticked if label in places]
    st.session_state[key] = {"selection": {"rows": rows, "columns": [], "cells": []}}
