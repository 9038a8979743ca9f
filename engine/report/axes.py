"""How charts of timings are laid out: margins, legends, and axes over decades."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

MARGIN = {"l": 8, "r": 8, "t": 8, "b": 8}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}
LETTER = 0.011
"""Of a chart's width, about what a letter beside a bar takes."""


def horizontal(figure: go.Figure, names: list[str], axis: str, *, each: int = 26) -> None:
    """Bars or points beside names, one below the other as in the table. each: pixels per name."""
    # on a phone, what is written beside the longest bar ends in the margin
    figure.update_layout(height=90 + each * len(names), margin=MARGIN | {"r": 28}, legend=LEGEND, uirevision=axis)
    figure.update_xaxes(title_text=axis, tickformat=",~g", automargin=True)
    # not in the order of the traces
    figure.update_yaxes(automargin=True, autorange="reversed", categoryorder="array", categoryarray=names)


def write_beside(figure: go.Figure, labels: Iterable[dict[str, Any]]) -> None:
    """Write a text to the right of each bar or point. labels: x, y, text and whatever else an annotation takes.

    All at once: plotly checks every annotation again for each one that is added, so that 300 bars took seconds.
    """
    look = {"showarrow": False, "xanchor": "left"}
    figure.update_layout(annotations=[*figure.layout.annotations, *(look | label for label in labels)])


def log(name: str, values: "pd.Series[Any]") -> dict[str, Any]:
    """An axis over decades, labelled at 1, 2, 5 where there are few."""
    decades = np.log10(values.max() / values.min()) if len(values) else 0
    ticks = {"dtick": 1} if decades > 2 else {"dtick": "D2"} if decades > 0.8 else {"nticks": 6}
    return {"title_text": name, "type": "log", "tickformat": ",~g", **ticks}


def room(end: float, written: str) -> float:
    """How far an axis that begins at 0 must go for what is written beside a bar that ends there."""
    return end / (1 - min(0.7, (len(written) + 12) * LETTER))
