"""Draw the results of a profile run: every axis has its unit, every hover has model, quantity, unit and source."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.report.figures import speed
from engine.report.quantities import QUANTITIES, title
from engine.report.style import COLOURS, GREY, INK, LEGEND, MARGIN, TOWER_COLOURS, digits, style, text, write_beside


def bars(frame: pd.DataFrame, column: str, *, source: str = "") -> go.Figure:
    """Return bars of one quantity per model, split into towers if the rows have them. frame: from frames.profile."""
    drawn = frame.dropna(subset=[column]).sort_values(column)
    names = speed.labels(drawn)
    prefix, quantity = ("fvcore_" if column.startswith("fvcore_") else ""), column.removeprefix("fvcore_")
    parts = {tower: f"{prefix}{tower}_{quantity}" for tower in TOWER_COLOURS}
    if prefix:  # fvcore has no column for what is outside the towers
        inside = drawn[[parts["image"], parts["text"]]].sum(axis=1)
        drawn = drawn.assign(**{parts["other"]: (drawn[column] - inside).round(9)})
    parts = {tower: name for tower, name in parts.items() if name in drawn}
    parts = {tower: name for tower, name in parts.items() if drawn[name].fillna(0).gt(0).any()}
    figure = go.Figure()
    unit = QUANTITIES[column].unit
    for tower, name in parts.items() or {"total": column}.items():
        hover = f"<b>%{{y}}</b><br>{tower} %{{x:,.3~r}} {unit}<br>{text(source)}<extra></extra>"
        hue = TOWER_COLOURS.get(tower, COLOURS[0])
        figure.add_bar(x=drawn[name], y=names, orientation="h", name=tower, marker_color=hue, hovertemplate=hover)
    write_beside(figure, [(value, name, digits(value)) for name, value in zip(names, drawn[column], strict=True)])
    figure.update_layout(barmode="stack", height=70 + 26 * len(drawn), margin=MARGIN | {"r": 48}, legend=LEGEND)
    figure.update_layout(showlegend=len(parts) > 1)
    figure.update_xaxes(title_text=title(column), tickformat=",~g")
    return figure


def sweep(frame: pd.DataFrame, x: str, column: str, *, source: str = "") -> go.Figure:
    """Return a plot of one quantity by image size or batch size: a line per model, or per model and other size.

    frame: from frames.profile. x: image_size or batch_size. A non-square image is drawn at the side of the square with
    the same area, and sizes of equal area share a tick.
    """
    other = "batch_size" if x == "image_size" else "image_size"
    drawn = frame.dropna(subset=[column]).astype({other: str})
    shared = drawn.groupby("model")["library"].transform("nunique") > 1
    drawn["model"] = drawn["model"].mask(shared, drawn["library"] + ":" + drawn["model"])
    sides = drawn["image_size"].str.split("x", expand=True).astype(float)
    drawn = drawn.assign(x=sides.prod(axis=1) ** (1 / sides.count(axis=1)) if x == "image_size" else drawn[x])
    names = drawn[x].astype(str)
    ticks = names.groupby(drawn["x"]).agg(_list_once)
    drawn["sizes"] = names.groupby([drawn["model"], drawn["x"], drawn[column]]).transform(_list_once)
    several = drawn.groupby(["model", "x"])[column].nunique().max() > 1
    if not several:  # MACs and activations of an image do not depend on the batch
        drawn = drawn.drop_duplicates(["model", "x"])
        drawn[other] = ""
    formats = {"image_size": " @ {}", "batch_size": ", batch {}"}
    figure = go.Figure()
    for place, ((model, value), rows) in enumerate(drawn.sort_values("x").groupby(["model", other], sort=False)):
        colour, symbol = style(place)
        name = text(model) + (formats[other].format(value) if several else "")
        figure.add_scatter(
            x=rows["x"],
            y=rows[column],
            customdata=rows[["sizes"]],
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 1.6},
            marker={"symbol": symbol, "size": 8},
            hovertemplate=(
                f"<b>{name}</b><br>{title(x)}: %{{customdata[0]}}<br>{QUANTITIES[column].label} %{{y:,.3~r}} "
                f"{QUANTITIES[column].unit}<br>{text(source)}<extra></extra>"
            ),
        )
    figure.update_layout(height=420, margin=MARGIN, legend=LEGEND, showlegend=True, uirevision=x)
    figure.update_xaxes(title_text=title(x), tickvals=ticks.index, ticktext=ticks)
    if x == "batch_size":
        figure.update_xaxes(type="log")
    figure.update_yaxes(title_text=title(column), rangemode="tozero", tickformat=",~g")
    return figure


def _list_once(names: "pd.Series[str]") -> str:
    return ", ".join(names.unique())


def towers(frame: pd.DataFrame) -> go.Figure:
    """Return the towers' labelled shares of parameters, MACs and activations. frame: from frames.towers."""
    figure = go.Figure()
    quantities = ["macts", "gmacs", "mparams"]
    totals = frame[frame["tower"] == "total"].iloc[0]
    labels = [f"{QUANTITIES[c].label}, {digits(totals[c])} {QUANTITIES[c].unit}" for c in quantities]
    for _, part in frame[frame["tower"] != "total"].iterrows():
        shares = [100 * part[c] / totals[c] if totals[c] else 0.0 for c in quantities]
        figure.add_bar(
            x=shares,
            y=labels,
            orientation="h",
            name=part["tower"],
            marker_color=TOWER_COLOURS[part["tower"]],
            text=[f"{share:.0f} %" if share >= 4 else "" for share in shares],
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont_color=INK,
            hovertemplate=f"{part['tower']}: %{{x:.3~r}} % of %{{y}}<extra></extra>",
        )
    figure.update_layout(barmode="stack", height=190, margin=MARGIN, legend=LEGEND)
    figure.update_xaxes(title_text="Share of the model (%)", range=[0, 100])
    return figure


