"""Draw trainings: curves of the stored metrics of one run, or of several runs in the same plot."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine.report.style import GREY, LEGEND, MARGIN, digits, log, style, text, whole_ticks
from engine.results import Metric

MOST_POINTS = 1000
"""Draw at most this many points per line. More cannot be distinguished."""
MARKED = 20
"""Mark at most this many points per line with the shape of its run or metric."""
PER_ROW = 3
SHARES_END = 102
"""Upper end of an axis of shares in per cent: beyond 100, so that a line at 100 % is not cut."""
DASHES = {"solid": "solid", "dash": "dashed", "dot": "dotted", "dashdot": "dash-dotted"}
"""Plotly's line styles and their names in words. With several runs, each metric of a panel has one."""
NOISY = ("train/grad_norm", "train/samples_per_s", "train/data_s", "train/step_s")
"""Metrics that are smoothed, besides training losses. Others, such as the learning rate, are not noisy."""
NAMES = {
    "train/loss": "training",
    "train/lr": "learning rate",
    "train/lr_image": "image tower",
    "train/lr_text": "text tower",
    "train/logit_scale": "logit scale",
    "train/grad_norm": "gradient norm",
    "train/samples_per_s": "pairs per second",
    "train/data_s": "waiting for data",
    "train/step_s": "whole step",
    "train/memory_mb": "peak memory",
    "val/clip_val_loss": "held out (CLIP loss)",
    "val/val_generative_loss": "held out, of captions",
    "val/image_to_text_R@1": "image to text R@1",
    "val/text_to_image_R@1": "text to image R@1",
}
"""Names of metrics in a legend, for metrics whose own name is not clear."""


@dataclass(frozen=True)
class Panel:
    """Curves that share an axis."""

    title: str
    """The title, with its unit."""
    names: tuple[str, ...]
    share: bool = False
    """True if values are shares from 0 to 1. They are shown in per cent."""
    log: bool = False


def frame(metrics: Mapping[str, Iterable[Metric]]) -> pd.DataFrame:
    """Return all points, one per line: run, name, step, value. metrics: by the run's label."""
    records = [(run, point.name, point.step, point.value) for run, points in metrics.items() for point in points]
    return pd.DataFrame(records, columns=["run", "name", "step", "value"]).astype({"step": int, "value": float})


def large(points: pd.DataFrame, *, recall: bool = True, clip_loss: bool = True) -> list[Panel]:
    """Return the panels of loss and accuracy, which show whether a training works.

    Accuracy is zero-shot accuracy, or recall at 1 without it. recall: False leaves it out, because repeated captions
    limit it. clip_loss: True if all runs train with CLIP's loss. The held-out loss is always CLIP's, so it has a panel
    of its own beside another training loss.
    """
    names = list(points["name"].unique())
    losses = tuple(name for name in names if name in ("train/loss", "val/clip_val_loss"))
    held_out = tuple(name for name in losses if not clip_loss and name == "val/clip_val_loss")
    losses = tuple(name for name in losses if name not in held_out)
    accuracies = tuple(name for name in names if name.endswith(("-top1", "-top5")))
    title = "Zero-shot accuracy (%)" if accuracies else "Recall at 1 (%)"
    accuracies = accuracies or tuple(name for name in names if recall and name.endswith("_R@1"))
    panels = (Panel("Loss", losses), Panel("Held-out CLIP loss", held_out), Panel(title, accuracies, share=True))
    return [panel for panel in panels if panel.names]


def small(points: pd.DataFrame, *, recall: bool = True) -> list[Panel]:
    """Return the panels of all other curves. recall: as in `large`."""
    metrics = {name for panel in large(points, recall=recall) for name in panel.names}
    names = [name for name in points["name"].unique() if name not in metrics]
    parts = tuple(name for name in names if name.startswith("train/") and name.endswith("_loss"))
    names = [name for name in names if name not in parts or len(parts) > 1]  # a single part equals the whole loss
    recalls = {k: tuple(name for name in names if name.endswith(f"_R@{k}")) for k in (1, 5, 10)}
    ranks = {
        what: tuple(name for name in names if name.endswith(f"_{what.lower()}_rank")) for what in ("Mean", "Median")
    }
    panels = (
        Panel("Weighted parts of the loss", parts),
        Panel("Learning rate", ("train/lr", "train/lr_image", "train/lr_text")),
        Panel("Pairs per second", ("train/samples_per_s",)),
        Panel("Time of a step (s)", ("train/step_s", "train/data_s")),
        Panel("Gradient norm", ("train/grad_norm",), log=True),
        Panel("Logit scale", ("train/logit_scale",)),
        Panel("Peak memory (MB)", ("train/memory_mb",)),
        *(Panel(f"Recall at {k} (%)", recall, share=True) for k, recall in recalls.items()),
        *(Panel(f"{what} rank", rank, log=True) for what, rank in ranks.items()),
    )
    named = {name for panel in panels for name in panel.names}
    others = [Panel(_metric_label(name).capitalize(), (name,)) for name in names if name not in named]
    present = [replace(panel, names=tuple(filter(names.__contains__, panel.names))) for panel in panels]
    return [panel for panel in [*present, *others] if panel.names]


