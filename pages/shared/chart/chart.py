"""Draw plotly figures, tabs, choices, and plain text with a copy button, in the same way on all pages."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
import streamlit as st

from engine.report.style import COLOURS, GREY

TRACES = {"scatter", "bar", "heatmap", "treemap"}
"""Trace types that the bundle pages/static/plotly.min.js contains: those of frontend/plotly.js, and scatter."""

NOTHING = "Nothing to plot: no row has the values that this plot needs."
EMPTY: dict[str, Any] = {
    "height": 120,
    "xaxis": {"visible": False},
    "yaxis": {"visible": False},
    "annotations": [{"text": NOTHING, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}],
}
"""Layout of a figure without data. Plotly would draw axes with numbers that mean nothing."""

FOLDER = Path(__file__).parent


def component(name: str) -> Callable[..., Any]:
    """Return the function that draws the component. Its styles are not isolated: plotly adds styles to the page."""
    html, css, js = ((FOLDER / f"{name}.{part}").read_text(encoding="utf-8") for part in ("html", "css", "js"))
    return st.components.v2.component(name, html=html, css=css, js=js, isolate_styles=False)


# This is our own component, because st.plotly_chart loads all of plotly.js and draws each figure two or three times.
_draw = component("chart")
# st.code would load a highlighter of 1.5 MB even for plain text, which delays every page with a command by 0.5 s.
_draw_text = component("verbatim")


def chart(
    figure: go.Figure,
    *,
    key: str,
    alt: str,
    selected: Sequence[str] = (),
    on_select: Callable[[list[str]], None] | None = None,
    height: str = "",
    wide: Mapping[str, Any] | None = None,
    **config: Any,
) -> None:
    """Draw a figure.

    alt: text alternative for screen readers. selected: labels (`customdata[0]`) of the points drawn as selected.
    on_select: called with the labels of the points that the reader has selected. height: CSS length in place of the
    figure's height. wide: changes of the layout for a wide chart. config: options of plotly.js.
    Errors: ValueError for a trace type that the bundle of plotly.js does not contain.
    """
    if missing := {trace.type for trace in figure.data} - TRACES:
        names = ", ".join(sorted(missing))
        raise ValueError(f"no chart can draw {names} yet: add it to frontend/plotly.js and TRACES, then `make plotly`")
    content = figure.to_plotly_json() | {"alt": alt, "selectable": on_select is not None, "config": config}
    content |= {"height": height, "wide": wide}
    content["palette"] = [*COLOURS, GREY]  # the browser replaces these by the colours of the theme
    # Drop the figure's template, so that the theme of the page applies.
    content["layout"] = {name: value for name, value in content["layout"].items() if name != "template"}
    if not any(_length(trace) for trace in figure.data):
        content |= {"layout": EMPTY, "height": ""}
    labels = list(selected) if on_select else None
    # The labels are not part of the figure, so that the browser need not read the figure again for a new selection.
    encoded = f"{json.dumps(labels)}\n{pio.json.to_json_plotly(content)}".encode()
    _draw(data=encoded, key=key, on_selected_change=partial(_report, key, on_select))


def _length(trace: Any) -> int:
    """Return how many points, bars, cells or tiles a trace has."""
    values = next((trace[name] for name in ("z", "labels", "x", "y") if name in trace and trace[name] is not None), ())
    return len(values)


def _report(key: str, on_select: Callable[[list[str]], None] | None) -> None:
    """Call `on_select` with the labels of the selected points."""
    if on_select:
        on_select(list(st.session_state[key].selected or []))


def choice(label: str, options: Sequence[Any], **more: Any) -> Any:
    """Draw the choice of one of a few options, by default the first. more: arguments of st.segmented_control."""
    return st.segmented_control(label, options, **{"default": options[0], "required": True, **more})


def tabs(contents: Mapping[str, Callable[[], None]], *, key: str, **more: Any) -> None:
    """Draw one tab per entry and only the content of the open tab. more: arguments of st.tabs."""
    if not contents:
        return
    drawn = st.tabs(list(contents), key=key, on_change="rerun", **more)
    for tab, content in zip(drawn, contents.values(), strict=True):
        if tab.open:
            with tab:
                content()


def verbatim(text: str, *, key: str, at_end: bool = False) -> None:
    """Show a text with a copy button. A long one gets a scrollbar. at_end: show its end first, and follow new lines."""
    _draw_text(data={"text": text, "at_end": at_end}, key=key)
