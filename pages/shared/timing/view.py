"""What is said below the charts and tables of all timings, in the same words."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.results import VERDICTS, TimedRow
from engine.statistics import CONFIDENCE
from engine.store import Run
from pages.shared.text import plain

MANY_VERDICTS = 50  # from here on, half a false verdict is to be expected
DECIDED = ("faster", "slower", "no difference", "undecided")
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
    """Explain each verdict in a table, and how many of many may be false."""
    found = [verdict for verdict in VERDICTS if (frame["verdict"] == verdict).any()]
    lines = [f"**{verdict}**: {plain(VERDICTS[verdict])}" for verdict in found]
    decided = int(frame["verdict"].isin(DECIDED).sum())
    if decided >= MANY_VERDICTS:
        expected = (1 - CONFIDENCE) * decided
        lines.append(f"Each verdict is at 99 % confidence, so of {decided} up to about {expected:.0f} may be false.")
    st.caption("  \n".join(lines))
