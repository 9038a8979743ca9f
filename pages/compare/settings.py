"""Settings of compared runs: warnings about important differences, settings that differ, settings that are the same."""

from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from engine.report.compare import settings
from engine.store import Run
from pages.shared.form.labels import default_hint
from pages.shared.rerun import fold
from pages.shared.runs import view
from pages.shared.table import download_table, results_table


def draw(runs: Sequence[Run]) -> None:
    """Draw the settings. runs: of one kind."""
    view.draw_differences(runs)
    frame = _name_defaults(settings.table(runs), runs)
    differing, equal = frame[~frame["same"]], frame[frame["same"]]
    st.header("Settings that differ", anchor=False)
    if differing.empty:
        st.caption("All settings and environments are the same.")
    else:
        _table(differing.drop(columns="same"), "compare_settings", "Settings and environment that differ")
    run_column = next(name for name in map(str, equal) if name.startswith("run "))
    values = equal[[*settings.COLUMNS, run_column]].rename(columns={run_column: "value"})
    draw = partial(_table, values, "compare_same", "Settings and environment that are the same")
    fold(f"{len(equal)} settings are the same", draw, icon=":material/drag_handle:", key="compare_alike")
    download_table(lambda: frame, "compare-settings", key="compare_settings", label="all settings")


def _name_defaults(frame: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Replace `not set` by the default of the setting, in the words of its form field."""
    spec = type(runs[0].spec)
    hints = {name.replace("_", " "): hint for name in spec.model_fields if (hint := default_hint(spec, name))}
    default = frame["what"].map(hints).where(frame["where"] == settings.REQUEST).fillna(settings.NOT_SET)
    columns = [frame[f"run {run.id}"] for run in runs]
    return frame.assign(**{str(column.name): column.where(column != settings.NOT_SET, default) for column in columns})


def _table(frame: pd.DataFrame, key: str, alt: str) -> None:
    results_table(frame, key=key, alt=alt, pinned="what", config={"where": st.column_config.Column("Where")})
