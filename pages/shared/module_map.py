"""Draw a model's modules as a treemap and as a table."""

from typing import Any

import pandas as pd
import streamlit as st

from engine.report.figures import profile
from engine.report.quantities import title
from pages.shared.chart.chart import chart
from pages.shared.table import results_table

AREAS = ("gmacs", "mparams", "macts")


def draw(frame: pd.DataFrame, tag: str) -> None:
    """Draw the treemap and the table. frame: from frames.modules. tag: part of the widget keys, unique on the page."""
    options: dict[str, Any] = {
        "default": AREAS[0],
        "required": True,
        "key": f"area_{tag}",
        "label_visibility": "collapsed",
    }
    column = st.segmented_control("Area", AREAS, format_func=title, **options)
    chart(profile.treemap(frame, column), key=f"treemap_{tag}", alt=f"Treemap of modules by {title(column)}")
    columns = ["path", "type", "mparams", "gmacs", "macts", "calls"]
    results_table(
        frame, key=f"modules_{tag}", alt="Every module, outermost first", pinned="path", columns=columns, height=360
    )
