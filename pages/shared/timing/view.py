"""Captions below the charts and tables of all timings."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.results import VERDICTS, TimedRow
from engine.statistics import CONFIDENCE
from engine.store import Run
from pages.shared.text import plain

MANY_VERDICTS = 50
"""At 99 % confidence, this many verdicts contain 0.5 false ones on average, so the caption mentions it."""
DECIDED = ("faster", "slower", "no difference", "undecided")
SAMPLES = (
    "Each point is a sample. In every round each {one} is timed once, in random order; no sample is dropped. "
    "Each panel is a fresh process; differences between panels show the spread between processes."
)


def source(run: Run) -> str:
    """Return the source of a value for hover texts: `run 7 on AMD EPYC`."""
    return f"run {run.id} on {run.environment.device_name if run.environment else run.spec.device}"


def failures(rows: Sequence[TimedRow]) -> None:
    """Draw the number of failed rows, if there are any."""
    if failed := sum(row.status != "ok" for row in rows):
        st.caption(f":material/error: {failed} of {len(rows)} rows have failed. See the columns status and error.")


def verdicts(frame: pd.DataFrame) -> None:
    """Explain the verdicts of a table and, if there are many, how many may be false."""
    present = [verdict for verdict in VERDICTS if (frame["verdict"] == verdict).any()]
    lines = [f"**{verdict}**: {plain(VERDICTS[verdict])}" for verdict in present]
    decided = int(frame["verdict"].isin(DECIDED).sum())
    if decided >= MANY_VERDICTS:
        expected = (1 - CONFIDENCE) * decided
        lines.append(f"Each verdict has 99 % confidence, so about {expected:.0f} of {decided} verdicts may be false.")
    st.caption("  \n".join(lines))
