"""Rows of several runs: which of one run stands beside which of another."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.results import Row
from engine.specs import ModelName

KEYS: dict[str, tuple[str, ...]] = {
    "benchmark": (
        *("library", "model", "tower", "mode", "variant", "batch_size"),
        *("image_size", "context_length"),
    ),
    "recurrent": ("model", "seq_length", "hidden_size", "mini_batch"),
    "profile": ("library", "model", "image_size"),
    "device": ("operation", "dtype"),
    "evaluate": ("library", "model", "task"),
}
"""What tells the rows of one run apart, by kind."""
WRITTEN = {
    "batch_size": "batch {}",
    "mini_batch": "batch {}",
    "seq_length": "{} steps",
    "hidden_size": "hidden {}",
    "image_size": "{} px",
    "context_length": "{} tokens",
}
Place = tuple[Any, ...]


def keys(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the fields that tell rows of this kind apart."""
    return KEYS.get(rows[0].kind, ("library", "model")) if rows else ()


def axes(runs: Mapping[int, Sequence[Row]]) -> tuple[str, ...]:
    """Return the fields in which whole runs differ, each having one value of its own: what was asked differently on
    purpose.

    runs: rows of one kind by run.
    """
    groups = [rows for rows in runs.values() if rows]
    found = []
    for name in keys(groups[0]) if groups else ():
        values = [{getattr(row, name) for row in rows} for rows in groups]
        if all(len(distinct) == 1 for distinct in values) and len(set.union(*values)) > 1:
            found.append(name)
    return tuple(found)


def placed(rows: Sequence[Row], without: Sequence[str]) -> dict[Place, Row]:
    """Return each row by what it is matched by: its keys but those of `without`. Of several alike, the last."""
    return {place(row, without): row for row in rows}


def place(row: Row, without: Sequence[str] = ()) -> Place:
    """Return what a row is matched by: its keys but those of `without`."""
    return tuple(getattr(row, name) for name in keys([row]) if name not in without)


def telling(rows: Sequence[Row], without: Sequence[str] = ()) -> list[str]:
    """Return what tells each of these rows from the others, such as `eager · batch 8`; empty where nothing does.

    without: fields that stand elsewhere.
    """
    names = [name for name in keys(rows) if name not in without]
    differing = [name for name in names if len({getattr(row, name) for row in rows}) > 1]
    return [_written(row, differing) for row in rows]


def named(row: Row) -> str:
    """Return all that a row is of: `timm:resnet18 · inference · eager · batch 8 · 224 px`."""
    names = [name for name in keys([row]) if name != "library"]
    return _written(row, ["library", *names] if row.kind in ("benchmark", "profile") else names)


def _written(row: Row, names: Sequence[str]) -> str:
    values = {name: getattr(row, name) for name in names}
    if "library" in values and "model" in values:
        values = {"model": ModelName.of(values.pop("library"), values.pop("model")), **values}
    return " · ".join(
        WRITTEN.get(name, "{}").format(value) for name, value in values.items() if value not in (None, "", "whole")
    )
