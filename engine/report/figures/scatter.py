"""Draw any two quantities of many models against each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.published.publishers import ACCURACIES
from engine.report.quantities import MEASURED, QUANTITIES, title
from engine.report.style import GREY, SHAPES, Style, log_ticks, text

Floats = np.ndarray[Any, Any]

SHOWN_FAMILIES = 9
"""Families with a colour and an entry in the legend. All others share one in grey."""
MOST_NAMES = 8
"""Name at most this many rows of a Pareto front."""
FAINT = {"color": GREY, "symbol": "circle", "opacity": 0.45}
"""Marker of rows that have no colour of their own."""
SMALLEST, LARGEST = 5, 22  # marker diameters in pixels
DIAMETER = 6.0
"""Diameter of all markers in pixels, without a size axis."""
LETTER, LINE = 0.021, 0.07
"""Width of a letter of a label and height of a label, as shares of a phone's plot."""
ROOM = 0.06
"""Room between the outermost points and the ends of an axis, as a share of their distance."""
WIDE = {"legend": {"itemsizing": "constant", "y": 0.92}, "margin": {"l": 70, "r": 8, "t": 8, "b": 44}}
"""Changes of the layout for a wide chart: the legend is beside the plot, below the buttons."""


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
    front: Sequence[Any] = (),
) -> go.Figure:
    """Return one point per row.

    frame: name, model, family, image_size and the requested quantities. An optional column `provenance` has each row's
    sources, as lines. An optional column `flags` has reasons for caution about the timing; points with flags are hollow
    if the plot shows a timing, and so are those whose optional column `source` says `estimated`.
    colour: a quantity shown as a colour scale, grey for rows without a value. None colours by family, with the largest
    families in the legend and the others in grey. Rows without a `size` are small. Each point has its row label in
    `customdata[0]`, which a selection returns.
    front: labels of the rows on the Pareto front, which is drawn as a line. These rows are named instead of standouts.
    """
    quantities = list(dict.fromkeys(column for column in (x, y, size, colour) if column))
    drawn = frame.dropna(subset=[x, y])
    drawn = drawn[((drawn[x] > 0) | (not log_x)) & ((drawn[y] > 0) | (not log_y))]
    across, up, hover = drawn[x].to_numpy(float), drawn[y].to_numpy(float), _hover_data(drawn, quantities)
    diameters = _diameters(drawn[size]) if size else np.full(len(drawn), DIAMETER)
    selected = {"opacity": 1.0} | ({} if size else {"size": 2 * DIAMETER})  # with a size axis, the size has a meaning
    hollow = np.zeros(len(drawn), dtype=bool)
    if "flags" in drawn and {*MEASURED} & {*quantities}:
        hollow = drawn["flags"].to_numpy(object) != ""
        if "source" in drawn:
            hollow |= (drawn["source"] == "estimated").to_numpy()
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": text(label),
            "x": across[places],
            "y": up[places],
            "customdata": hover[places],
            "hovertemplate": _hover_template(quantities, source, "provenance" in drawn),
            "marker": marker | _outline(marker, hollow[places]) | {"size": diameters[places]},
            "selected": {"marker": selected},
            "unselected": {"marker": {"opacity": 0.15}},
        }
        for label, members, marker in groups(drawn, colour, styles)
        # filled points first: the legend shows the symbol of the first
        for places in [members[np.argsort(hollow[members], kind="stable")]]
    ]
    line = drawn.loc[drawn.index.isin(front)].sort_values([x, y])
    named, rise = standouts(drawn, x, y), 0
    if len(line):
        traces.append(_front(line, x, y))
        places = np.linspace(len(line) - 1, 0, MOST_NAMES).round().astype(int)
        named = list(line.index[list(dict.fromkeys([0, *places]))])  # first the two ends, which keep their names
        rise = 10 if QUANTITIES[y].better == "larger" else -10  # no points lie there
    axes = {"xaxis": _axis(across, x, log_x), "yaxis": _axis(up, y, log_y)}
    layout = {
        "height": 400,
        "margin": {"l": 70, "r": 8, "t": 8, "b": 60},
        # the legend is below the plot: beside it, it would take half of a phone's width
        "legend": {"orientation": "h", "itemsizing": "constant", "x": 0, "y": -0.19, "yanchor": "top"},
        "hoverlabel": {"align": "left"},
        "dragmode": "select",
        "uirevision": f"{x}/{y}/{log_x}/{log_y}",
        "annotations": labels(drawn, named, x, y, axes, rise),
        **axes,
    }
    return go.Figure({"data": traces, "layout": layout})  # built at once: each update would validate everything again


