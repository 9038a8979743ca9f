"""Match the rows of several runs with each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.results import Row
from engine.specs import ModelName
from engine.specs.fields.building import OPTIONS

TIMINGS = ("benchmark", "recurrent")
"""Kinds of timings: their rows are compared by ratios with intervals, also within one run."""
KEYS: dict[str, tuple[str, ...]] = {
    "benchmark": (
        *("library", "model", "tower", "mode", "variant", "batch_size"),
        *("image_size", "context_length", *OPTIONS),
    ),
    "recurrent": ("model", "seq_length", "hidden_size", "mini_batch"),
    "profile": ("library", "model", "image_size", "batch_size", *OPTIONS),
    "device": ("operation", "dtype"),
    "evaluate": ("library", "model", "checkpoint", "data", "task"),
}
"""Fields that identify a row within its run, by kind."""
APART = tuple(key for key in dict.fromkeys((*KEYS["benchmark"], *KEYS["recurrent"])) if key not in ("library", "model"))
"""Fields in which timings of one model or runner may differ within a run."""
FORMATS = {
    "batch_size": "batch {}",
    "mini_batch": "batch {}",
    "seq_length": "{} time steps",
    "hidden_size": "hidden {}",
    "image_size": "{} px",
    "context_length": "{} tokens",
    "num_classes": "{} classes",
    "in_chans": "{} channels",
}
"""The format of a field's value in a label; other values are written as they are."""
Key = tuple[Any, ...]


def key_fields(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the fields that identify a row within its run. All rows are of one kind."""
    return KEYS.get(rows[0].kind, ("library", "model")) if rows else ()


def axes(runs: Mapping[int, Sequence[Row]]) -> tuple[str, ...]:
    """Return the fields in which whole runs differ: each run's ok rows have one value, set on purpose.

    runs: rows by run. Failed rows may lack values, such as the image size.
    """
    groups = [ok for rows in runs.values() if (ok := [row for row in rows if row.status == "ok"])]
    differing = []
    for name in key_fields(groups[0]) if groups else ():
        values = [{getattr(row, name) for row in rows} for rows in groups]
        if all(len(distinct) == 1 for distinct in values) and len(set.union(*values)) > 1:
            differing.append(name)
    return tuple(differing)


def by_key(rows: Sequence[Row], without: Sequence[str]) -> dict[Key, Row]:
    """Return each row by its identifying values without the fields in `without`. The last of equal rows is kept."""
    return {key_of(row, without): row for row in rows}


def key_of(row: Row, without: Sequence[str] = ()) -> Key:
    """Return the values that identify a row, without the fields in `without`."""
    return tuple(getattr(row, name) for name in key_fields([row]) if name not in without)


def differing_labels(rows: Sequence[Row], without: Sequence[str] = ()) -> list[str]:
    """Return a label per row of the fields in which rows differ: `eager · batch 8`. without: fields left out."""
    names = [name for name in key_fields(rows) if name not in without]
    differing = [name for name in names if len({getattr(row, name) for row in rows}) > 1]
    return [_label(row, differing) for row in rows]


def full_label(row: Row) -> str:
    """Return a row's full label, such as `timm:resnet18 · inference · eager · batch 8 · 224 px`."""
    return _label(row, key_fields([row]))


def _label(row: Row, names: Sequence[str]) -> str:
    values = {name: getattr(row, name) for name in names}
    if "library" in values and "model" in values:
        values = {"model": ModelName.of(values.pop("library"), values.pop("model")), **values}
    return " · ".join(
        FORMATS.get(name, "{}").format(value) for name, value in values.items() if value not in (None, "", "whole")
    )