def _metric_label(name: str) -> str:
    """Return a metric's name in words, such as `zero-shot top-1` for `val/digits-zeroshot-val-top1`."""
    if name in NAMES:
        return NAMES[name]
    plain = name.partition("/")[2] or name
    if "-zeroshot-" in plain:
        return f"zero-shot top-{plain[-1]}"
    if plain.endswith("_rank") or "_R@" in plain:
        return " to ".join(plain.split("_")[:3:2])  # the panel's title names the metric
    return plain.replace("_", " ")


def curves(
    points: pd.DataFrame, panel: Panel, *, smooth: int = 1, best: Mapping[str, int] | None = None, source: str = ""
) -> go.Figure:
    """Return one large panel. points: from `frame`.

    smooth: span in points of the moving average over training losses and NOISY; the original points stay visible, but
    faint. best: step of each run's best model.
    """
    figure = go.Figure()
    several, middle = points["run"].nunique() > 1, points["step"].max() / 2
    lines = _lines(points, panel, several)
    for line in lines:
        for trace in _traces(line, smooth, panel, source):
            figure.add_scatter(**trace)
    # The values of all metrics of several runs would hide each other.
    ends = [line for line in lines if not several or line.metric == lines[0].metric]
    ends.sort(key=lambda line: line.last, reverse=True)
    for place, line in enumerate(ends):
        where = "top" if place == 0 else "bottom" if place == len(ends) - 1 else "middle"
        _write_last(figure, line, panel, f"{where} right")
    for place, (run, step) in enumerate((best or {}).items()):
        figure.add_vline(x=step, line={"color": GREY, "width": 1, "dash": "dot"})
        label = {"text": f"best of {text(run)}" if several else "best", "showarrow": False, "font_size": 11}
        position = {"x": step, "y": 1, "xanchor": "right" if step > middle else "left", "yanchor": "bottom"}
        # The best steps of several runs are often close: their labels are below each other, away from the curves' ends.
        if several:
            position |= {"y": 0, "yshift": 14 * place} if panel.share else {"yanchor": "top", "yshift": -14 * place}
        figure.add_annotation(yref="paper", **label, **position)
    figure.update_layout(height=340, margin=MARGIN | {"t": 24, "r": 56}, legend=LEGEND | {"y": 1.06})
    figure.update_layout(showlegend=True, uirevision=panel.title)
    figure.update_xaxes(title_text="Optimizer step", tickformat=",~g", **_step_axis(panel, points))
    figure.update_yaxes(**(_axis(panel, points) | {"title_text": panel.title}))
    return figure


