"""Make the table for choosing a model: counted costs, published accuracies and measured latency, with their sources."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from engine.published.match import Matched
from engine.published.publishers import ACCURACIES
from engine.report.catalog import catalog
from engine.report.quantities import COMPARABLE, MEASURED, QUANTITIES, title
from engine.report.timings import stored
from engine.report.timings.estimates import OUT_OF_RANGE
from engine.results.flags import SPOILING
from engine.words import plural

FLOPS = {"gmacs": "gflops", "image_gmacs": "image_gflops", "text_gmacs": "text_gflops"}
"""Columns in FLOPs, by the same column in MACs."""


def offered(catalogue: pd.DataFrame) -> list[str]:
    """Return the columns that can be an axis: costs in MACs, values measured here, published accuracies."""
    costs = [column for column in COMPARABLE if column in catalogue and column not in FLOPS.values()]
    return [*costs, *MEASURED, *ACCURACIES]


def in_unit(column: str, flops: bool) -> str:
    """Return the column in FLOPs if `flops` is set and there is one; otherwise `column` itself."""
    return FLOPS.get(column, column) if flops else column


def table(
    catalogue: pd.DataFrame,
    published: Matched,
    accuracies: Sequence[str],
    timed: pd.DataFrame,
    counted: str,
    setting: str = "",
) -> pd.DataFrame:
    """Return the catalogue with the published `accuracies` and timings: a row per model and image size.

    With `accuracies` there is a row per pretrained tag. Row labels depend only on the row, not on the other rows shown.
    timed: from stored.within. setting: its label. counted: versions with which the catalogue was counted. The columns
    `published` and `measured` name the sources, `flags` the reasons for caution about a timing; `provenance` has all
    sources as text, one per line. `tags` has the pretrained tags, for the search.
    """
    if accuracies:
        frame = published.beside(catalogue, accuracies)
        frame["tags"] = frame["pretrained"]
    else:
        tags = published.tags.reindex(catalogue.index).fillna("")
        frame = catalogue.assign(pretrained="", published="", tags=tags)
    frame = frame.merge(timed, on=stored.WHAT, how="left").fillna({"measured": "", "flags": ""})
    frame.index = pd.Index((frame["name"] + " " + frame["image_size"] + " " + frame["pretrained"]).str.strip())
    origins = zip(frame["pretrained"], frame["published"], frame["measured"], strict=True)
    frame["provenance"] = [_provenance(counted, setting, *parts) for parts in origins]
    return frame


def _provenance(counted: str, setting: str, pretrained: str, published: str, measured: str) -> str:
    lines = [f"costs counted here, {counted}"]
    lines += [f"accuracy of {pretrained or 'the model'} published by {published}"] if published else []
    lines += [f"latency measured: {setting}; {measured}"] if measured else []
    return "\n".join(lines)


def to_measure(frame: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Return the rows on the Pareto front, with MACs in place of measured values: the rows to measure first."""
    x, y = ("gmacs" if column in MEASURED else column for column in (x, y))
    rows = ranked(frame[frame["status"] == "ok"], x, y)
    return rows[rows["front"]]


