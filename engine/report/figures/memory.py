"""Draw a model's estimated memory by batch size and data type, beside the memory that timings measured."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.report.style import COLOURS, GREY, LEGEND, MARGIN, digits, log, style, text
from engine.report.timings import needs
from engine.specs import BenchmarkSpec

WAYS: dict[str, dict[str, str]] = {
    "inference": {"mode": "inference"},
    "training, SGD": {"mode": "training", "optimizer": "sgd"},
    "training, AdamW": {"mode": "training", "optimizer": "adamw"},
}
"""Fields of the request for each way to use a model."""
OPTIMIZERS = {"": "SGD", "sgd": "SGD", "adamw": "AdamW"}
"""Optimizers as WAYS writes them. Rows without an optimizer are older than the choice, when all used SGD."""
BATCHES = tuple(2**power for power in range(13))
PRECISIONS = ("float32", "amp", "bfloat16", "float16")
MEASURED = ["run", "date", "way", "image_size", "batch_size", "variant", "precision", "where", "what", "peak_gb"]
PEAKS = {"device_peak_mb": "allocated on the device", "process_peak_mb": "whole process, with PyTorch itself"}


def estimate(row: pd.DataFrame, way: str, device: str) -> pd.DataFrame:
    """Return the GB (1e9 bytes) that a forward pass or a training step should need, from timings.needs.memory.

    row: one counted row of the catalogue. way: one of WAYS. device: a CPU needs less than an accelerator in amp.
    Columns: batch_size, and one per precision.
    """
    name, size = row["name"].iloc[0], row["image_size"].iloc[0] or None
    request = {"models": (name,), "image_size": size, "device": device, **WAYS[way]}

    def gb(batch: int, precision: str) -> float:
        spec = BenchmarkSpec.model_validate(request | {"batch_size": batch, "precision": (precision,)})
        need = needs.memory(spec, [name], row)
        return need.gb if need else np.nan

    table = pd.DataFrame({"batch_size": BATCHES})
    for precision in PRECISIONS:  # each image adds the same memory, and each call of `gb` takes 4 ms
        one, two = gb(1, precision), gb(2, precision)
        table[precision] = (one + (two - one) * (table["batch_size"] - 1)).round(9)  # to bytes
    return table


def largest(estimated: pd.DataFrame, gb: float) -> dict[str, int | None]:
    """Return, for each precision, the largest batch size that should fit into `gb` GB. None if no batch size does."""
    return {
        precision: int(fits.max()) if len(fits := estimated.loc[estimated[precision] <= gb, "batch_size"]) else None
        for precision in PRECISIONS
    }


def peaks(timed: pd.DataFrame) -> pd.DataFrame:
    """Return the peaks that timings measured, one per line: MEASURED. timed: from timings.by_model.together.

    On an accelerator, a peak is the memory allocated on it; on a CPU, all memory of the process, including PyTorch.
    """
    whole = timed[timed["tower"] == "whole"]
    on_device = whole["device_peak_mb"].notna()
    column = pd.Series(np.where(on_device, "device_peak_mb", "process_peak_mb"), index=whole.index, dtype=object)
    peak = whole["device_peak_mb"].fillna(whole["process_peak_mb"]) / 1e3
    trained = "training, " + whole["optimizer"].replace(OPTIMIZERS)
    way = whole["mode"].where(whole["mode"] == "inference", trained)
    with_peaks = whole.assign(peak_gb=peak, what=column.map(PEAKS), way=way)
    return with_peaks.loc[with_peaks["peak_gb"].notna(), MEASURED].reset_index(drop=True)


def figure(estimated: pd.DataFrame, measured: pd.DataFrame, limits: dict[str, float]) -> go.Figure:
    """Return memory against batch size: a line per estimate, a mark per measured peak, and the devices' memory.

    measured: from peaks, for the same way and image size. limits: GB by device.
    """
    drawn = go.Figure()
    for place, (names, values) in enumerate(_distinct(estimated).items()):
        colour, shape = style(place)
        drawn.add_scatter(
            x=estimated["batch_size"],
            y=values,
            mode="lines+markers",
            name=f"{names}, estimated",
            line={"color": colour, "width": 1.6},
            marker={"size": 6, "symbol": shape},
            hovertemplate=f"batch %{{x}}: about %{{y:,.3~r}} GB<br>{names}, estimated<extra></extra>",
        )
    for place, (what, rows) in enumerate(measured.groupby("what", sort=False)):
        drawn.add_scatter(
            x=rows["batch_size"],
            y=rows["peak_gb"],
            mode="markers",
            name=f"measured: {what}",
            marker={"symbol": ("x", "star")[place % 2], "size": 9, "color": COLOURS[5 - place % 2]},
            customdata=np.stack([rows["run"], rows["variant"].map(text), rows["precision"].map(text)], axis=-1),
            hovertemplate=(
                f"batch %{{x}}: %{{y:,.3~r}} GB {what}<br>%{{customdata[1]}}, %{{customdata[2]}}, "
                "run %{customdata[0]}<extra></extra>"
            ),
        )
    for device, gb in limits.items():
        drawn.add_hline(y=gb, line={"color": GREY, "dash": "dash", "width": 1.2})
        label = f"{text(device)} has {digits(gb)} GB"
        # on a log axis, y is an exponent
        position = {"x": 0, "xref": "x domain", "xanchor": "left", "y": np.log10(gb), "yanchor": "bottom"}
        drawn.add_annotation(text=label, showarrow=False, font={"size": 11}, **position)
    drawn.update_layout(height=380, margin=MARGIN, legend=LEGEND, showlegend=True, uirevision="memory")
    drawn.update_xaxes(title_text="Batch size", type="log", tickvals=list(BATCHES), tickformat=",")
    shown = pd.concat([*_distinct(estimated).values(), measured["peak_gb"], pd.Series(limits, dtype=float)])
    drawn.update_yaxes(log("Memory (GB)", shown))
    return drawn


def _distinct(estimated: pd.DataFrame) -> "dict[str, pd.Series[float]]":
    """Return the different estimates, each under the names of all precisions that share it."""
    precisions_by_values: dict[tuple[float, ...], list[str]] = {}
    for precision in PRECISIONS:
        precisions_by_values.setdefault(tuple(estimated[precision]), []).append(precision)
    return {", ".join(names): estimated[names[0]] for names in precisions_by_values.values()}
