"""What compared runs differ in: warnings of what matters, then every setting that differs; what is alike is folded."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.report.compare import settings
from engine.store import Run
from pages.shared.download import table
from pages.shared.fold import fold
from pages.shared.table import results_table
from pages.shared.text import plain


def draw(runs: Sequence[Run]) -> None:
    """Of runs of one kind."""
    if told := settings.warnings(runs):
        st.warning(
            "  \n".join(plain(sentence) for sentence in told),
            title="These runs differ in what their figures depend on",
            icon=":material/warning:",
        )
    frame = settings.table(runs)
    differing, alike = frame[~frame["same"]], frame[frame["same"]]
    st.header("Settings that differ", anchor=False)
    if differing.empty:
        st.caption("None: asked for and run alike.")
    else:
        _table(differing.drop(columns="same"), "compare_settings", "Settings and environment in which the runs differ")
    if part := fold(f"{len(alike)} settings are the same", icon=":material/drag_handle:", key="compare_alike"):
        same = alike.drop(columns="same")
        first = next(name for name in same if name.startswith("run "))
        with part:
            _table(
                same[[*settings.COLUMNS, first]].rename(columns={first: "value"}),
                "compare_same",
                "Settings and environment that all runs have in common",
            )
    with st.container(horizontal=True):
        table(lambda: frame, "compare-settings", key="compare_settings", label="all settings")


def _table(frame: pd.DataFrame, key: str, alt: str) -> None:
    results_table(frame, key=key, alt=alt, pinned="what", config={"where": st.column_config.Column("Where")})
