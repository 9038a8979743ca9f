"""Find the stored timings of several models, setting by setting, to compare them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.report.compare.timings import Timed
from engine.report.timings import by_model, stored
from engine.report.timings.stored import Setting
from engine.results import BenchmarkRow, Row
from engine.store import Run, Store

MOST_RUNS = 50
"""Search at most this many benchmarks per model, newest first."""


def runs(store: Store, names: Iterable[str]) -> list[Run]:
    """Return the benchmarks that may have timed some of these models (qualified names), newest first."""
    benchmarks = {run.id: run for name in names for run in by_model.runs(store, name, limit=MOST_RUNS)}
    return [benchmarks[number] for number in sorted(benchmarks, reverse=True)]


def timed(
    newest_first: Iterable[tuple[Run, Path, Sequence[Row]]], names: Sequence[str]
) -> list[tuple[Setting, list[Timed]]]:
    """Return the latest timing of each model in every setting, in the order of names; settings with most models first.

    newest_first: runs with their folders and rows.
    """
    by_setting: dict[Setting, dict[str, Timed]] = {}
    for run, folder, rows in newest_first:
        for row in rows:
            if not isinstance(row, BenchmarkRow) or row.name not in names:
                continue
            # a row has one setting, or none if it is not an inference latency of a whole model
            for setting in stored.settings(stored.table(stored.of_run(run, [row]))):
                by_setting.setdefault(setting, {}).setdefault(row.name, Timed(run.id, folder, row))
    ordered = sorted(by_setting.items(), key=lambda item: -len(item[1]))
    return [(setting, [latest[name] for name in names if name in latest]) for setting, latest in ordered]
