"""Read the raw samples of a run, cached per file, with a message if the file is missing or damaged."""

from pathlib import Path

import pandas as pd
import streamlit as st

from engine.report.timings import samples
from engine.results import BenchmarkRow, RecurrentRow, TimedRow
from engine.store import Run
from pages.shared import backend
from pages.shared.text import plain

HASHED = {kind: kind.model_dump_json for kind in (BenchmarkRow, RecurrentRow)}


def stamp(run: Run, row: TimedRow) -> int:
    """Return the modification time of a row's file of samples, in ns; 0 if there is no file."""
    return backend.modified_ns(backend.folder(run), row.samples_file)


def read(run: Run, row: TimedRow) -> pd.DataFrame | None:
    """Return all samples in a row's file. If it is missing or damaged, show a message and return None."""
    try:
        frame = _cached(backend.folder(run), row, stamp(run, row))
    except (ValueError, OSError) as error:
        st.error(plain(f"The samples cannot be read: {error}"), icon=":material/error:")
        return None
    if frame is None:
        st.caption(f"No samples: {plain(row.samples_file)} was not kept with this run.")
    return frame


@st.cache_data(max_entries=8, show_spinner=False, hash_funcs=HASHED)
def _cached(run_dir: Path, row: TimedRow, stamp: int) -> pd.DataFrame | None:
    return samples.read(run_dir, row)
