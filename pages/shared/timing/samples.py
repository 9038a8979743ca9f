"""The samples that a run has kept, as a page reads them: once per file, and told when they are gone or spoilt."""

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
    """Return when a row's samples were written; 0 where they are not there."""
    return backend.written(backend.folder(run), row.samples_file)


def read(run: Run, row: TimedRow) -> pd.DataFrame | None:
    """All that is in a row's file, or word that it is gone or spoilt."""
    try:
        frame = _cached(backend.folder(run), row, stamp(run, row))
    except (ValueError, OSError) as error:
        st.error(plain(f"The samples cannot be read: {error}"), icon=":material/error:")
        return None
    if frame is None:
        st.caption(f"The samples are not here: {plain(row.samples_file)} was not kept with this run.")
    return frame


@st.cache_data(max_entries=8, show_spinner=False, hash_funcs=HASHED)
def _cached(run_dir: Path, row: TimedRow, stamp: int) -> pd.DataFrame | None:
    return samples.read(run_dir, row)
