"""Show every stored timing of one model over time: which changed, and which had only another setting."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.report import frames
from engine.report.quantities import title
from engine.report.style import COLOURS, LEGEND, MARGIN, SHAPES, log, text
from engine.report.timings.rates import computes_in, where
from engine.results import BenchmarkRow, Row
from engine.store import Filter, Run, Store
from engine.words import in_words

ADDED = ("run", "date", "where", "low_ms", "high_ms", "spread_percent", "torch")
"""Columns that are added to those of frames.benchmark."""
SETTING_FORMATS = {
    **{"mode": "{}", "tower": "{} tower", "variant": "{}", "batch_size": "batch {:g}", "image_size": "{} px"},
    **{"num_classes": "{:g} classes", "in_chans": "{:g} channels", "model_kwargs": "{}"},
    **{"context_length": "{:g} tokens", "dtype": "{}", "cache": "{} cache", "cudnn_benchmark": "cuDNN benchmark {}"},
    **{"deterministic": "deterministic {}", "optimizer": "{}", "where": "{}"},
}
"""Columns that make up a setting, with their format in labels."""
MAIN = ("mode", "variant", "batch_size", "dtype")
"""Columns in the label if all lines have the same setting."""


def runs(store: Store, name: str, kind: str, limit: int) -> list[Run]:
    """Return the latest runs of a kind that include a model, newest first. name: qualified."""
    return store.find(Filter(kinds=(kind,), only_model=name), limit=limit)


def of_run(run: Run, rows: Iterable[Row], name: str) -> pd.DataFrame:
    """Return a model's lines in a benchmark: the columns of frames.benchmark and ADDED. name: qualified.

    `low_ms` and `high_ms` are the medians of the fastest and the slowest process if there were several. `where` is the
    device on its host, `dtype` that of matrix products, `torch` its version.
    """
    timed = [row for row in rows if isinstance(row, BenchmarkRow) and row.name == name]
    medians = [row.process_medians_ms if len(row.process_medians_ms) > 1 else (np.nan,) for row in timed]
    frame, environment = frames.benchmark(timed), run.environment
    started = environment.date if environment else run.created_at.isoformat()
    hosts = [(row.host or environment.host) if environment else "" for row in timed]
    return frame.assign(
        run=run.id,
        date=pd.to_datetime([row.date or started for row in timed], utc=True, format="ISO8601"),
        host=hosts,
        where=[where(host, row.device, row.device_name, row.threads) for host, row in zip(hosts, timed, strict=True)],
        dtype=[computes_in(row) for row in timed],
        low_ms=[min(ms) for ms in medians],
        high_ms=[max(ms) for ms in medians],
        spread_percent=100 * frame["spread"],
        flags=[in_words(row.flags) for row in timed],
        torch=environment.versions.get("torch", "") if environment else "",
    )


def together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the lines of several runs, newest first."""
    filled = [part for part in parts if len(part)] or [frames.benchmark([]).assign(**dict.fromkeys(ADDED, np.nan))]
    frame = pd.concat(filled, ignore_index=True)
    return frame.sort_values(["date", "run"], ascending=False, kind="stable", ignore_index=True)


def settings(frame: pd.DataFrame) -> "pd.Series[str]":
    """Return a label for the setting of each line: the columns in which lines differ, or MAIN if none differ."""
    columns = [column for column in SETTING_FORMATS if frame[column].nunique(dropna=False) > 1] or list(MAIN)
    labels = []
    for line in frame[columns].to_dict("records"):
        values = {str(name): value for name, value in line.items() if not (pd.isna(value) or value == "")}
        switches = {name: "on" if value else "off" for name, value in values.items() if isinstance(value, bool)}
        labels.append(", ".join(SETTING_FORMATS[name].format(value) for name, value in (values | switches).items()))
    return pd.Series(labels, index=frame.index, dtype=str)


def over_time(frame: pd.DataFrame) -> go.Figure:
    """Return median latency against date, with a colour and shape per setting. Bars go from the fastest process to the
    slowest.

    Hollow marks have flags. frame: from `together`.
    """
    drawn = frame.dropna(subset=["latency_ms"]).sort_values("date", kind="stable")
    drawn = drawn.assign(setting=settings(drawn))
    figure = go.Figure()
    for place, (setting, rows) in enumerate(drawn.groupby("setting", sort=True)):
        colour, shape = COLOURS[place % len(COLOURS)], SHAPES[place // len(COLOURS) % len(SHAPES)]
        figure.add_scatter(
            x=rows["date"],
            y=rows["latency_ms"],
            mode="lines+markers",
            name=text(setting),
            line={"color": colour, "width": 1, "dash": "dot"},
            marker={
                "symbol": [f"{shape}-open" if flags else shape for flags in rows["flags"]],
                "size": 9,
                "color": colour,
                "line": {"width": 2, "color": colour},
            },
            error_y={
                "array": (rows["high_ms"] - rows["latency_ms"]).clip(lower=0).fillna(0),
                "arrayminus": (rows["latency_ms"] - rows["low_ms"]).clip(lower=0).fillna(0),
                "color": colour,
                "thickness": 1.4,
            },
            customdata=np.stack([rows["run"], rows["flags"].map(text), rows["torch"].map(text)], axis=-1),
            hovertemplate=(
                f"<b>{text(setting)}</b><br>%{{y:,.3~r}} ms, run %{{customdata[0]}}, %{{x|%Y-%m-%d %H:%M}} UTC"
                "<br>torch %{customdata[2]}<br>%{customdata[1]}<extra></extra>"
            ),
        )
    # more than two settings are listed below one another, because they do not fit side by side
    vertical = {"orientation": "v", "x": 0, "xanchor": "left", "y": -0.3, "yanchor": "top"}
    count = drawn["setting"].nunique()
    legend = LEGEND | (vertical if count > 2 else {})
    figure.update_layout(height=420 + 20 * count, margin=MARGIN, legend=legend, showlegend=True, uirevision="over time")
    figure.update_xaxes(title_text="Timed on (UTC)")
    if drawn["date"].nunique() == 1:  # plotly would show a millisecond
        day, date = pd.Timedelta(days=1), drawn["date"].iloc[0]
        figure.update_xaxes(range=[date - day, date + day])
    figure.update_yaxes(log(title("latency_ms"), drawn["latency_ms"]))
    return figure
