"""Draw timings: every value with its unit, every flag and verdict in words."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine import statistics
from engine.report.compare.rows import APART, FORMATS
from engine.report.quantities import title
from engine.report.style import (
    COLOURS,
    GREY,
    LEGEND,
    MARGIN,
    Style,
    digits,
    family_styles,
    horizontal,
    log,
    text,
    whole_ticks,
    write_beside,
)
from engine.report.timings.readable import NO_LIMIT, interval
from engine.words import in_words

VERDICTS = {
    "faster": ("triangle-right", COLOURS[2]),
    "slower": ("triangle-left", COLOURS[5]),
    "no difference": ("circle-open", COLOURS[0]),
    "undecided": ("diamond-open", COLOURS[1]),
    "not comparable": ("x-thin-open", GREY),
    "needs 3 processes": ("hourglass-open", GREY),
    "needs 3 runs": ("hourglass-open", GREY),
    "same request": ("line-ns-open", GREY),
}
"""Symbol and colour of each verdict. The verdict is also written beside its interval."""
REACH = 3
"""Draw intervals up to this many times the largest ratio, so that a wide one does not squeeze the others."""
OUTLIER = 1.5
"""Samples are drawn up to this many times the 95th percentile."""


def labels(frame: pd.DataFrame) -> "pd.Series[str]":
    """Return a label for each row of a table: the model, and the columns of APART in which rows differ.

    The library is included if two libraries have a model of that name.
    """
    parts = frame["model"].map(text)
    if "library" in frame:
        shared = frame.groupby("model")["library"].transform("nunique") > 1
        parts = parts.mask(shared, frame["library"].map(text) + ":" + parts)
    for column in APART:
        if column in frame and frame[column].nunique() > 1:
            parts = parts + frame[column].map((" · " + FORMATS.get(column, "{}")).format, "ignore").fillna("").map(text)
    return parts


def latency(frame: pd.DataFrame, *, source: str = "") -> go.Figure:
    """Return a bar up to each median, a whisker to p90 if there are enough samples, and a tick per process. Bars with
    flags are hatched, with the flags as text.

    The rows of a model stay together, and the model with the fastest row comes first. frame: from frames.benchmark.
    """
    drawn = frame.assign(label=labels).dropna(subset=["latency_ms"])  # failed rows too make labels differ
    figure = go.Figure()
    for place, (variant, rows) in enumerate(drawn.groupby("variant", sort=False)):
        look = {"colour": COLOURS[place % len(COLOURS)], "source": source}
        bars = median_bars(rows, "latency_ms", rows["latency_ms"], rows["p90_ms"], "spread", **look)
        figure.add_bar(**bars, name=text(variant), showlegend=False)  # each bar's label has its variant
    processes = drawn.assign(ms=drawn["process_medians_ms"].map(process_medians)).explode("ms").astype({"ms": float})
    figure.add_scatter(
        x=processes["ms"],
        y=processes["label"],
        mode="markers",
        name="median of one process",
        marker={"symbol": "line-ns-open", "size": 11, "color": GREY, "line": {"width": 1.6}},
        hovertemplate="%{y}<br>one process: %{x:,.3~r} ms<extra></extra>",
    )
    ends = pd.concat([drawn["latency_ms"], drawn["p90_ms"], processes["ms"]]).groupby(level=0, sort=False).max()
    medians = zip(drawn["latency_ms"], drawn["flags"], strict=True)
    texts = [with_flags(f"{digits(ms)} ms", flags) for ms, flags in medians]
    widest = write_beside(figure, list(zip(ends, drawn["label"], texts, strict=True)))
    fastest = drawn.groupby(["library", "model", "tower"], dropna=False)["latency_ms"].transform("min")
    horizontal(figure, list(drawn["label"].iloc[fastest.argsort(kind="stable")]), title("latency_ms"))
    figure.update_layout(showlegend=True, barmode="overlay")
    figure.update_xaxes(range=[0, widest])
    return figure


def with_flags(value: str, flags: str) -> str:
    """Return the text beside a bar: a value, and in italics the row's flags as words."""
    return value + (f"  <i>{text(in_words(flags.split('; ')))}</i>" if flags else "")


