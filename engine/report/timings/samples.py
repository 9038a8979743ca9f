"""Read the samples of a timing from their file."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from engine.results import BenchmarkRow, RecurrentRow, TimedRow
from engine.roots import Roots, open_within
from engine.specs.fields.timed import MOST_PROCESSES

ALWAYS = ("process", "round", "calls")
"""Columns of every file of samples."""
TOTAL = "ms"
"""Column of all phases together, from which latencies are computed."""


def place(row: TimedRow) -> dict[str, str]:
    """Return the columns and values that select a row's samples in its file."""
    if isinstance(row, BenchmarkRow):
        return {"mode": row.mode, "variant": row.variant}
    assert isinstance(row, RecurrentRow)
    return {"runner": row.model}


def read(path: Path, roots: Roots, names: Iterable[str]) -> pd.DataFrame:
    """Return all samples in a file, including variants timed side by side. names: the columns of `place`.

    Columns: ALWAYS, those of `place`, the phases, which end in `_ms` and are in ms per call, and TOTAL: their sum.
    Errors: ValueError when the file is no table of samples; OSError.
    """
    with open_within(path, roots) as file:
        frame = pd.read_csv(file)
    if missing := {*ALWAYS, *names} - set(frame.columns):
        raise ValueError(f"{path.name} lacks the columns {', '.join(sorted(missing))}")
    if (count := frame["process"].nunique()) > MOST_PROCESSES:
        raise ValueError(f"{path.name} has {count:,} processes, and a timing has at most {MOST_PROCESSES}")
    phases = [column for column in frame.columns if column.endswith("_ms")]
    frame = frame.astype(dict.fromkeys(phases, float))
    times = frame[phases].to_numpy()
    if (np.isinf(times) | (times <= 0)).any():  # missing times are NaN, which passes
        raise ValueError(f"{path.name} has invalid times: zero, negative or infinite")
    return frame.assign(**{TOTAL: frame[phases].sum(axis=1)})


def of(frame: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """Return the samples selected by `where`, in the order taken."""
    selected = frame[(frame[list(where)] == pd.Series(where)).all(axis=1)]
    return selected.sort_values(["process", "round"], ignore_index=True)


class Reader:
    """Reads files of samples, each only once."""

    def __init__(self) -> None:
        self._read = cache(read)

    def phase(self, run_dir: Path, row: TimedRow, name: str = TOTAL) -> list[list[float]] | None:
        """Return a row's ms per call by process, empty without that phase; None without a file. Errors: as read."""
        try:
            frame = self._read(run_dir / row.samples_file, (run_dir.resolve(),), tuple(place(row)))
        except FileNotFoundError:
            return None
        if name not in frame:
            return []
        samples = of(frame, place(row)).dropna(subset=[name])
        return [[float(value) for value in part[name]] for _, part in samples.groupby("process")]
