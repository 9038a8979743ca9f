"""Draw the parts of a model: its towers, and its modules as a treemap and as a table in the order of the tree."""

import pandas as pd
import streamlit as st

from engine.report.figures import profile
from engine.report.quantities import title
from pages.shared.chart.chart import chart, choice
from pages.shared.table import download_table, results_table

AREAS = ("gmacs", "mparams", "macts")
LEVELS = 3
"""Levels of the tree that are shown at first, as torchinfo does."""
COLUMNS = ("module", "type", "output", "kernel", "stride", "parameters", "gmacs", "macts", "calls")


def draw_towers(frame: pd.DataFrame, tag: str) -> None:
    """Draw chart and table of frames.towers. tag: part of the widget keys."""
    chart(profile.towers(frame), key=f"towers_{tag}", alt="Shares of image and text tower")
    results_table(frame, key=f"towers_table_{tag}", alt="Parameters, MACs and activations by tower", pinned="tower")


def draw(frame: pd.DataFrame, tag: str, stem: str) -> None:
    """Draw the treemap and the table of frames.modules. tag: part of the widget keys. stem: of the downloaded file."""
    column = choice("Area", AREAS, format_func=title, key=f"area_{tag}", label_visibility="collapsed")
    chart(profile.treemap(frame, column), key=f"treemap_{tag}", alt=f"Treemap of modules by {title(column)}")
    deepest = int(frame["depth"].max())
    with st.container(horizontal=True, vertical_alignment="bottom"):
        levels = deepest
        if deepest > 1:
            choices = list(range(1, deepest + 1))
            levels = st.selectbox("Levels", choices, min(LEVELS, deepest) - 1, key=f"levels_{tag}", width=100)
        download_table(lambda: frame, stem, key=f"modules_file_{tag}")
    shown = frame[frame["depth"] <= levels]
    shown = shown.assign(
        module=["\u2003" * depth + name for depth, name in zip(shown["depth"], shown["name"], strict=True)],
        parameters=(shown["mparams"] * 1e6).round().astype(int),
    )
    text, number = st.column_config.TextColumn, st.column_config.NumberColumn
    config = {
        "module": text("Module", pinned=True, width="medium"),
        "output": text("Output", help="Shape of the output of the last call, batch first."),
        "parameters": number(
            "Parameters", format="localized", help="Parameters of the module and of all modules inside it."
        ),
        "calls": number(
            "Calls",
            format="%d",
            width="small",
            help="A module that several others share is listed once, at its first place, with all its calls.",
        ),
    }
    columns = [name for name in COLUMNS if name not in ("output", "kernel", "stride") or shown[name].any()]
    alt = "Every module with its output shape, parameters and MACs, outermost first"
    results_table(shown, key=f"modules_{tag}", alt=alt, columns=columns, height=460, config=config)
