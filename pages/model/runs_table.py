"""Tables with one run per row. A click on a run's number opens the run."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared.table import results_table

FORMATS = {
    "date": ("Date (UTC)", "YYYY-MM-DD HH:mm"),
    "low_ms": ("Fastest process (ms)", "%.3g"),
    "high_ms": ("Slowest process (ms)", "%.3g"),
    "peak_gb": ("Peak (GB)", "%.3g"),
}


def runs_table(
    frame: pd.DataFrame, *, key: str, alt: str, columns: Sequence[str], config: Mapping[str, Any] | None = None
) -> None:
    """Draw a frame with a column `run`. config: as for results_table."""
    if (click := st.session_state.get(f"{key}_open")) is not None:
        st.switch_page("run/page.py", query_params={"run": click.label})
    column = st.column_config
    own: dict[str, Any] = {
        "run": column.ButtonColumn(
            "Run", help="Open this run.", pinned=True, width="small", type="tertiary", key=f"{key}_open"
        ),
    }
    for name, (heading, format) in FORMATS.items():
        make_column = column.DatetimeColumn if name == "date" else column.NumberColumn
        own[name] = make_column(heading, format=format)
    present = {name: own[name] for name in own if name in frame}
    shown = frame.assign(run=frame["run"].astype(str))
    results_table(shown, key=key, alt=alt, pinned="run", columns=columns, config=present | dict(config or {}))