def flagged(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return which rows have a timing with flags, which can be repeated."""
    return ~frame["flags"].isin(["", OUT_OF_RANGE])


def spoiled(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return which rows have a timing with a flag of SPOILING, or an estimate outside the fitted range."""
    return frame["flags"].str.contains("|".join([*SPOILING, OUT_OF_RANGE]))


def left_off(frame: pd.DataFrame, x: str, y: str) -> int:
    """Return how many rows with both values `ranked` keeps off the front because they are spoiled."""
    return int(spoiled(frame.dropna(subset=[x, y])).sum())


def sentence(
    frame: pd.DataFrame, kept: pd.DataFrame, x: str, y: str, front: int, selected: int, left_off: int = 0
) -> str:
    """Return how many rows are shown, what a row is, and how many lack a value, are on the front and are selected.

    kept: rows within the limits. left_off: how many rows with spoiled timings were kept off the front.
    """
    lacking = int(kept[[x, y]].isna().any(axis=1).sum())
    tagged = frame.duplicated(["name", "image_size"]).any()
    a_row = "one per model, image size and pretrained tag" if tagged else "one per model and image size"
    parts = [f"**{len(kept) - lacking:,}** of {len(frame):,} rows shown ({a_row})"]
    parts += [f"{lacking:,} more in the table without a value for this plot"] if lacking else []
    parts += [f"**{front:,}** on the Pareto front"] if front else []
    parts += [f"{plural(left_off, 'unreliable row')} left off the front"] if left_off else []
    parts += [f"**{selected:,}** selected"] if selected else []
    return "; ".join(parts)


def alone(frame: pd.DataFrame, limits: Mapping[str, float]) -> list[str]:
    """Return a sentence per limit (`min_gmacs`): how many rows remain with it only, or that no row has a value."""
    lines = []
    for name, limit in limits.items():
        side, _, column = name.partition("_")
        if frame[column].isna().all():
            reason = ": no model is timed in the chosen timing setting" if column in MEASURED else ""
            lines.append(f"No row has a value for {title(column)}{reason}.")
            continue
        remaining, known = int(catalog.meets(frame, name, limit).sum()), int(frame[column].notna().sum())
        sign, verb = "≥" if side == "min" else "≤", "remains" if known == 1 else "remain"
        rows = f"{remaining:,} of {plural(known, 'row')} with a value {verb}"
        lines.append(f"With only the limit {title(column)} {sign} {limit:g}, {rows}.")
    return lines


def left_out(frame: pd.DataFrame, limits: Mapping[str, float]) -> str:
    """Return a sentence that counts the rows that limits leave out although their true values may meet them.

    These rows meet all other limits, but have no speed, a disturbed timing or no published accuracy. Empty if there are
    none. frame: rows that meet all conditions except the limits. limits: as for `alone`.
    """
    meets = pd.DataFrame({name: catalog.meets(frame, name, limit) for name, limit in limits.items()}, frame.index)
    columns = {name: name.partition("_")[2] for name in limits}

    def split(group: Collection[str]) -> tuple["pd.Series[bool]", "pd.Series[bool]"]:
        """Return which rows meet the limits on columns outside the group, and which lack a value that is limited."""
        own = [name for name in limits if columns[name] in group]
        return meets.drop(columns=own).all(axis=1), frame[[columns[name] for name in own]].isna().any(axis=1)

    candidates, untimed = split(MEASURED)
    reasons = {"without a known speed": candidates & untimed}
    if "flags" in frame:
        missed = candidates & ~untimed & ~meets.all(axis=1)
        reasons["with an unreliable timing that misses the limit"] = missed & spoiled(frame) & flagged(frame)
    candidates, unpublished = split(ACCURACIES)
    reasons["without a published value"] = candidates & unpublished
    parts = [f"{plural(count, 'row')} {reason}" for reason, rows in reasons.items() if (count := int(rows.sum()))]
    return f"Left out by limits: {'; '.join(parts)}." if parts else ""


def front(frame: pd.DataFrame, x: str, y: str) -> "pd.Series[bool]":
    """Return which rows are on the Pareto front of two columns. QUANTITIES says whether small or large values are
    better.

    A row is on the front if no other row is at least as good in both and better in one. Equal rows are on it together.
    Rows without a value are not.
    """
    goodness = pd.DataFrame({"x": _goodness(frame, x), "y": _goodness(frame, y)}, index=frame.index).dropna()
    best = goodness.groupby("x")["y"].max().sort_index(ascending=False)  # the best x comes first
    best_so_far = best.cummax().shift(fill_value=-np.inf)
    leading = best[best > best_so_far]
    on_front = goodness["y"] == goodness["x"].map(leading)
    return on_front.reindex(frame.index, fill_value=False)


def ranked(frame: pd.DataFrame, x: str, y: str, *, with_spoiled: bool = True) -> pd.DataFrame:
    """Return the rows in order of interest, with the column `front`.

    Rows on the front come first, sorted by x, then all others by y and x, both best first. Rows without a value come
    last. with_spoiled: allow rows with spoiled timings on the front.
    """
    candidates = frame if with_spoiled else frame[~spoiled(frame)]
    on_front = front(candidates, x, y).reindex(frame.index, fill_value=False)
    by_x, by_y = -_goodness(frame, x), -_goodness(frame, y)
    keys = {"rest": ~on_front, "lacking": by_x.isna() | by_y.isna()}
    keys |= {"1": by_x.where(on_front, by_y), "2": by_y.where(on_front, by_x)}
    return frame.assign(front=on_front).loc[pd.DataFrame(keys).sort_values(list(keys), kind="stable").index]


def ordered(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the rows sorted by the columns `keys`, with `-` in front if descending. Rows without a value come last."""
    columns = [key.removeprefix("-") for key in keys]
    return frame.sort_values(
        columns, ascending=[not key.startswith("-") for key in keys], kind="stable", na_position="last", key=_comparable
    )


def _comparable(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return the values to sort by: image sizes as numbers, texts without regard to case."""
    if column.name == "image_size":
        return pd.to_numeric(column.str.partition("x")[0], errors="coerce")
    return column if pd.api.types.is_numeric_dtype(column) else column.str.lower()


def _goodness(frame: pd.DataFrame, column: str) -> "pd.Series[Any]":
    values = frame[column].astype(float)
    return values if QUANTITIES[column].better == "larger" else -values
