"""Results of a device run: the rate of each operation, and its rate by size."""

from collections.abc import Sequence

import streamlit as st

from engine.report import frames
from engine.report.figures import roofline
from engine.report.timings import rates
from engine.results import FLAGS, DeviceRow
from engine.store import Run
from pages.shared.chart.chart import chart
from pages.shared.table import download_rows, failures, results_table
from pages.shared.text import plain

COLUMNS = ("what", "rate", "at", "latency_ms", "samples", "flags", "status", "error", "notes")


def draw(run: Run, rows: Sequence[DeviceRow]) -> None:
    """Draw the results of the rows so far."""
    frame = rates.readable(frames.device(rows)).replace("", None).dropna(axis=1, how="all")
    results_table(frame, key=f"rates_{run.id}", alt="Measured rates", pinned="what", columns=COLUMNS)
    with st.container(horizontal=True, vertical_alignment="center"):
        download_rows(run)
        failures(rows, "could not be measured")
    if any(len(row.rates) > 1 for row in rows):
        alt = "Rate of matrix products by size, per data type"
        chart(roofline.sizes(rows), key=f"sizes_{run.id}", alt=alt)
    for flag in dict.fromkeys(flag for row in rows for flag in row.flags):
        st.caption(f":material/flag: **{flag.replace('_', ' ')}**: {plain(FLAGS[flag])}")
