"""Define the style of all charts: colours, shapes, margins, axes, and the format of numbers and names."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
SHAPES = ("circle", "diamond", "square", "cross", "triangle-up", "star", "x", "hexagon")
GREY = "#7B7F86"
TOWER_COLOURS = {"image": COLOURS[4], "text": COLOURS[1], "other": GREY}
INK = "#0E151C"
"""Colour of text on the colours of towers: at least 5.6:1 in both themes."""

Style = tuple[str, str]
"""Colour and marker shape."""

MARGIN = {"l": 8, "r": 8, "t": 8, "b": 8}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}


def family_styles(families: Sequence[str]) -> dict[str, Style]:
    """Return the style of each family. families: all of the catalogue, so that each looks the same on every page."""
    return {family: style(rank) for rank, family in enumerate(families)}


def style(rank: int) -> Style:
    """Return the style of a series by its rank, the first 48 all different.

    Consecutive series differ in colour and in shape, for readers and printers that do not distinguish the colours.
    """
    cycle, place = divmod(rank, len(COLOURS))
    return COLOURS[place], SHAPES[(place + cycle) % len(SHAPES)]


def digits(value: float | None, significant: int = 3) -> str:
    """Return a number with three significant digits and thousands separators: 1234.5 is 1,230, 0.012345 is 0.0123."""
    return "–" if value is None or pd.isna(value) else f"{float(f'{value:.{significant}g}'):,.10g}"


def duration(seconds: float) -> str:
    """Return a duration in readable units: `0.8 s`, `42 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def text(value: Any) -> str:
    """Escape a name for Plotly, which interprets a few tags, and `%{x}` in hovers as a format."""
    return escape(str(value), quote=False).replace("%{", "%&#123;")


def compute(gflop_per_s: float) -> str:
    """Return a rate such as `112 GFLOP/s` or `1.23 TFLOP/s`."""
    return f"{digits(gflop_per_s / 1e3)} TFLOP/s" if gflop_per_s >= 1e3 else f"{digits(gflop_per_s)} GFLOP/s"


def bandwidth(gb_per_s: float) -> str:
    """Return a rate such as `23.4 GB/s` or `4.1 TB/s`."""
    return f"{digits(gb_per_s / 1e3)} TB/s" if gb_per_s >= 1e3 else f"{digits(gb_per_s)} GB/s"


def horizontal(figure: go.Figure, names: list[str], axis: str, *, row_px: int = 26) -> None:
    """Lay out horizontal bars or points, one name below the other in the order of `names`. row_px: pixels per name."""
    # the end of a long text may extend into the margin
    figure.update_layout(height=90 + row_px * len(names), margin=MARGIN | {"r": 28}, legend=LEGEND, uirevision=axis)
    figure.update_layout(minreducedheight=row_px)  # by default 64 px, so that the title covers the numbers of one bar
    figure.update_xaxes(title_text=axis, tickformat=",~g")
    # without categoryarray, plotly uses the order of the traces
    figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=names)


def write_beside(figure: go.Figure, labels: Sequence[tuple[float, str, str]], xshift: int = 5) -> float:
    """Write a text to the right of each bar or point, and return the end of the longest. The browser makes room for it.

    labels: end of the bar, name and text. All are added at once: plotly checks every annotation again for each new one,
    so that 300 bars took seconds.
    """
    look = {"showarrow": False, "xanchor": "left", "xshift": xshift}
    annotations = [look | {"x": x, "y": y, "text": text} for x, y, text in labels]
    figure.update_layout(annotations=[*figure.layout.annotations, *annotations])
    return max((x for x, _, _ in labels), default=0.0) or 1.0


def whole_ticks(values: "pd.Series[Any]") -> dict[str, Any]:
    """Return ticks at each whole number for an axis of so few that plotly would put ticks at halves.

    A single value is in its middle. Plotly would also draw the numbers before and after it, such as a step -1.
    """
    if values.nunique() == 1:
        return {"dtick": 1, "range": [values.iloc[0] - 0.5, values.iloc[0] + 0.5]}
    return {"dtick": 1} if values.empty or np.ptp(values) <= 10 else {}


def log(name: str, values: "pd.Series[Any] | NDArray[Any]") -> dict[str, Any]:
    """Return a logarithmic axis with this title."""
    return {"title_text": name, **log_ticks(values)}


def log_ticks(values: "pd.Series[Any] | NDArray[Any]") -> dict[str, Any]:
    """Return a logarithmic axis, with labels at 1, 2, 5 if it has few decades. A single value is in its middle."""
    decades = np.log10(values.max() / values.min()) if len(values) else 0
    if len(values) and not decades:  # plotly would draw two decades with few labels
        middle = float(np.log10(values.max()))
        return {"type": "log", "tickformat": ",~g", "dtick": "D2", "range": [middle - 0.5, middle + 0.5]}
    ticks = {"dtick": 1} if decades > 2.5 else {"dtick": "D2"} if decades > 0.8 or not decades else {"nticks": 6}
    return {"type": "log", "tickformat": ",~g", **ticks}