def median_bars(
    rows: pd.DataFrame,
    column: str,
    low: "pd.Series[float]",
    high: "pd.Series[float]",
    spread: str,
    *,
    colour: str,
    source: str,
    what: str = "",
) -> dict[str, Any]:
    """Return bars up to each median, with whiskers from `low` to `high`, hatched where a row has flags.

    rows: with a column `label`. spread: the column with the spread of the processes. what: a word after the label.
    """
    medians, remarks = rows[column], []
    for share, flags in zip(rows[spread], rows["flags"], strict=True):
        differ = "" if pd.isna(share) else f"processes differ by {digits(100 * share)} %"
        remarks.append("; ".join(filter(None, [differ, in_words(flags.split("; "))])))
    pattern = {"shape": ["/" if flags else "" for flags in rows["flags"]], "fillmode": "overlay", "size": 6}
    up, down = (ends.clip(lower=0).fillna(0) for ends in (high - medians, medians - low))
    return {
        "x": medians,
        "y": rows["label"],
        "orientation": "h",
        "marker": {"color": colour, "pattern": pattern},
        "error_x": {"array": up, "arrayminus": down, "thickness": 1.2, "color": GREY},
        "customdata": np.stack([rows["samples"], rows["processes"], remarks], axis=-1),
        "hovertemplate": (
            f"<b>%{{y}}</b>{what}<br>median %{{x:,.3~r}} ms of %{{customdata[0]}} samples in %{{customdata[1]}} "
            f"processes<br>%{{customdata[2]}}<br>{text(source)}<extra></extra>"
        ),
    }


def speedups(frame: pd.DataFrame, *, source: str = "") -> go.Figure:
    """Return each variant against its baseline: ratio, interval and verdict. frame: from frames.benchmark.

    An interval with a lower end and no upper end is unbounded. Its whisker is as long as the longest that are drawn.
    """
    drawn = frame.dropna(subset=["speedup"]).assign(label=labels)
    last = REACH * max([1.0, *drawn["speedup"]])
    high = drawn["speedup_high"].astype(float).fillna(np.inf).where(drawn["speedup_low"].notna())
    drawn = drawn.assign(
        high=high,
        end=high.clip(upper=last).fillna(drawn["speedup"]),
        interval=[interval(*ends) for ends in zip(drawn["speedup_low"], drawn["speedup_high"], strict=True)],
    )
    figure = go.Figure()
    for verdict, rows in drawn.groupby("verdict", sort=False):
        symbol, colour = VERDICTS[str(verdict)]
        up, down = rows["end"] - rows["speedup"], rows["speedup"] - rows["speedup_low"]
        figure.add_scatter(
            x=rows["speedup"],
            y=rows["label"],
            mode="markers",
            name=verdict,
            marker={"symbol": symbol, "size": 10, "color": colour, "line": {"width": 2, "color": colour}},
            error_x={"array": up, "arrayminus": down.fillna(0), "color": colour, "thickness": 1.6},
            customdata=rows[["baseline", "interval"]],
            hovertemplate=(
                f"<b>%{{y}}</b><br>{verdict}: %{{x:.3~r}} times as fast as %{{customdata[0]}}"
                f"<br>%{{customdata[1]}}<br>{text(source)}<extra></extra>"
            ),
        )
    beside = []
    for row in drawn.to_dict("records"):
        label = f"{times(row['speedup'])}  <i>{row['verdict']}</i>"
        if row["high"] > last:
            label += f" (up to {times(row['high'])})" if np.isfinite(row["high"]) else f" ({NO_LIMIT})"
        beside.append((row["end"], row["label"], label))
    write_beside(figure, beside, xshift=9)
    figure.add_vrect(
        x0=1 - statistics.MARGIN, x1=1 + statistics.MARGIN, fillcolor=GREY, opacity=0.25, line_width=0, layer="below"
    )
    figure.add_vline(x=1, line={"color": GREY, "width": 1})
    two_times = "back_to_back_ms" in drawn and drawn["back_to_back_ms"].notna().any()
    what = "Speed-up in latency" if two_times else "Speed-up"
    horizontal(figure, list(drawn["label"]), f"{what} over the baseline (×)<br>99 % interval; grey: 2 % margin")
    ends = [1.05, *drawn["end"]]
    begins = [0.95, *drawn["speedup"], *drawn["speedup_low"].dropna()]
    figure.update_xaxes(range=[min(begins) - 0.05 * (max(ends) - min(begins)), max(ends)])
    return figure


def curves(frame: pd.DataFrame, *, source: str = "") -> go.Figure:
    """Return throughput over latency: a line per model, variant and mode, a point per batch size.

    Each model and variant has a colour. Training has dashed lines and hollow markers. frame: from frames.benchmark.
    """
    drawn = frame.dropna(subset=["latency_ms", "samples_per_s"]).sort_values("batch_size")
    lines = drawn.assign(batch_size=0)  # a line has all batch sizes of a model
    drawn = drawn.assign(label=labels(lines), look=labels(lines.assign(mode="")))
    figure = go.Figure()
    looks = family_styles(drawn["look"].unique().tolist())
    for (label, look, mode), rows in drawn.groupby(["label", "look", "mode"], sort=False):
        colour, symbol = looks[str(look)]
        is_training = mode == "training"
        figure.add_scatter(
            x=rows["latency_ms"],
            y=rows["samples_per_s"],
            mode="lines+markers+text",
            name=label,
            text=rows["batch_size"],
            textposition="top left",
            textfont={"size": 10},
            line={"color": colour, "dash": "dash" if is_training else "solid", "width": 1.6},
            marker={"symbol": symbol + "-open" * is_training, "size": 8, "color": colour},
            hovertemplate=(
                f"<b>{label}</b><br>batch %{{text}}: %{{x:,.3~r}} ms, %{{y:,.3~r}} samples/s"
                f"<br>{text(source)}<extra></extra>"
            ),
        )
    figure.update_layout(height=420, margin=MARGIN, legend=LEGEND, showlegend=True, uirevision="curves")
    figure.update_xaxes(log(title("latency_ms"), drawn["latency_ms"]))
    figure.update_yaxes(log(title("samples_per_s"), drawn["samples_per_s"]))
    return figure


