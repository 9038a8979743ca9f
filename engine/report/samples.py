"""The samples that a timing has kept, and what can be said of them again: the ratio of any two variants."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from engine import statistics
from engine.results import BenchmarkRow

PLACE = ("process", "mode", "variant", "round", "calls")
"""Columns in front; all others are phases, in ms per call."""


def read(run_dir: Path, row: BenchmarkRow) -> pd.DataFrame | None:
    """Every sample taken of a row's model at its batch size, all modes and variants; None where none were kept.

    Columns: PLACE, the phases, and `ms`: their sum, which is what latencies are made of.
    Errors: ValueError of a name that leads out of the run's folder, and of a file that is no table of samples; OSError.
    """
    path = (run_dir / row.samples_file).resolve()
    if not path.is_relative_to(run_dir.resolve()):
        raise ValueError(f"{row.samples_file!r} lies outside the run's folder")
    if not row.samples_file or not path.is_file():
        return None
    frame = pd.read_csv(path)
    if missing := set(PLACE) - set(frame.columns):
        raise ValueError(f"{row.samples_file!r} lacks the columns {', '.join(sorted(missing))}")
    phases = [column for column in frame.columns if column not in PLACE]
    return frame.assign(ms=frame[phases].astype(float).sum(axis=1))


def of(frame: pd.DataFrame, mode: str, variant: str) -> pd.DataFrame:
    """The samples of one variant in one mode, in the order they were taken."""
    kept = frame[(frame["mode"] == mode) & (frame["variant"] == variant)]
    return kept.sort_values(["process", "round"], ignore_index=True)


def ratio(frame: pd.DataFrame, mode: str, baseline: str, other: str, *, seed: int) -> statistics.Ratio | None:
    """How many times as fast `other` is, with its interval, from all samples of both; None when one has none."""
    streams = []
    for variant in (baseline, other):
        drawn = of(frame, mode, variant)
        streams.append([_ms(part, "ms") for _, part in drawn.groupby("process")])
    ones, twos = streams
    if not ones or len(ones) != len(twos):
        return None
    return statistics.ratio(ones, twos, seed=seed)


def _ms(frame: pd.DataFrame, column: str) -> Sequence[float]:
    return [float(value) for value in frame[column]]
