"""All stored timings of a model, as a chart over time and as a table."""

import pandas as pd
import streamlit as st

from engine.report.timings import by_model
from engine.specs import BenchmarkSpec
from pages.model.runs_table import runs_table
from pages.shared import backend, download
from pages.shared.chart.chart import chart
from pages.shared.form.link import form_link
from pages.shared.table import informative_columns
from pages.shared.text import plural

COLUMNS = (
    *("run", "date", "mode", "variant", "batch_size", "latency_ms", "low_ms", "high_ms", "samples_per_s", "flags"),
    *("status", "speedup", "verdict", "dtype", "image_size", "where", "spread_percent", "p90_ms", "device_peak_mb"),
    *("process_peak_mb", "joules_per_sample", "samples", "processes", "tower", "purpose", "cache", "torch", "error"),
)


def timings(name: str) -> pd.DataFrame:
    """Return all timings of a model, newest first."""
    url = backend.settings().store_url
    runs = by_model.runs(backend.store(), name)
    with st.spinner("Reading the timings"):
        return by_model.together([_run_timings(url, run.id, run.revision, name) for run in runs])


@st.cache_data(max_entries=2000, show_spinner=False)
def _run_timings(url: str, run_id: int, revision: int, name: str) -> pd.DataFrame:
    """Return the timings of a model in one run. revision: of the run; it is a key of the cache."""
    store = backend.store()
    return by_model.of_run(store.run(run_id), store.rows(run_id, name.partition(":")[2]), name)


def draw(name: str) -> None:
    """Draw the tab of timings. Without any, draw a link to the form that times the model."""
    frame = timings(name)
    if frame.empty:
        st.caption("No timings of this model yet.")
        form_link(BenchmarkSpec(models=(name,)), "Time it", icon=":material/timer:", key="model_time")
        return
    if frame["latency_ms"].notna().any():
        chart(by_model.over_time(frame), key="model_over_time", alt="Median latency of every timing, by date")
        st.caption(
            "Whiskers go from the fastest process to the slowest. Hollow points have flags, listed in the table. "
            "A jump between dates can come from the machine, the library versions or the flags. Check these first."
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
        f"{plural(len(frame), 'row')} of {plural(runs, 'run')}"
        + (f" (only the latest {by_model.LATEST} runs)." if runs >= by_model.LATEST else ".")
    )
    with st.container(horizontal=True):
        stem = f"{name.partition(':')[2]}-timings"
        download.table(lambda: frame, stem, key="model_timings_file", label="timings")