def treemap(modules: pd.DataFrame, column: str) -> go.Figure:
    """Return the model's modules as nested areas. modules: from frames.modules; column: mparams, gmacs or macts.

    The areas add up to the model. A shared module is drawn at its first place with all its calls, and may exceed its
    parent there; then all children of that parent shrink to fit.
    """
    areas = _areas(modules, column)
    unit = QUANTITIES[column].unit
    figure = go.Figure(
        go.Treemap(
            ids=[f"model.{path}" for path in modules["path"]],
            parents=["" if pd.isna(parent) else f"model.{parent}" for parent in modules["parent"]],
            labels=[text(name) for name in modules["name"]],
            values=areas,
            customdata=np.stack(
                [modules["type"].map(text), modules[column].map(digits), modules["calls"], modules["path"].map(text)],
                axis=-1,
            ),
            branchvalues="remainder",
            maxdepth=4,
            texttemplate=f"%{{label}}<br>%{{customdata[1]}} {unit}",
            hovertemplate=(
                f"<b>%{{customdata[3]}}</b><br>%{{customdata[0]}}, called %{{customdata[2]}} times<br>"
                f"{QUANTITIES[column].label} %{{customdata[1]}} {unit}<extra></extra>"
            ),
            # Plotly fades outer modules into the background; names on a faded strip cannot be read in the dark theme.
            marker={"depthfade": False, "line": {"width": 1, "color": INK}},
            root_color=GREY,
            textfont_color=INK,
            tiling={"pad": 1},
        )
    )
    light = [COLOURS[4], *COLOURS[1:4], COLOURS[5]]  # all but the blue that is too dark for INK
    margin = {"l": 0, "r": 0, "t": 0, "b": 0}
    figure.update_layout(height=460, margin=margin, uirevision=column)
    # without darker shades of these colours, on which names cannot be read
    figure.update_layout(treemapcolorway=light, extendtreemapcolors=False)
    return figure


def _areas(modules: pd.DataFrame, column: str) -> list[float]:
    """Return the area of each module without its children. modules: outer ones first, as from frames.modules."""
    values = dict(zip(modules["path"], modules[column], strict=True))
    children = modules.groupby("parent")[column].sum().to_dict()
    whole: dict[str, float] = {}
    own: dict[str, float] = {}
    for path, parent in zip(modules["path"], modules["parent"], strict=True):
        if pd.isna(parent):
            whole[path] = own[path] = values[path]
            continue
        most = max(values[parent], children[parent])
        whole[path] = own[path] = values[path] * whole[parent] / most if most else 0.0
        own[parent] = max(own[parent] - whole[path], 0.0)  # rounding may leave less than nothing
    return list(own.values())


def operators(frame: pd.DataFrame, *, most: int = 12) -> go.Figure:
    """Return shares of MACs and of memory traffic per operator kind, most MACs first. frame: from frames.operators."""
    traffic = frame["read_mb"] + frame["written_mb"]
    shown = frame.assign(traffic=100 * traffic / (traffic.sum() or 1))
    shown = shown.sort_values(["share", "traffic"], ascending=False).head(most).iloc[::-1]
    figure = go.Figure()
    names = shown["operator"].map(text)
    for column, label, hue in (("traffic", "memory traffic", COLOURS[4]), ("share", "MACs", COLOURS[0])):
        hover = f"%{{y}}<br>%{{x:.3~r}} % of {label}<extra></extra>"
        figure.add_bar(x=shown[column], y=names, orientation="h", name=label, marker_color=hue, hovertemplate=hover)
    legend = LEGEND | {"traceorder": "reversed"}
    figure.update_layout(barmode="group", height=90 + 30 * len(shown), margin=MARGIN, legend=legend)
    figure.update_xaxes(title_text="Share of the model (%)")
    return figure