def raw(
    samples: pd.DataFrame, names: Sequence[str], *, column: str = "variant", phase: str = "ms", source: str = ""
) -> go.Figure:
    """Return every sample of a phase in the order taken, one panel per process.

    Samples above OUTLIER times the 95th percentile of the slowest name are drawn there as triangles: a few long pauses
    would squeeze all others into a line.
    samples: from timings.samples.read, of one mode. column: its column with the names.
    """
    limit = OUTLIER * samples.groupby(column)[phase].quantile(0.95).max()
    outliers = bool((samples[phase] > limit).any())
    processes = sorted(samples["process"].unique())
    titles = [f"Process {process}" for process in processes]
    figure = make_subplots(1, len(processes) or 1, shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.015)
    for panel, process in enumerate(processes, start=1):
        for name, (colour, symbol) in family_styles(names).items():
            rows = samples[(samples["process"] == process) & (samples[column] == name)]
            rows = rows.sort_values(phase)  # the legend shows the symbol of the first point
            figure.add_scatter(
                x=rows["round"],
                y=rows[phase].clip(upper=limit),
                customdata=rows[[phase]],
                mode="markers",
                name=text(name),
                legendgroup=name,
                showlegend=panel == 1,
                marker={
                    **{"size": 5, "color": colour, "opacity": 0.7},
                    "symbol": np.where(rows[phase] > limit, "triangle-up-open", symbol),
                },
                hovertemplate=(
                    f"{text(name)}, process {process}, round %{{x}}<br>%{{customdata[0]:,.3~r}} ms per call"
                    f"<br>{text(source)}<extra></extra>"
                ),
                row=1,
                col=panel,
            )
    figure.update_layout(height=360, margin=MARGIN | {"t": 48}, legend=LEGEND | {"y": 1.1}, uirevision="raw")
    figure.update_xaxes(title_text="Round", **whole_ticks(samples["round"]))
    unit = f"ms, △ above {digits(limit)}" if outliers else "ms"
    figure.update_yaxes(title_text=f"Time per call ({unit})", col=1, tickformat=",~g", rangemode="nonnegative")
    figure.update_annotations(font_size=12)
    return figure


def against(both: pd.DataFrame, setup: str, styles: Mapping[str, Style]) -> go.Figure:
    """Return throughput here over published, a point per timed row. both: from published.speeds.beside, one setup."""
    figure = go.Figure()
    both = both.assign(label=both["model"].map(text).where(~both.duplicated("model"), ""))  # one label per model
    middle = np.sqrt(both["theirs"].min() * both["theirs"].max())
    for family, rows in both.groupby("family", sort=False):
        colour, symbol = styles.get(str(family), (GREY, "circle-open"))
        figure.add_scatter(
            x=rows["theirs"],
            y=rows["here"],
            mode="markers+text",
            name=text(family or "other"),
            text=rows["label"],
            textposition=np.where(rows["theirs"] > middle, "top left", "top right"),  # inside the plot
            textfont={"size": 10},
            marker={"color": colour, "symbol": symbol, "size": 9},
            customdata=rows[["model", "variant", "batch_size", "their_batch_size"]],
            hovertemplate=(
                "<b>%{customdata[0]}</b><br>here %{y:,.3~r} samples/s (%{customdata[1]}, batch %{customdata[2]})"
                f"<br>published %{{x:,.3~r}} samples/s (batch %{{customdata[3]}})<br>{text(setup)}<extra></extra>"
            ),
        )
    figure.update_layout(height=420, margin=MARGIN, legend=LEGEND, uirevision=setup)
    figure.update_xaxes(log(f"Published (samples/s)<br>{text(setup)}", both["theirs"]))
    figure.update_yaxes(log("Here (samples/s)", both["here"]))
    return figure


def times(ratio: float) -> str:
    """Return a ratio such as `1.00×`, `0.0493×` or `19×`. Unlike `digits`, it keeps trailing zeros."""
    return f"{ratio:.2f}×" if 0.1 <= ratio < 10 else f"{digits(ratio)}×"


def process_medians(cell: str) -> list[float]:
    """Return the medians in a cell of a frame, such as `12.3; 12.5`, in ms."""
    return [float(value) for value in cell.split("; ") if value]
