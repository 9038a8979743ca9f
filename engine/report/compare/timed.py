"""Timed rows that can be compared: of runs or of models, each with its repeats in other runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from engine.report.compare import rows as compare_rows
from engine.report.timings import by_model, stored
from engine.report.timings.stored import Setting
from engine.results import BenchmarkRow, Row, TimedRow
from engine.results.flags import SPOILING
from engine.store import Filter, Run, State, Store

MOST_RUNS = 50
"""Read at most this many benchmarks per model, newest first."""
MOST_REPEATS = 200
"""Look for repeats of a run among this many of the newest runs."""


@dataclass(frozen=True)
class Timed:
    """A timed row with the location of its samples."""

    run: int
    folder: Path
    row: TimedRow
    publishable: bool = False
    """True if its run was requested as publishable."""
    host: str = ""
    """The host that timed it; empty if it is not known."""
    repeats: Mapping[int, tuple[datetime, TimedRow]] = field(default_factory=dict)
    """This row and the same one of other runs with the same request, host, device, settings, versions and environment
    variables, by run number: when its timing started, and the row. Empty if no other runs were searched."""

    @property
    def name(self) -> str:
        """Return a unique label, such as `run 12: timm:resnet18 · inference · eager · batch 8`."""
        return f"run {self.run}: {compare_rows.full_label(self.row)}"


def timed_rows(store: Store, run: Run, folder: Path) -> list[Timed]:
    """Return the timed rows of a run, each with its repeats in other runs. folder: the run's folder."""
    rows = [row for row in store.rows(run.id) if isinstance(row, TimedRow)]
    return _with_repeats(store, {run.id: run}, [Timed(run.id, folder, row) for row in rows])


def runs_of_models(store: Store, names: Iterable[str]) -> list[Run]:
    """Return the benchmarks that may have timed some of these models (qualified names), newest first."""
    benchmarks = {run.id: run for name in names for run in by_model.runs(store, name, "benchmark", MOST_RUNS)}
    return [benchmarks[number] for number in sorted(benchmarks, reverse=True)]


def by_setting(
    store: Store, newest_first: Iterable[tuple[Run, Path, Sequence[Row]]], names: Sequence[str]
) -> list[tuple[Setting, list[Timed]]]:
    """Return the latest timings of models in every setting that has at least two, in the order of names.

    A timing with a flag of SPOILING is used only if there is none without. Settings with most models come first.
    newest_first: runs with their folders and rows.
    """
    runs: dict[int, Run] = {}
    timed: dict[Setting, dict[str, Timed]] = {}
    for run, folder, rows in newest_first:
        runs[run.id] = run
        for row in rows:
            if isinstance(row, BenchmarkRow) and row.name in names and (setting := stored.setting_of(run, row)):
                latest = timed.setdefault(setting, {})
                if row.name not in latest or (_spoiled(latest[row.name].row) and not _spoiled(row)):
                    latest[row.name] = Timed(run.id, folder, row)
    ordered = sorted(timed.items(), key=lambda item: -len(item[1]))
    return [
        (setting, _with_repeats(store, runs, [latest[name] for name in names if name in latest]))
        for setting, latest in ordered
        if len(latest) > 1
    ]


def _spoiled(row: TimedRow) -> bool:
    return not set(SPOILING).isdisjoint(row.flags)


def _with_repeats(store: Store, runs: Mapping[int, Run], rows: Sequence[Timed]) -> list[Timed]:
    """Return the rows with `publishable` and `repeats` filled in. runs: the runs of the rows, by number."""
    repeats = {
        number: [(other, compare_rows.by_key(store.rows(other.id), ())) for other in _repeats(store, runs[number])]
        for number in dict.fromkeys(timed.run for timed in rows)
    }
    return [
        replace(
            timed,
            publishable=bool(getattr(runs[timed.run].spec, "publishable", False)),
            host=timed.row.host or runs[timed.run].host,
            repeats={timed.run: (_started(runs[timed.run], timed.row), timed.row)}
            | {
                other.id: (_started(other, row), row)
                for other, by_key in repeats[timed.run]
                if isinstance(row := by_key.get(compare_rows.key_of(timed.row)), TimedRow)
                and (row.host, row.device_name) == (timed.row.host, timed.row.device_name)
                and not row.differences(timed.row)
            },
        )
        for timed in rows
    ]


def _repeats(store: Store, run: Run) -> list[Run]:
    """Return other finished runs of the same request in the same `_conditions`, without copies.

    A bundle that is imported where its run still exists makes a copy: one measurement under two numbers.
    """
    if (conditions := _conditions(run)) is None:
        return []
    alike = {
        (other.started_at, other.ended_at): other
        for other in store.find(Filter(kinds=(run.kind,), states=(State.FINISHED,)), limit=MOST_REPEATS)
        if other.spec == run.spec and _conditions(other) == conditions
    }
    alike.pop((run.started_at, run.ended_at), None)  # this run, or a copy of it
    return list(alike.values())


def _conditions(run: Run) -> tuple[object, ...] | None:
    """Return the host, the versions and the environment variables of a run; None if they are not known."""
    found = run.environment
    return (found.host, found.versions, found.variables) if found else None


def _started(run: Run, row: TimedRow) -> datetime:
    """Return when the attempt that timed a row started."""
    return datetime.fromisoformat(date) if (date := getattr(row, "date", "")) else run.started_at or run.created_at
