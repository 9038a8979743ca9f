"""The timings that a store has of several models, setting by setting, to lay over each other."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.report.compare.timings import Timed
from engine.report.timings import by_model, stored
from engine.report.timings.stored import Setting
from engine.results import BenchmarkRow, Row
from engine.store import Run, Store

MOST_RUNS = 50
"""Benchmarks looked through for each model, newest first."""


def runs(store: Store, names: Iterable[str]) -> list[Run]:
    """Return the benchmarks that may have timed some of these models (qualified names), newest first."""
    found = {run.id: run for name in names for run in by_model.runs(store, name, limit=MOST_RUNS)}
    return [found[number] for number in sorted(found, reverse=True)]


def timed(
    newest_first: Iterable[tuple[Run, Path, Sequence[Row]]], names: Sequence[str]
) -> list[tuple[Setting, list[Timed]]]:
    """Return the latest timing of each model in every setting, in the order of names; settings with most models first.

    newest_first: runs with their folders and rows.
    """
    found: dict[Setting, dict[str, Timed]] = {}
    for run, folder, rows in newest_first:
        for row in rows:
            if not isinstance(row, BenchmarkRow) or row.name not in names:
                continue
            for setting in stored.settings(
                stored.table(stored.of_run(run, [row]))
            ):  # one, or none of what is no such timing
                found.setdefault(setting, {}).setdefault(row.name, Timed(run.id, folder, row))
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [(setting, [latest[name] for name in names if name in latest]) for setting, latest in ordered]
