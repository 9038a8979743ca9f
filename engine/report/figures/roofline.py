"""Draw the roofline of a device: its measured maximum rates, and the rates that models reached on it.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures", 2009.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.report.figures.scatter import groups, labels, standouts
from engine.report.style import COLOURS, GREY, MARGIN, SHAPES, Style, bandwidth, compute, digits, log, text
from engine.report.timings.rates import unusual_conditions
from engine.results import DeviceRow
from engine.words import in_words

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKER = {"size": 8, "line": {"width": 1, "color": "rgba(128,128,128,0.6)"}}
FUSED = "intensity of eager mode: fused operators move less memory, so the true point lies further right"


def roofline(rates: pd.DataFrame, models: pd.DataFrame, *, styles: Mapping[str, Style]) -> go.Figure:
    """Return FLOP/s against FLOPs per byte, both logarithmic: the measured rates as roofs, models as points.

    rates: from timings.rates.rates, of one device: matmuls, and a copy for the slope. models: from
    timings.rates.models, timed on that device.
    """
    peaks = rates[rates["operation"] == "matmul"].sort_values("gflop_per_s", ascending=False)
    copies = rates[rates["operation"] == "copy"]
    slope = float(copies["gb_per_s"].iloc[0]) if len(copies) else None
    seen = [1.0, *models["intensity"], *(peaks["gflop_per_s"].head(1) / slope if slope else ())]
    left, right = min(seen) / 3, max(seen) * 10  # with room around all points and the highest roof's ridge
    rates_seen = [*peaks["gflop_per_s"], *models["gflop_per_s"], *([slope * left] if slope else [])] or [1.0]
    ends = {"xaxis": np.array([left, right]), "yaxis": np.array([min(rates_seen) / 2, max(rates_seen) * 2.5])}
    axes = {name: {"type": "log", "autorangeoptions": dict(enumerate(values))} for name, values in ends.items()}
    named = models.assign(model=models["model"].mask(models["mode"] == "training", models["model"] + ", training"))
    chosen = standouts(models, "intensity", "gflop_per_s")
    annotations = [*_peak_labels(peaks, right), *labels(named, chosen, "intensity", "gflop_per_s", axes)]
    if slope:
        annotations.append(_label(left, slope * left, f"copy {bandwidth(slope)}", xanchor="left", yshift=-4, xshift=16))
    figure = go.Figure([*_points(models, styles), *_roofs(peaks, slope, left, right)])
    figure.update_layout(height=460, margin=MARGIN, legend={"orientation": "v", "itemsizing": "constant", "y": 0.95})
    figure.update_layout(hoverlabel={"align": "left"}, dragmode="pan", uirevision="roofline", annotations=annotations)
    look = {"zeroline": False, "minor": {"dtick": "D1", "showgrid": False, "ticks": "inside"}}
    figure.update_xaxes(log("Intensity (FLOP/B)", ends["xaxis"]) | look, range=np.log10(ends["xaxis"]))
    figure.update_yaxes(log("Rate (GFLOP/s)", ends["yaxis"]) | look, range=np.log10(ends["yaxis"]))
    return figure


def _roofs(peaks: pd.DataFrame, slope: float | None, left: float, right: float) -> list[dict[str, Any]]:
    """Return the roof of each data type, and the slope up to the highest roof."""
    roofs = []
    if slope and len(peaks):
        ridge = float(peaks["gflop_per_s"].iloc[0]) / slope
        line = {"color": GREY, "width": 1.5}
        hover = f"copy: {bandwidth(slope)}<extra></extra>"
        roofs.append(_line((left, ridge), (slope * left, slope * ridge), line, hover))
    for place, peak in enumerate(peaks.to_dict("records")):
        rate = float(peak["gflop_per_s"])
        begin = max(rate / slope, left) if slope else left
        hover = f"matmul {peak['dtype']}: {compute(rate)} at {peak['size']} × {peak['size']}<br>"
        hover += f"{peak['date']:%Y-%m-%d}, run {peak['run']}<extra></extra>"
        line = {"color": GREY, "width": 1.5, "dash": DASHES[place % len(DASHES)]}
        roofs.append(_line((begin, right), (rate, rate), line, hover))
    return roofs


def _line(x: tuple[float, float], y: tuple[float, float], line: dict[str, Any], hover: str) -> dict[str, Any]:
    shown = {"type": "scatter", "mode": "lines", "line": line, "hovertemplate": hover, "showlegend": False}
    # 60 points, because hovering works only at points
    return {"x": np.geomspace(x[0], x[1], 60), "y": np.geomspace(y[0], y[1], 60), **shown}


def _points(models: pd.DataFrame, styles: Mapping[str, Style]) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": text(family or "no family"),
            "x": models["intensity"].to_numpy(float)[places],
            "y": models["gflop_per_s"].to_numpy(float)[places],
            "text": [_hover(row) for row in models.iloc[places].to_dict("records")],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": marker | {"symbol": _symbols(models.iloc[places], marker["symbol"])} | MARKER,
        }
        for family, places, marker in groups(models, None, styles)
        if len(places)
    ]


def _symbols(models: pd.DataFrame, shape: str) -> list[str]:
    """Return the shape of each point. It is hollow if the traffic was counted on the eager model instead."""
    hollow = f"{shape.removesuffix('-open')}-open"
    return [hollow if of_eager else shape.removesuffix("-open") for of_eager in models["intensity_of"] == "eager"]


def _hover(row: Mapping[Any, Any]) -> str:
    part, ms = row["mode"], row["latency_ms"]
    if part == "training":
        part, ms = "training, its forward pass", row["forward_ms"]
    size = f", {text(row['image_size'])} px" if row["image_size"] else ""
    lines = [
        f"<b>{text(row['name'])}</b>",
        f"{text(row['variant'])}, {part}, batch {row['batch_size']}{size}, {row['dtype']}",
        *([f"the {row['tower']} tower alone"] if row["tower"] != "whole" else []),
        *([f"{row['context_length']:g} tokens"] if pd.notna(row["context_length"]) else []),
        *([f"optimizer {text(row['optimizer'])}"] if row["optimizer"] else []),
        *unusual_conditions(row),
        f"{compute(row['gflop_per_s'])} at {digits(row['intensity'])} FLOP/B, {digits(ms)} ms",
        *([FUSED] if row["intensity_of"] == "eager" else []),
        *([in_words(row["flags"])] if row["flags"] else []),
        f"{row['date']}, run {row['run']}",
    ]
    return "<br>".join(lines)


def _peak_labels(peaks: pd.DataFrame, right: float) -> list[dict[str, Any]]:
    """Return a label at the right end of each roof, above it; below it if the next higher roof nearly touches it."""
    labels, above = [], np.inf
    for peak in peaks.to_dict("records"):
        rate = float(peak["gflop_per_s"])
        shift = 9 if rate < above / 1.25 else -9
        labels.append(_label(right, rate, f"{peak['dtype']} {compute(rate)}", xanchor="right", xshift=-4, yshift=shift))
        above = rate
    return labels


def _label(x: float, y: float, label: str, **more: Any) -> dict[str, Any]:
    """Return an annotation. On a log axis it is placed by the exponent."""
    return {"x": np.log10(x), "y": np.log10(y), "text": label, "showarrow": False, "font": {"size": 11}, **more}


def sizes(rows: Sequence[DeviceRow]) -> go.Figure:
    """Return the rate of matrix products at every size tried, one line per data type."""
    figure = go.Figure()
    products = [row for row in rows if row.operation == "matmul" and row.rates]
    best = [max(row.rates.values()) for row in products]
    for place, row in enumerate(products):
        up = "bottom" if len(best) > 1 and best[place] == min(best) else "top"  # away from the other lines
        sides, rates = [int(side) for side in row.rates], list(row.rates.values())
        figure.add_scatter(
            x=sides,
            y=rates,
            mode="lines+markers+text",
            name=row.dtype,
            text=[
                f"{row.dtype} {compute(rate)}" if side == row.size else ""
                for side, rate in zip(sides, rates, strict=True)
            ],
            textposition=[f"{up} left" if side == max(sides) and len(sides) > 1 else f"{up} right" for side in sides],
            cliponaxis=False,
            line={"color": COLOURS[place % len(COLOURS)], "width": 1.6},
            marker={"symbol": SHAPES[place % len(SHAPES)], "size": 7},
            hovertemplate=f"matmul {row.dtype}, %{{x}} × %{{x}}<br>%{{y:,.3~r}} GFLOP/s<extra></extra>",
        )
    figure.update_layout(height=300, margin=MARGIN, uirevision="sizes", showlegend=False)
    ticks = sorted({int(side) for row in rows for side in row.rates if row.operation == "matmul"})
    figure.update_xaxes(title_text="Side of the matrices", type="log", tickvals=ticks, tickformat=",")
    figure.update_yaxes(title_text="Rate (GFLOP/s)", type="log", tickformat=",~g")
    return figure
