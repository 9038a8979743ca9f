"""Every timing of a model that is stored here: over time, and as a table."""

import pandas as pd
import streamlit as st

from engine.report.timings import by_model
from engine.specs import BenchmarkSpec
from pages.model.runs_table import runs_table
from pages.shared import backend, download
from pages.shared.chart.chart import chart
from pages.shared.form_link import form_link
from pages.shared.table import informative_columns

COLUMNS = (
    *("run", "date", "mode", "variant", "batch_size", "latency_ms", "low_ms", "high_ms", "samples_per_s", "flags"),
    *("status", "speedup", "verdict", "dtype", "image_size", "where", "spread_percent", "p90_ms", "device_peak_mb"),
    *("process_peak_mb", "joules_per_sample", "samples", "processes", "tower", "purpose", "cache", "torch", "error"),
)


def timed(name: str) -> pd.DataFrame:
    """All lines of a model, newest first."""
    url = backend.settings().store_url
    found = by_model.runs(backend.store(), name)
    with st.spinner("Looking through the timings"):
        return by_model.together([_of_run(url, run.id, run.revision, name) for run in found])


@st.cache_data(max_entries=2000, show_spinner=False)
def _of_run(url: str, run_id: int, revision: int, name: str) -> pd.DataFrame:
    """The lines of a run as of a revision of it."""
    store = backend.store()
    return by_model.of_run(store.run(run_id), store.rows(run_id, name.partition(":")[2]), name)


def draw(name: str) -> None:
    """All of it; where nothing was timed, the way to change that."""
    frame = timed(name)
    if frame.empty:
        st.caption("This model was not timed here yet, or no row of it is stored.")
        form_link(BenchmarkSpec(models=(name,)), "Time it", icon=":material/timer:", key="model_time")
        return
    if frame["latency_ms"].notna().any():
        chart(by_model.over_time(frame), key="model_over_time", alt="Median latency of every timing, by date")
        st.caption(
            "Whisker: from the fastest process to the slowest. Hollow: has flags, which the table names. "
            "A step between dates is a change of the machine, the versions or the flags until they are ruled out."
        )
    shown = informative_columns(frame, ("tower", "purpose", "cache"))
    runs_table(
        shown,
        key="model_timings",
        alt="Every timing of this model, newest first",
        columns=COLUMNS,
        config={"torch": st.column_config.Column("torch")} if "torch" in shown else {},
    )
    runs = frame["run"].nunique()
    st.caption(
        f"{len(frame):,} rows of {runs:,} runs"
        + (f", the latest {by_model.LATEST} of them." if runs >= by_model.LATEST else ".")
    )
    with st.container(horizontal=True):
        stem = f"{name.partition(':')[2]}-timings"
        download.table(lambda: frame, stem, key="model_timings_file", label="timings")