def groups(
    frame: pd.DataFrame, colour: str | None, styles: Mapping[str, Style]
) -> list[tuple[str, Floats, dict[str, Any]]]:
    """Return traces as (label, row positions, marker): by family, small families together, or by colour scale."""
    positions = np.arange(len(frame))
    if colour:
        values = frame[colour].to_numpy(float)
        coloured, lacking = positions[~np.isnan(values)], positions[np.isnan(values)]
        traces = [(title(colour), coloured, _colour_scale(values[coloured], colour))] if len(coloured) else []
        return [*([(f"no {title(colour)}", lacking, FAINT)] if len(lacking) else []), *traces]
    families = frame["family"].to_numpy(object)
    counts = frame["family"].value_counts()
    leading = list(counts.index[:SHOWN_FAMILIES])
    groups = []
    if len(counts) > len(leading):
        rest = positions[~np.isin(families, leading)]
        others = len(counts) - len(leading)
        groups.append((f"{others} other {'family' if others == 1 else 'families'}", rest, FAINT))
    taken: set[Style] = set()
    for family in leading:
        hue, shape = styles.get(family, (GREY, "circle-open"))
        # more families than styles: of two with the same one, the smaller gets a shape that is free in this plot
        shape = next((other for other in (shape, *SHAPES) if (hue, other) not in taken), shape)
        taken.add((hue, shape))
        groups.append((family, positions[families == family], {"color": hue, "symbol": shape, "opacity": 0.85}))
    return groups


def _outline(marker: dict[str, Any], hollow: Floats) -> dict[str, Any]:
    """Return symbol and line of a trace's points. A hollow point is an outline in the colour of its marker."""
    symbol = marker.get("symbol", "circle")
    if not hollow.any():
        return {"symbol": symbol, "line": {"width": 0}}
    outlined = f"{symbol.removesuffix('-open')}-open"
    return {"symbol": np.where(hollow, outlined, symbol), "line": {"width": np.where(hollow, 1.6, 0.0)}}


def _colour_scale(values: Floats, column: str) -> dict[str, Any]:
    """Return a marker coloured by a share, or by a quantity's logarithm. The colour bar shows the quantity."""
    look: dict[str, Any] = {"colorscale": "Cividis", "opacity": 0.85}
    bar: dict[str, Any] = {"title": {"text": title(column), "side": "right"}, "thickness": 12}
    if QUANTITIES[column].unit == "%":
        return look | {"color": values, "colorbar": bar}
    decades = np.log10(values.clip(1e-6))
    ticks = np.arange(np.floor(decades.min()), np.ceil(decades.max()) + 1)
    bar |= {"tickvals": ticks, "ticktext": [f"{10.0**tick:,g}" for tick in ticks]}
    return look | {"color": decades, "colorbar": bar}


def _diameters(values: "pd.Series[Any]") -> Floats:
    """Return diameters in pixels. The area grows with the logarithm; a missing value gets the smallest."""
    logs = np.log10(values.to_numpy(float).clip(1e-6))
    least, most = (np.nanmin(logs), np.nanmax(logs)) if values.notna().any() else (0.0, 0.0)
    share = np.nan_to_num((logs - least) / (most - least)) if most > least else np.zeros(len(logs))
    return np.asarray(SMALLEST + (LARGEST - SMALLEST) * np.sqrt(share))


