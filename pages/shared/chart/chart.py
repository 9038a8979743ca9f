"""Charts as all pages draw them."""

from collections.abc import Callable, Mapping
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
import streamlit as st

from pages.shared.chart.component import component

TRACES = {"scatter", "bar", "heatmap", "treemap"}
"""What pages/static/plotly.min.js can draw: see frontend/plotly.js."""

# Not st.plotly_chart, which brings all of plotly.js and draws each figure two or three times: see CONTRIBUTING.md.
_draw = component("chart")


def chart(figure: go.Figure, *, key: str, alt: str, selectable: bool = False, **config: Any) -> list[str]:
    """Draw a figure. Returns the labels, in `customdata[0]`, of the points selected in it.

    alt: what it shows, for who cannot see it. selectable: whether points can be selected. config: of plotly.js.
    Errors: ValueError for a trace that the pages' bundle of plotly.js has not.
    """
    if lacking := {trace.type for trace in figure.data} - TRACES:
        raise ValueError(f"no chart can draw {', '.join(sorted(lacking))} yet: add it to frontend/plotly.js")
    shown = figure.to_plotly_json() | {"alt": alt, "selectable": selectable, "config": config}
    shown["layout"] = {name: value for name, value in shown["layout"].items() if name != "template"}  # the page's theme
    sent = pio.json.to_json_plotly(shown).encode()
    drawn = _draw(data=sent, key=key, on_selected_change=_nothing)
    return list(drawn.selected or [])


def _nothing() -> None:
    """What a component returns is named by its callbacks; the answer to a selection is the next run of the script."""


def tabs(contents: Mapping[str, Callable[[], None]], *, key: str, **more: Any) -> None:
    """One tab per content, of which only the open one is drawn; nothing where there is none. more: of st.tabs."""
    if not contents:
        return
    for tab, content in zip(
        st.tabs(list(contents), key=key, on_change="rerun", **more), contents.values(), strict=True
    ):
        if tab.open:
            with tab:
                content()
