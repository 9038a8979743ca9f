"""The Pareto front: the rows that no other row beats in one figure without losing in the other."""

from typing import Any

import numpy as np
import pandas as pd

from engine.report.quantities import QUANTITIES


def front(frame: pd.DataFrame, x: str, y: str) -> "pd.Series[bool]":
    """Return which rows are on the front of two figures, each of which one wants small or large as QUANTITIES says.

    A row is on it if no other is at least as good in both and better in one; equals are on it together. Rows that lack
    a figure are not.
    """
    goodness = pd.DataFrame({"x": _goodness(frame, x), "y": _goodness(frame, y)}, index=frame.index).dropna()
    best = goodness.groupby("x")["y"].max().sort_index(ascending=False)  # from the best x on
    before = best.cummax().shift(fill_value=-np.inf)
    leading = best[best > before]
    on = goodness["y"] == goodness["x"].map(leading)
    return on.reindex(frame.index, fill_value=False)


def ranked(frame: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Return the rows in the order in which to look at them, with `front`: those on it by x, best first, then the
    others by y (and x), those that lack a figure last."""
    on = front(frame, x, y)
    keys = pd.DataFrame({"x": -_goodness(frame, x), "y": -_goodness(frame, y)}, index=frame.index)
    first = keys[on].sort_values(["x", "y"], kind="stable").index
    rest = keys[~on]
    lacking = rest.isna().any(axis=1)
    then = rest[~lacking].sort_values(["y", "x"], kind="stable").index
    last = rest[lacking].sort_values(["y", "x"], kind="stable").index
    return frame.assign(front=on).loc[[*first, *then, *last]]


def _goodness(frame: pd.DataFrame, column: str) -> "pd.Series[Any]":
    values = frame[column].astype(float)
    return values if QUANTITIES[column].better == "larger" else -values
