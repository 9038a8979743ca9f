"""Export runs as tables: one line per run, or the rows of each run."""

import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO

import pandas as pd

from engine.report import frames
from engine.report.export import tables as export_tables
from engine.report.export import timm_dynamo
from engine.report.timings import rates
from engine.results import Row
from engine.specs import BenchmarkSpec, RecurrentSpec
from engine.store import Filter, Run, Store
from engine.store.find import LINES
from engine.store.records import devices_of

COLUMNS = LINES.selected_columns.keys()
WHOLE = ("run", "done", "total", "rows", "failed_rows")
REAL = ("duration_s", "train_loss", "clip_val_loss", "top1", "mean_average_precision", "latency_ms")
TIMES = ("created", "started", "ended")


def runs(store: Store, wanted: Filter) -> pd.DataFrame:
    """Return a line for every run that matches a filter: COLUMNS. Times are UTC."""
    frame = pd.DataFrame([line for lines in store.lines(wanted) for line in lines], columns=COLUMNS)
    numbers = (*WHOLE, *REAL, *TIMES)
    known = frame.assign(**{name: pd.to_numeric(frame[name], errors="coerce").astype(float) for name in numbers})
    frame = known.assign(  # values of a damaged store that are no numbers are missing
        **{name: pd.to_datetime(known[name], unit="s", utc=True, errors="coerce").dt.floor("s") for name in TIMES},
        duration_s=known["ended"] - known["started"] + known["duration_s"],
        devices=["; ".join(devices_of(text)) for text in frame["devices"]],
        tags=["; ".join(sorted(text.split("\n"))) for text in frame["tags"].fillna("")],
        cause=frame["cause"].fillna(""),
        flags=frame["flags"].fillna(""),
    )
    return frame.astype(dict.fromkeys(WHOLE, "Int64"))


def of_run(
    store: Store, run: Run, rows: Sequence[Row], rates_of: Callable[[Store], pd.DataFrame] = rates.rates
) -> pd.DataFrame:
    """Return the table of a run's rows as files have it: with its environment, and timings with the FLOP utilisation.

    rates_of: returns the rates of devices. It is called only for timings.
    """
    frame: pd.DataFrame = getattr(frames, run.kind)(rows)
    if isinstance(run.spec, BenchmarkSpec | RecurrentSpec):
        timed = [row for row in rows if isinstance(row, rates.Counted)]
        frame = timm_dynamo.full(frame, rates.utilisation(timed, rates_of(store), run.host))
    return frames.with_environment(frame, run)


def rows(store: Store, run_ids: Iterable[int]) -> dict[str, pd.DataFrame]:
    """Return the rows of runs as one table per kind, with the run's number as the first column. Errors: LookupError."""
    parts: dict[str, list[pd.DataFrame]] = {}
    rates_of = cache(rates.rates)
    for run_id in run_ids:
        run = store.run(run_id)
        frame = of_run(store, run, store.rows(run_id), rates_of)
        frame.insert(0, "run", run_id)
        parts.setdefault(run.kind, []).append(frame)
    filled = {kind: [table for table in tables if len(table)] or tables[:1] for kind, tables in parts.items()}
    return {kind: pd.concat(tables, ignore_index=True) for kind, tables in filled.items()}


def written(tables: Mapping[str, pd.DataFrame], format: str, *, zipped: bool = False) -> bytes:
    """Return a table in a format of tables.FORMATS. Several tables, or `zipped`: a zip with one file per table name."""
    files = {name: export_tables.FORMATS[format](frame) for name, frame in tables.items()}
    contents = {name: file.encode() if isinstance(file, str) else file for name, file in files.items()}
    if len(contents) == 1 and not zipped:
        return next(iter(contents.values()))
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(f"{name}.{format}", content)
    return buffer.getvalue()
