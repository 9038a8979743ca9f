"""Read the samples of a timing from their file."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from engine.results import BenchmarkRow, RecurrentRow, TimedRow

ALWAYS = ("process", "round", "calls")
TOTAL = "ms"
"""Column of all phases together, from which latencies are computed."""


def place(row: TimedRow) -> dict[str, str]:
    """Return the columns and values that select a row's samples in its file."""
    if isinstance(row, BenchmarkRow):
        return {"mode": row.mode, "variant": row.variant}
    assert isinstance(row, RecurrentRow)
    return {"runner": row.model}


def read(run_dir: Path, row: TimedRow) -> pd.DataFrame | None:
    """Return all samples in a row's file, including variants timed side by side. None if the file was not kept.

    Columns: ALWAYS, those of `place`, the phases, which end in `_ms` and are in ms per call, and TOTAL: their sum.
    Errors: ValueError when the name leads out of the run's folder or the file is no table of samples; OSError.
    """
    path = (run_dir / row.samples_file).resolve()
    if not path.is_relative_to(run_dir.resolve()):
        raise ValueError(f"{row.samples_file!r} lies outside the run's folder")
    if not row.samples_file or not path.is_file():
        return None
    frame = pd.read_csv(path)
    if missing := {*ALWAYS, *place(row)} - set(frame.columns):
        raise ValueError(f"{row.samples_file!r} lacks the columns {', '.join(sorted(missing))}")
    phases = [column for column in frame.columns if column.endswith("_ms")]
    frame = frame.astype(dict.fromkeys(phases, float))
    taken = frame[phases].to_numpy()
    if (np.isinf(taken) | (taken <= 0)).any():  # missing times are NaN, which passes
        raise ValueError(f"{row.samples_file!r} holds times that are none: zero, negative or infinite")
    return frame.assign(**{TOTAL: frame[phases].sum(axis=1)})


def of(frame: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """Return the samples selected by `where`, in the order taken."""
    selected = frame[(frame[list(where)] == pd.Series(where)).all(axis=1)]
    return selected.sort_values(["process", "round"], ignore_index=True)


def phase(frame: pd.DataFrame, where: Mapping[str, str], name: str = TOTAL) -> list[list[float]]:
    """Return the ms per call of the selected samples in one phase, one list per process; empty without that phase."""
    if name not in frame:
        return []
    drawn = of(frame, where).dropna(subset=[name])
    return [[float(value) for value in part[name]] for _, part in drawn.groupby("process")]
