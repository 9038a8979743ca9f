"""Compare values that need no interval (counts, rates, accuracies) of several runs or models."""

from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd

from engine.report import frames
from engine.report.compare import rows as compare_rows
from engine.report.quantities import is_share
from engine.results import DeviceRow, Row
from engine.results.clip import EvaluateRow, TrainRow, best_epoch

How = Literal["ratio", "difference"]
SIGN: dict[How, str] = {"ratio": "/", "difference": "−"}
HOW: dict[str, How] = {"evaluate": "difference", "train": "difference"}
"""Kinds whose values are compared by their difference, such as accuracies. All others are compared by their ratio."""
LONG = ["what", "metric", "subject", "value"]
"""Columns of a table with one value per line."""
_WHOLE = ("epoch", "step", "samples_seen", "images")
"""Fields with whole numbers that are compared."""
PERCENT = "_percent"
"""Ending of the names of shares. Shares are compared in per cent, and their differences are in percentage points."""


def metrics(kind: type[Row]) -> list[str]:
    """Return the fields of a row class that can be compared, in their order."""
    fields = kind.model_fields.items()
    numbers = [name for name, field in fields if field.annotation == float | None or name in _WHOLE]
    # a run's duration is not one of its results, and the time of an operation depends on its size, unlike its rate
    left_out = {"seconds"} | ({"latency_ms"} if kind is DeviceRow else set())
    return [name for name in numbers if name not in left_out]


def of_runs(runs: Mapping[int, Sequence[Row]]) -> pd.DataFrame:
    """Return every value of every ok row as LONG. `what` identifies a row within its run; runs are called `run 12`.

    runs: rows of one kind by run. Fields in which whole runs differ, such as the model, are compared and not in `what`.
    """
    rows = [(run, row) for run, rows_of_run in runs.items() for row in rows_of_run if row.status == "ok"]
    labels = compare_rows.differing_labels([row for _, row in rows], without=compare_rows.axes(runs))
    lines = [
        (what, metric_name(metric), f"run {run}", 100 * value if is_share(metric) else value)
        for (run, row), what in zip(rows, labels, strict=True)
        for metric, value in _values(row).items()
        if value is not None
    ]
    return pd.DataFrame(lines, columns=LONG).astype({"value": float}).dropna()


def best_row(rows: Sequence[Row]) -> list[TrainRow]:
    """Return the row of a training's best epoch; of its last one if none is marked; none before the first step."""
    trained = [row for row in rows if isinstance(row, TrainRow) and row.step]
    best = best_epoch(trained)
    return [best] if best else trained[-1:]


def _values(row: Row) -> dict[str, float | None]:
    """Return the values of a row that can be compared, with recalls at other ranks."""
    recalls = row.recalls if isinstance(row, EvaluateRow) else {}
    return {metric: getattr(row, metric) for metric in metrics(type(row))} | recalls


def metric_name(metric: str) -> str:
    """Return the name of a row's field among the compared values: with PERCENT for a share."""
    return metric + PERCENT if is_share(metric) else metric


def of_catalogue(catalogue: pd.DataFrame, names: Sequence[str], wanted: Sequence[str]) -> pd.DataFrame:
    """Return the wanted columns of models (qualified names) in the catalogue as LONG, at their own image size."""
    costs = frames.own_sizes(catalogue).reindex(list(names))[[metric for metric in wanted if metric in catalogue]]
    lines = costs.rename_axis("subject").reset_index().melt("subject", var_name="metric")
    return lines.assign(what="")[LONG].astype({"value": float}).dropna(subset="value")


def beside(values: pd.DataFrame, subjects: Sequence[str], baseline: str, how: How = "ratio") -> pd.DataFrame:
    """Return a line per what and metric, with a column per subject and columns for ratios or differences to the
    baseline.

    values: LONG. A ratio is missing when the baseline is 0 or one of the values does not exist.
    """
    keys = values[["what", "metric"]].drop_duplicates()
    wide = values.drop_duplicates(LONG[:3], keep="last").set_index(LONG[:3])["value"].unstack("subject")
    wide = wide.reindex(pd.MultiIndex.from_frame(keys)).reindex(columns=list(subjects))
    base = wide[baseline]
    for subject in subjects:
        if subject != baseline:
            ratio = wide[subject] / base.where(base != 0)
            wide[against(subject, baseline, how)] = ratio if how == "ratio" else wide[subject] - base
    wide.columns.name = None
    return wide.reset_index()


def against(subject: str, baseline: str, how: How = "ratio") -> str:
    """Return the name of the column of `beside` with the ratios or differences of a subject."""
    return f"{subject} {SIGN[how]} {baseline}"
