"""Export many runs as tables: one line per run, or the rows of each run."""

import zipfile
from collections.abc import Iterable, Mapping
from io import BytesIO

import pandas as pd

from engine.report import frames
from engine.report.export import tables as export_tables
from engine.store import Filter, Store

COLUMNS = "run kind name what state cause error done total created started ended duration_s devices tags notes".split()
TIMES = ("created", "started", "ended")


def runs(store: Store, wanted: Filter) -> pd.DataFrame:
    """Return a line for every run that matches a filter: COLUMNS. Times are UTC."""
    frame = pd.DataFrame([line for lines in store.lines(wanted) for line in lines], columns=COLUMNS)
    frame = frame.astype({"run": "Int64", "done": "Int64", "total": "Int64", "duration_s": float})
    return frame.assign(**{name: pd.to_datetime(frame[name], utc=True, format="ISO8601") for name in TIMES})


def rows(store: Store, run_ids: Iterable[int]) -> dict[str, pd.DataFrame]:
    """Return the rows of runs as one table per kind, with the run's number as the first column. Errors: LookupError."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for run_id in run_ids:
        run = store.run(run_id)
        frame = frames.with_environment(getattr(frames, run.kind)(store.rows(run_id)), run)
        frame.insert(0, "run", run_id)
        parts.setdefault(run.kind, []).append(frame)
    return {kind: _together(tables) for kind, tables in parts.items()}


def _together(found: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([part for part in found if len(part)] or found[:1], ignore_index=True)


def written(tables: Mapping[str, pd.DataFrame], format: str) -> bytes:
    """Return a table as a file in a format (of tables.FORMATS).

    Several tables become a zip with one file per table name.
    """
    files = {name: export_tables.FORMATS[format](frame) for name, frame in tables.items()}
    contents = {name: file.encode() if isinstance(file, str) else file for name, file in files.items()}
    if len(contents) == 1:
        return next(iter(contents.values()))
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(f"{name}.{format}", content)
    return buffer.getvalue()
