"""What is said below the charts and tables of all timings, in the same words."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.results import VERDICTS, TimedRow
from engine.store import Run
from pages.components.text import plain

SAMPLES = (
    "Each point is a sample. In every round each {one} is timed once, in random order; no sample is dropped. "
    "What differs between the panels is what differs between fresh processes."
)


def source(run: Run) -> str:
    """`run 7 on AMD EPYC`, for hovers."""
    return f"run {run.id} on {run.environment.device_name if run.environment else run.spec.device}"


def failures(rows: Sequence[TimedRow]) -> None:
    """How many rows have failed, where any has."""
    if failed := sum(row.status != "ok" for row in rows):
        st.caption(f":material/error: {failed} of {len(rows)} rows have failed: status and error say why.")


def verdicts(frame: pd.DataFrame) -> None:
    """What each verdict in a table means."""
    said = [verdict for verdict in VERDICTS if (frame["verdict"] == verdict).any()]
    st.caption("  \n".join(f"**{verdict}**: {plain(VERDICTS[verdict])}" for verdict in said))
