"""Tables of results: names pinned, units in headers, three significant digits."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from engine.report.quantities import QUANTITIES, title


def column_config(frame: pd.DataFrame, pinned: str) -> dict[str, Any]:
    """Headers with units and formats for the columns of a frame."""
    config: dict[str, Any] = {}
    for column in frame.columns:
        if column in QUANTITIES:
            config[column] = st.column_config.NumberColumn(
                title(column), help=QUANTITIES[column].help, format="%.3g", alignment="right"
            )
        elif column in ("image_size", "calls", "batch_size"):
            config[column] = st.column_config.Column(title(column), alignment="right")
        else:
            width = "medium" if column == "model" else None
            config[column] = st.column_config.Column(title(column), pinned=column == pinned, width=width)
    return config


def results_table(
    frame: pd.DataFrame,
    *,
    key: str,
    alt: str,
    pinned: str = "model",
    columns: Sequence[str] | None = None,
    height: int | str = "auto",
    selectable: bool = False,
    on_select: Callable[[], None] | None = None,
) -> list[Any]:
    """Draw a table; the index labels of the rows selected in it, so that they stay right when the data changes."""
    shown = frame if columns is None else frame[[column for column in columns if column in frame]]
    options: dict[str, Any] = {}
    if selectable:
        options = {"on_select": on_select or "rerun", "selection_mode": "multi-row"}
    event = st.dataframe(
        shown,
        key=key,
        alt=alt,
        hide_index=True,
        height=height,
        column_config=column_config(shown, pinned),
        placeholder="–",
        **options,
    )
    if not selectable:
        return []
    return [shown.index[position] for position in event.selection.rows if position < len(shown)]
