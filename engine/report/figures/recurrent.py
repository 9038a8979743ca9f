"""Draw timings of recurrent layers: forward beside backward, and both over a swept size."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine.report.compare.timings import SIZES
from engine.report.figures.speed import labels, median_bars, process_medians, with_flags
from engine.report.style import COLOURS, LEGEND, MARGIN, digits, family_styles, horizontal, log, text, write_beside
from engine.specs.fields.runners import RUNNERS
from engine.words import in_words

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_PARTS = (("forward", COLOURS[0]), ("backward", COLOURS[1]))


def bars(frame: pd.DataFrame, *, source: str = "") -> go.Figure:
    """Return a forward and a backward bar per runner, with flags as text.

    Whiskers go from the fastest process to the slowest. frame: from frames.recurrent, runners that are comparable.
    """
    drawn = frame.dropna(subset=["forward_ms"]).assign(label=labels)
    figure = go.Figure()
    for part, colour in _PARTS:
        ends = [_ends(row, part) for row in drawn.to_dict("records")]
        span = pd.DataFrame(ends, index=drawn.index, columns=["low", "high"], dtype=float)
        look = {"colour": colour, "source": source, "what": f", {part}"}
        figure.add_bar(
            **median_bars(drawn, f"{part}_ms", span["low"], span["high"], f"{part}_spread", **look), name=part
        )
    beside = []
    for row in drawn.to_dict("records"):
        label = " + ".join(digits(row[f"{part}_ms"]) for part, _ in _PARTS if pd.notna(row[f"{part}_ms"])) + " ms"
        end = float(np.nanmax([_ends(row, part)[1] for part, _ in _PARTS]))
        beside.append((end, row["label"], with_flags(label, row["flags"])))
    widest = write_beside(figure, beside)
    horizontal(figure, list(drawn["label"]), "Median time per call (ms)", row_px=38)
    figure.update_layout(barmode="group", bargap=0.25, showlegend=True)
    figure.update_xaxes(range=[0, widest])
    return figure


def _ends(row: Mapping[Any, Any], part: str) -> tuple[float, float]:
    """Return the lowest and the highest median of a process in ms, or the overall median for both."""
    medians = process_medians(row[f"{part}_process_medians_ms"]) or [row[f"{part}_ms"]]
    return min(medians), max(medians)


def curves(frame: pd.DataFrame, size: str, *, source: str = "") -> go.Figure:
    """Return time per call over the swept size: a line per runner, forward beside backward. frame: of one family."""
    drawn = frame.dropna(subset=["forward_ms", size]).sort_values(size)
    runners = [name for name in RUNNERS if name in set(drawn["model"])]
    figure = make_subplots(1, 2, shared_yaxes=True, subplot_titles=("Forward", "Backward"), horizontal_spacing=0.03)
    for place, (runner, (colour, symbol)) in enumerate(family_styles(runners).items()):
        rows = drawn[drawn["model"] == runner]
        dash = DASHES[place // len(COLOURS) % len(DASHES)]
        for panel, (part, _) in enumerate(_PARTS, start=1):
            figure.add_scatter(
                x=rows[size].astype(float),
                y=rows[f"{part}_ms"],
                mode="lines+markers",
                name=text(runner),
                legendgroup=runner,
                showlegend=panel == 1,
                line={"color": colour, "dash": dash, "width": 1.6},
                marker={"symbol": symbol, "size": 7},
                customdata=np.stack([rows["flags"].str.split("; ").map(in_words)], axis=-1),
                hovertemplate=(
                    f"<b>{text(runner)}</b>, {part}<br>{SIZES[size]} %{{x:,}}: %{{y:,.3~r}} ms per call"
                    f"<br>%{{customdata[0]}}<br>{text(source)}<extra></extra>"
                ),
                row=1,
                col=panel,
            )
    figure.update_layout(
        height=460, margin=MARGIN | {"t": 56}, legend=LEGEND | {"y": 1.08}, uirevision=f"curves {size}"
    )
    values = [int(value) for value in drawn[size].unique()]
    figure.update_xaxes(type="log", title_text=SIZES[size], tickvals=values, tickformat=",")
    figure.update_yaxes(log("", pd.concat([drawn["forward_ms"], drawn["backward_ms"]]).dropna()))
    figure.update_yaxes(title_text="Median time per call (ms)", col=1)
    figure.update_annotations(font_size=12)
    return figure