def overview(points: pd.DataFrame, panels: Sequence[Panel], *, smooth: int = 1, source: str = "") -> go.Figure:
    """Return all panels small, side by side. points, smooth: as for curves."""
    rows = max(1, ceil(len(panels) / PER_ROW))
    titles = [panel.title for panel in panels]
    spacing = {"horizontal_spacing": 0.07, "vertical_spacing": 0.3 / rows}
    figure = make_subplots(rows, PER_ROW, subplot_titles=titles, **spacing)
    several = points["run"].nunique() > 1
    for place, panel in enumerate(panels):
        cell = {"row": place // PER_ROW + 1, "col": place % PER_ROW + 1}
        lines = _lines(points, panel, several)
        highest = max(lines, key=lambda line: line.last, default=None)
        for line in lines:
            for trace in _traces(line, smooth, panel, source):
                figure.add_scatter(**(trace | {"showlegend": False}), **cell)
            where = "top left" if line is highest else "bottom left"
            named = len(panel.names) > 1 and not several
            _write_last(figure, line, panel, where, named=named, **cell)
        figure.update_xaxes(tickformat=",~s", nticks=4, **_step_axis(panel, points), **cell)
        figure.update_yaxes(**_axis(panel, points), **cell)
    figure.update_layout(height=40 + 190 * rows, margin=MARGIN | {"t": 28}, uirevision="overview")
    figure.update_annotations(font_size=11, yshift=8)
    return figure


def overview_key(points: pd.DataFrame, panels: Sequence[Panel]) -> str:
    """Return sentences on the styles of an overview, which has no legend; empty for a single run."""
    if points["run"].nunique() < 2:
        return ""
    metrics: dict[str, list[str]] = {}
    for labels in map(_metric_labels, panels):
        for label, dash in zip(labels, DASHES.values(), strict=False):
            metrics.setdefault(dash, []).extend([label] if len(labels) > 1 else [])
    styles = [f"{dash.capitalize()}: {', '.join(dict.fromkeys(labels))}." for dash, labels in metrics.items() if labels]
    return " ".join(["Each run has the colour and shape that it has in the charts above.", *styles])


@dataclass(frozen=True)
class _Line:
    run: str
    name: str
    metric: str
    """Name of the metric in words, the same for zero-shot accuracy on different data."""
    label: str
    points: pd.DataFrame
    """Its points, shares in per cent."""
    colour: str
    shape: str
    dash: str

    @property
    def last(self) -> float:
        """Return the value of the last point."""
        return float(self.points["value"].iloc[-1])


def _lines(points: pd.DataFrame, panel: Panel, several: bool) -> list[_Line]:
    """Return the lines of a panel: for one run a style per metric, else a style per run and a dash per metric."""
    lines, labels = [], _metric_labels(panel)
    for place, run in enumerate(points["run"].drop_duplicates()):
        for name in panel.names:
            rows = _thinned(points[(points["run"] == run) & (points["name"] == name)])
            metric = _metric_label(name)
            number = labels.index(metric)
            look = (*style(place), list(DASHES)[number % len(DASHES)]) if several else (*style(number), "solid")
            rows = rows.assign(value=100 * rows["value"]) if panel.share else rows
            if len(rows):
                lines.append(_Line(run, name, metric, f"{run}: {metric}" if several else metric, rows, *look))
    return lines


def _metric_labels(panel: Panel) -> list[str]:
    """Return the names of a panel's metrics in words, each once: zero-shot accuracies on different data share one."""
    return list(dict.fromkeys(map(_metric_label, panel.names)))


def _thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """Return at most about MOST_POINTS evenly spaced points, including the last."""
    every = ceil(len(rows) / MOST_POINTS)
    return rows.iloc[::-1].iloc[:: max(1, every)].iloc[::-1]


def _traces(line: _Line, smooth: int, panel: Panel, source: str) -> list[dict[str, Any]]:
    number_format = "%{y:.2f} %" if panel.share else "%{y:,.4~g}"
    main: dict[str, Any] = {
        "x": line.points["step"],
        "y": line.points["value"],
        "name": text(line.label),
        "legendgroup": line.label,
        "mode": "lines+markers",
        "marker": {"size": 5, "symbol": line.shape, "maxdisplayed": MARKED},
        "line": {"color": line.colour, "dash": line.dash, "width": 1.8},
        "hovertemplate": (
            f"<b>{text(line.label)}</b><br>step %{{x:,}}: {number_format}<br>{text(source)}<extra></extra>"
        ),
    }
    is_loss = line.name.startswith("train/") and line.name.endswith("loss")
    if smooth <= 1 or not (is_loss or line.name in NOISY):
        return [main]
    faint = main | {"opacity": 0.3, "showlegend": False, "mode": "lines", "line": {"color": line.colour, "width": 1}}
    return [faint, main | {"y": line.points["value"].ewm(span=smooth).mean()}]


def _write_last(figure: go.Figure, line: _Line, panel: Panel, where: str, *, named: bool = False, **cell: int) -> None:
    """Write the last value beside the end of a line. where: position of the text. named: include the curve's name."""
    value = line.last
    if value != value or (panel.log and value <= 0):
        return
    value_text = f"{value:.1f} %" if panel.share else digits(value)
    value_text = f"{text(line.label)} {value_text}" if named else value_text
    figure.add_scatter(
        x=[line.points["step"].iloc[-1]],
        y=[value],
        mode="markers+text",
        text=[value_text],
        textposition=where,
        textfont={"size": 11},  # the colours of lines are too light for text
        marker={"size": 6, "color": line.colour, "symbol": line.shape},
        legendgroup=line.label,
        showlegend=False,
        hoverinfo="skip",
        cliponaxis=False,
        **cell,
    )


def _step_axis(panel: Panel, points: pd.DataFrame) -> dict[str, Any]:
    return whole_ticks(points[points["name"].isin(panel.names)]["step"])


def _axis(panel: Panel, points: pd.DataFrame) -> dict[str, Any]:
    values = points[points["name"].isin(panel.names) & (points["value"] > 0)]["value"]
    if panel.log and len(values):
        return {**log("", values)}
    axis: dict[str, Any] = {"tickformat": ",~g"}
    return axis | ({"rangemode": "tozero", "maxallowed": SHARES_END} if panel.share else {})
