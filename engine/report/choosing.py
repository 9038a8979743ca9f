"""The table one chooses from: costs counted, accuracies published, latency measured, each with where it comes from."""

from collections.abc import Sequence

import pandas as pd

from engine.report.accuracies import Matched
from engine.report.pareto import ranked
from engine.report.publishers import FIGURES
from engine.report.quantities import COMPARABLE, MEASURED

FLOPS = {"gmacs": "gflops", "image_gmacs": "image_gflops", "text_gmacs": "text_gflops"}
"""What work is called in the other unit."""


def offered(catalogue: pd.DataFrame) -> list[str]:
    """The figures that may stand on an axis: costs in MACs, what is measured here, what is published."""
    costs = [column for column in COMPARABLE if column in catalogue and column not in FLOPS.values()]
    return [*costs, *MEASURED, *FIGURES]


def in_unit(column: str, flops: bool) -> str:
    """A column of work in the unit chosen; other columns as they are."""
    return FLOPS.get(column, column) if flops else column


def table(
    catalogue: pd.DataFrame, published: Matched, figures: Sequence[str], timed: pd.DataFrame, counted: str
) -> pd.DataFrame:
    """The catalogue with published `figures` and timings: a row per model and image size, and per pretrained tag where
    figures are asked for. Its labels tell what a row is, whatever else is shown.

    timed: of timings.within; counted: with what the catalogue was counted. Where the figures come from, stands in
    `published` and `measured`, and for a reader in `provenance`, line by line.
    """
    frame = published.beside(catalogue, figures) if figures else catalogue.assign(pretrained="", published="")
    frame = frame.merge(timed, on=["name", "image_size"], how="left").fillna({"measured": ""})
    frame.index = pd.Index((frame["name"] + " " + frame["image_size"] + " " + frame["pretrained"]).str.strip())
    said = zip(frame["pretrained"], frame["published"], frame["measured"], strict=True)
    frame["provenance"] = [_said(counted, *parts) for parts in said]
    return frame


def _said(counted: str, pretrained: str, published: str, measured: str) -> str:
    lines = [f"costs counted here, {counted}"]
    lines += [f"accuracy of {pretrained or 'the model'} published by {published}"] if published else []
    lines += [f"latency measured here: {measured}"] if measured else []
    return "\n".join(lines)


def to_measure(frame: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """The rows whose latency would tell most: the front, with MACs standing in for what is not measured yet."""
    if x in MEASURED or y in MEASURED:
        x, y = (("gmacs" if column in MEASURED else column) for column in (x, y))
    known = frame[frame["status"] == "ok"]
    first = ranked(known, x, y)
    return first[first["front"]]
