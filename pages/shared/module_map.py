"""A model's modules as nested areas and as a table."""

import pandas as pd
import streamlit as st

from engine.report.figures import profile
from engine.report.quantities import title
from pages.shared.chart.chart import chart
from pages.shared.table import results_table

AREAS = ("gmacs", "mparams", "macts")


def draw(frame: pd.DataFrame, tag: str) -> None:
    """Both. frame: of frames.modules; tag: tells the widgets from others' on the page."""
    look = {"default": AREAS[0], "required": True, "key": f"area_{tag}", "label_visibility": "collapsed"}
    column = st.segmented_control("Area", AREAS, format_func=title, **look)
    chart(
        profile.treemap(frame, column),
        key=f"treemap_{tag}",
        alt=f"{title(column)} of every module, as nested areas",
    )
    columns = ["path", "type", "mparams", "gmacs", "macts", "calls"]
    results_table(
        frame, key=f"modules_{tag}", alt="Every module, outermost first", pinned="path", columns=columns, height=360
    )