def _axis(values: Floats, column: str, logarithmic: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": title(column)}, "zeroline": False, "automargin": False, "showgrid": True}
    whole = QUANTITIES[column].unit == "%"
    if whole:
        axis["maxallowed"] = 2 if logarithmic else 100  # a log axis has exponents
    if len(values):  # plotly would extend the axis until it contains all names: by decades for a long one on a phone
        ends = _ends(values, logarithmic, from_zero=not (logarithmic or whole))
        least, most = (10**end if logarithmic else end for end in ends)
        axis["autorangeoptions"] = {"clipmin": least, "clipmax": most}
    if not logarithmic:  # an axis from 0 would squeeze values near 100 % together
        return axis | {"type": "linear", "tickformat": ",~g", "rangemode": "normal" if whole else "tozero"}
    ticks = log_ticks(values)
    return (
        axis
        | ticks
        | ({"minor": {"dtick": "D1", "showgrid": False, "ticks": "inside"}} if ticks.get("dtick") == 1 else {})
    )


def _ends(values: Floats, logarithmic: bool, *, from_zero: bool) -> tuple[float, float]:
    """Return the ends of an axis, with room for markers. On a logarithmic axis they are exponents.

    values: at least one. from_zero: the axis includes 0.
    """
    ends = np.log10(values) if logarithmic else values
    low, high = float(ends.min()), float(ends.max())
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = ROOM * (high - low) or 0.5
    return low - room * (low != 0 or not from_zero), high + room * (high != 0 or not from_zero)


def standouts(frame: pd.DataFrame, x: str, y: str) -> list[Any]:
    """Return labels of the rows to name: the extremes of x, of y, and of y relative to a line fitted over x."""
    if len(frame) < 3:
        return list(frame.index)
    across, up = (np.log10(frame[column].to_numpy(float).clip(1e-9)) for column in (x, y))
    slope, offset = np.polyfit(across, up, 1) if np.ptp(across) else (0.0, up.mean())
    residual = up - (slope * across + offset)
    spans = (across, up, residual)
    ends = [*(values.argmin() for values in spans), *(values.argmax() for values in spans)]
    return list(dict.fromkeys(frame.index[int(place)] for place in ends))


def _front(line: pd.DataFrame, x: str, y: str) -> dict[str, Any]:
    """Return the front as a line of steps. No row lies beyond it. line: the rows on the front, x ascending."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"Pareto front ({len(line)})",
        "x": line[x].to_numpy(float),
        "y": line[y].to_numpy(float),
        "line": {
            "shape": "vh" if QUANTITIES[x].better == "larger" else "hv",
            "width": 1.5,
            "color": GREY,
            "dash": "dot",
        },
        "hoverinfo": "skip",
    }


def labels(
    frame: pd.DataFrame, named: Sequence[Any], x: str, y: str, axes: Mapping[str, Any], rise: int = 0
) -> list[dict[str, Any]]:
    """Return labels of the rows in `named`, `rise` pixels above them, without those that would overlap earlier ones.

    axes: xaxis and yaxis of the layout, with the ends of each in `autorangeoptions`.
    """
    if frame.empty:
        return []
    places = []  # of the rows on each axis, and its length
    for column, axis in ((x, axes["xaxis"]), (y, axes["yaxis"])):
        values, ends = frame[column], list(axis["autorangeoptions"].values())
        logarithmic = axis["type"] == "log"
        places.append((np.log10(values), np.ptp(np.log10(ends))) if logarithmic else (values, np.ptp(ends)))
    (across, width), (up, height) = places
    middle = frame[x].median()
    labels: list[dict[str, Any]] = []
    taken: list[tuple[float, float, float]] = []
    for index in named:
        row = frame.loc[index]
        left = row[x] > middle
        start, level = across[index] / width, up[index] / height
        start, end = sorted((start, start + (-LETTER if left else LETTER) * (len(row["model"]) + 2)))
        if any(start < other[1] and other[0] < end and abs(level - other[2]) < LINE for other in taken):
            continue
        taken.append((start, end, level))
        labels.append(
            {
                "x": across[index],
                "y": up[index],
                "text": text(row["model"]),
                "showarrow": False,
                "xanchor": "right" if left else "left",
                "xshift": (0 if rise else 9) * (-1 if left else 1),
                "yshift": rise,
                "font": {"size": 11},
            }
        )
    return labels


def _hover_data(frame: pd.DataFrame, quantities: Sequence[str]) -> Floats:
    """Return the columns index label, name, image size, family, the quantities, and the provenance if there is one."""
    texts = [frame[column].map(text) for column in ("name", "image_size", "family")]
    columns = [frame.index.astype(str), *texts, *(frame[column] for column in quantities)]
    if "provenance" in frame:
        columns.append(frame["provenance"].map(lambda lines: "<br>".join(map(text, lines.splitlines()))))
    return np.stack([np.asarray(column, dtype=object) for column in columns], axis=-1)


def _hover_template(quantities: Sequence[str], source: str, provenance: bool) -> str:
    lines = ["<b>%{customdata[1]}</b>", "%{customdata[2]} px, %{customdata[3]}"]
    for place, column in enumerate(quantities, start=4):
        quantity, form = QUANTITIES[column], ".2f" if column in ACCURACIES else ",.3~r"
        lines.append(f"{quantity.label} %{{customdata[{place}]:{form}}} {quantity.unit}".rstrip())
    lines.append(f"%{{customdata[{4 + len(quantities)}]}}" if provenance else text(source))
    return "<br>".join(lines) + "<extra></extra>"
