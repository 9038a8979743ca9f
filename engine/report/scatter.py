"""Any two quantities of many models against each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.report.quantities import QUANTITIES, title
from engine.report.style import GREY, Style, text

SHOWN_FAMILIES = 9
SMALLEST, LARGEST = 5, 22  # marker diameters in pixels


def scatter(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    styles: Mapping[str, Style],
    size: str | None = None,
    colour: str | None = None,
    log_x: bool = True,
    log_y: bool = True,
    source: str = "",
) -> go.Figure:
    """One point per row. frame: name, model, family, image_size and the quantities asked for.

    colour: a quantity shown as a colour scale; None colours by family, with the largest families in the legend and
    the others in grey. Each point carries its row label in `customdata[0]`, which a selection gives back.
    """
    quantities = list(dict.fromkeys(column for column in (x, y, size, colour) if column))
    drawn = frame.dropna(subset=quantities)
    drawn = drawn[(drawn[x] > 0) | (not log_x)]
    drawn = drawn[(drawn[y] > 0) | (not log_y)]
    diameters = _diameters(drawn[size]) if size else pd.Series(6.0, index=drawn.index)
    figure = go.Figure()
    for label, part, marker in _groups(drawn, colour, styles):
        figure.add_scattergl(
            x=part[x],
            y=part[y],
            mode="markers",
            name=text(label),
            customdata=_hover_data(part, quantities),
            hovertemplate=_hover_template(quantities, source),
            marker=marker | {"size": diameters[part.index], "line": {"width": 0.5, "color": "rgba(128,128,128,0.6)"}},
        )
    figure.update_layout(
        height=440,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        legend={"orientation": "v", "itemsizing": "constant", "title": {"text": ""}},
        hoverlabel={"align": "left"},
        dragmode="pan",
        uirevision=f"{x}/{y}/{log_x}/{log_y}",
        annotations=_labels(drawn, x, y, log_x, log_y),
    )
    figure.update_xaxes(**_axis(drawn[x], x, log_x))
    figure.update_yaxes(**_axis(drawn[y], y, log_y))
    return figure


def _groups(
    frame: pd.DataFrame, colour: str | None, styles: Mapping[str, Style]
) -> list[tuple[str, pd.DataFrame, dict[str, Any]]]:
    """The traces: one per leading family and one for all others, or a single one with a colour scale."""
    if colour:
        bar = {"title": {"text": title(colour), "side": "right"}, "thickness": 12}
        values = np.log10(frame[colour].clip(lower=1e-6).astype(float))
        ticks = np.arange(np.floor(values.min()), np.ceil(values.max()) + 1) if len(values) else np.array([0.0])
        bar |= {"tickvals": ticks, "ticktext": [f"{10.0**tick:,g}" for tick in ticks]}
        return [(title(colour), frame, {"color": values, "colorscale": "Cividis", "colorbar": bar, "opacity": 0.85})]
    leading = list(frame["family"].value_counts().index[:SHOWN_FAMILIES])
    others = frame[~frame["family"].isin(leading)]
    groups = []
    if len(others):
        label = f"{others['family'].nunique()} other families"
        groups.append((label, others, {"color": GREY, "symbol": "circle", "opacity": 0.45}))
    for family in leading:
        hue, shape = styles.get(family, (GREY, "circle-open"))
        groups.append((family, frame[frame["family"] == family], {"color": hue, "symbol": shape, "opacity": 0.85}))
    return groups


def _diameters(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Marker diameters: area grows with the logarithm, since figures span decades."""
    logs = np.log10(values.to_numpy(float).clip(1e-6))
    span = np.ptp(logs) if len(logs) else 0.0
    share = (logs - logs.min()) / span if span else np.zeros(len(logs))
    return pd.Series(SMALLEST + (LARGEST - SMALLEST) * np.sqrt(share), index=values.index)


def _axis(values: "pd.Series[Any]", column: str, log: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": title(column)}, "zeroline": False, "automargin": True, "showgrid": True}
    if not log:
        return axis | {"type": "linear", "tickformat": ",~g", "rangemode": "tozero"}
    decades = np.log10(values.max() / values.min()) if len(values) else 0
    ticks = {"dtick": 1, "minor": {"dtick": "D1", "showgrid": False, "ticks": "outside"}} if decades > 2 else {}
    return axis | {"type": "log", "tickformat": ",~g", **ticks}


def standouts(frame: pd.DataFrame, x: str, y: str) -> list[Any]:
    """Labels of the rows worth naming on a chart: the ends of either axis, and the ends of y for its x."""
    if len(frame) < 3:
        return list(frame.index)
    across, up = (np.log10(frame[column].to_numpy(float).clip(1e-9)) for column in (x, y))
    slope, offset = np.polyfit(across, up, 1) if np.ptp(across) else (0.0, up.mean())
    residual = up - (slope * across + offset)
    ends = [values.argmin() for values in (across, up, residual)] + [
        values.argmax() for values in (across, up, residual)
    ]
    return list(dict.fromkeys(frame.index[int(place)] for place in ends))


def _labels(frame: pd.DataFrame, x: str, y: str, log_x: bool, log_y: bool) -> list[dict[str, Any]]:
    """Direct labels for what stands out. Annotations on a log axis are placed by the exponent."""
    middle = frame[x].median() if len(frame) else 0
    labels = []
    for index in standouts(frame, x, y):
        row = frame.loc[index]
        left = row[x] > middle
        labels.append(
            {
                "x": np.log10(row[x]) if log_x else row[x],
                "y": np.log10(row[y]) if log_y else row[y],
                "text": text(row["model"]),
                "showarrow": False,
                "xanchor": "right" if left else "left",
                "xshift": -9 if left else 9,
                "font": {"size": 11},
            }
        )
    return labels


def _hover_data(frame: pd.DataFrame, quantities: Sequence[str]) -> "np.ndarray[Any, Any]":
    """Columns: index label, name, image size, family, then the quantities; shape (rows, 4 + quantities)."""
    texts = [frame[column].map(text) for column in ("name", "image_size", "family")]
    columns = [frame.index.astype(str), *texts, *(frame[column] for column in quantities)]
    return np.stack([np.asarray(column, dtype=object) for column in columns], axis=-1)


def _hover_template(quantities: Sequence[str], source: str) -> str:
    lines = ["<b>%{customdata[1]}</b>", "%{customdata[2]} px, %{customdata[3]}"]
    for place, column in enumerate(quantities, start=4):
        quantity = QUANTITIES[column]
        lines.append(f"{quantity.label} %{{customdata[{place}]:,.3~r}} {quantity.unit}".rstrip())
    return "<br>".join([*lines, text(source)]) + "<extra></extra>"
