"""Many runs as files: a line per run, or the rows of each, written piece by piece."""

import csv
import zipfile
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

import pandas as pd

from engine.report import export, frames
from engine.store import Filter, Store

COLUMNS = (
    *("run", "kind", "name", "what", "state", "cause", "error", "done", "total", "created", "started", "ended"),
    *("duration_s", "devices", "tags", "notes"),
)


def runs_csv(store: Store, wanted: Filter) -> str:
    """A line for every run that a filter lets through. Times are UTC."""
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for lines in store.lines(wanted):
        writer.writerows({name: export.guard(cell) for name, cell in line.items()} for line in lines)
    return text.getvalue()


def rows_file(store: Store, run_ids: Iterable[int], folder: Path) -> Path:
    """The rows of runs, each with its run in front: `rows.csv`, or of several kinds `rows.zip` with a CSV of each.

    No more than one run's rows are in memory at a time. Errors: LookupError.
    """
    tables: dict[str, Path] = {}
    for run_id in run_ids:
        run = store.run(run_id)
        frame = getattr(frames, run.kind)(store.rows(run_id))
        frame.insert(0, "run", run_id)
        known = run.kind in tables
        path = tables.setdefault(run.kind, folder / f"{run.kind}.csv")
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(_body(frame) if known else export.to_csv(frame))
    if len(tables) == 1:
        return next(iter(tables.values())).rename(folder / "rows.csv")
    with zipfile.ZipFile(folder / "rows.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in tables.values():
            archive.write(path, path.name)
    return folder / "rows.zip"


def _body(frame: pd.DataFrame) -> str:
    """As CSV, without the line of headers."""
    return export.to_csv(frame).partition("\n")[2]
