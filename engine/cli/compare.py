"""The command runs compare: how runs differ, and whether a difference in speed is larger than the noise."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from engine.cli.bulk import Several
from engine.cli.here import store_here
from engine.cli.output import TableFile, brief, note, printable, show_table
from engine.results import Row
from engine.settings import Settings
from engine.specs import Refused
from engine.words import numbered_runs

if TYPE_CHECKING:
    import pandas as pd

    from engine.report.compare.timed import Timed
    from engine.store import Run, Store

SPEED = ("ms", "baseline_ms", "speedup*", "verdict", "differs_in", "flags", "note")
"""Columns of compared timings on a terminal, after those that name a row."""


class Compare(Several):
    """Compare runs of one kind with the first of them, as the page Compare does.

    Timings: how many times as fast each row is as the matching row of the first run, with a 99 % interval and a
    verdict. The rows of a single run are compared with its first one. Other kinds: all values with their ratios; for
    accuracies and losses their differences. The values of a training are those of its best epoch. Settings that differ
    and change the meaning of the values are printed as notes.
    """

    metric: str = Field(
        "", description="The time that is compared: ms, per_sample, forward_ms, ... Default: ms, or the first there is."
    )
    output: TableFile | None = Field(
        None, description="Write the whole table to this .csv, .json or .parquet file instead; - prints CSV."
    )
    repeat: bool = Field(
        False, description="Queue the timings again, in turns, as often as the verdict `needs 3 runs` asks for."
    )

    def cli_cmd(self) -> None:
        from engine.report.compare import settings
        from engine.report.compare.rows import TIMINGS

        with store_here() as store:
            runs = [store.run(run_id) for run_id in self.run_ids]
            kind = _kind(runs)
            timed = kind in TIMINGS
            if len(runs) == 1 and not timed:
                raise Refused(f"only the rows of a timing can be compared with each other: give a second {kind}")
            if not timed and (self.metric or self.repeat):
                raise Refused(f"--metric and --repeat are for timings, and these runs are of kind {kind}")
            for sentence in settings.warnings(runs) if len(runs) > 1 else []:
                note(printable(sentence))
            for run in runs:
                if not run.state.ended:
                    note(f"run {run.id} is {run.outcome}: only its results so far are compared")
            if timed:
                self._timings(store, runs)
            else:
                full = _values(store, runs)
                show_table(full, full, self.output)

    def _timings(self, store: "Store", runs: Sequence["Run"]) -> None:
        """Show the ratios of timings, a line per pair of rows. Errors: Refused when there are none."""
        from engine.report.compare import timings
        from engine.report.compare.rows import APART
        from engine.report.compare.timed import timed_rows

        by_run = {run.id: timed_rows(store, run, _folder(run)) for run in runs}
        names = timings.metrics(timed.row for rows in by_run.values() for timed in rows)
        _note_without_results(by_run)
        if not names:
            raise Refused("there are no timings to compare yet")
        metric = self.metric or names[0]
        if metric not in names:
            raise Refused(f"metric {metric!r} is not one of {', '.join(names)}")
        pairs = _pairs(by_run, metric)
        if not pairs and len(runs) == 1:
            raise Refused("there is only one timing: give a second run")
        if not pairs and sum(map(bool, by_run.values())) == 1:
            raise Refused("only one of the runs has results")
        if not pairs:
            raise Refused("no two rows have the same model and settings: `runs rows` writes all of them to one table")
        if len(pairs) > timings.MOST:
            note(f"only the first {timings.MOST} of {len(pairs)} ratios are computed: give fewer runs for the others")
            pairs = pairs[: timings.MOST]
        if len({baseline.name for baseline, _ in pairs}) == 1:
            note(f"compared with {pairs[0][0].name}")
        ratios = timings.ratios(pairs, metric, seed=getattr(runs[0].spec, "seed", 0))
        apart = [name for name in ("library", *APART) if name == "variant" or ratios[name].nunique(dropna=False) > 1]
        show_table(ratios, brief(ratios, ("model", "run", *apart, *SPEED)), self.output)
        lacking = [pair for pair, verdict in zip(pairs, ratios["verdict"], strict=True) if verdict == "needs 3 runs"]
        if self.repeat:
            _repeat(store, lacking, metric)
        elif lacking:
            note("needs 3 runs: the machine changes in between; --repeat queues the requests again, in turns")


def _repeat(store: "Store", pairs: Sequence[tuple["Timed", "Timed"]], metric: str) -> None:
    """Queue the requests of timings again, in turns. Errors: Refused when that cannot lead to verdicts."""
    from engine import jobs
    from engine.report.compare import timings

    if not pairs:
        raise Refused("no verdict asks for more runs")
    runs, times = timings.to_repeat(store, pairs, metric)
    if not runs:
        reason = "the runs are of another host, or only their versions or environment variables differ"
        raise Refused(f"repeating cannot help: {reason}")
    if not times:
        note("the missing runs are queued or running already")
        return
    ids = jobs.submit_sweep(store, Settings(), timings.in_turns(runs, times))
    note(f"queued as {numbered_runs(ids)}")


def _kind(runs: Sequence["Run"]) -> str:
    """Return the kind of the runs. Errors: Refused when they are of several kinds."""
    runs_by_kind: dict[str, list[int]] = {}
    for run in runs:
        runs_by_kind.setdefault(run.kind, []).append(run.id)
    if len(runs_by_kind) > 1:
        listed = ", ".join(f"{kind} ({numbered_runs(run_ids)})" for kind, run_ids in runs_by_kind.items())
        raise Refused(f"these runs are of different kinds: {listed}. Give runs of one kind")
    return runs[0].kind


def _note_without_results(by_run: Mapping[int, Sequence[object]]) -> None:
    if without := [run_id for run_id, rows in by_run.items() if not rows]:
        note(f"without results: {numbered_runs(without)}")


def _folder(run: "Run") -> Path:
    """Return the folder of a run's files, after fetching those that another machine has made."""
    from engine.store.copies import mirror, remote
    from engine.store.files import RunFiles

    try:
        mirror.fetch(Settings(), run)
    except remote.Unreachable as problem:
        note(str(problem))
    return RunFiles(Settings().runs_dir, run.id).dir


def _pairs(by_run: Mapping[int, Sequence["Timed"]], metric: str) -> list[tuple["Timed", "Timed"]]:
    """Return the rows to compare: of several runs the matching ones, of one run all with the first timed row."""
    from engine.report.compare import timings

    first = next(iter(by_run))
    if len(by_run) == 1:
        usable = [timed for timed in by_run[first] if timings.milliseconds(timed.row, metric) is not None]
        return [(usable[0], timed) for timed in by_run[first] if timed is not usable[0]]
    pairs = timings.matching_pairs(by_run, first)
    if pairs and (left_out := timings.unmatched(by_run, pairs)):
        note(f"rows without a matching row in another run are left out: {left_out}")
    return pairs


def _values(store: "Store", runs: Sequence["Run"]) -> "pd.DataFrame":
    """Return the values of runs, a line per value, with ratios or differences to the first run.

    Errors: Refused when there are none.
    """
    from engine.report.compare import values

    rows: dict[int, Sequence[Row]] = {}
    for run in runs:
        ok = [row for row in store.rows(run.id) if row.status == "ok"]
        rows[run.id] = values.best_row(ok) if run.kind == "train" else ok
    _note_without_results(rows)
    frame = values.of_runs(rows)
    if frame.empty:
        raise Refused("there are no values to compare yet")
    how = values.HOW.get(runs[0].kind, "ratio")
    return values.beside(frame, [f"run {run.id}" for run in runs], f"run {runs[0].id}", how)
