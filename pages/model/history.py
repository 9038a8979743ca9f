"""Draw the speeds, the published values, and the timings and trainings here of one model."""

from typing import Any

import pandas as pd
import streamlit as st

from engine.published import speeds as published_speeds
from engine.report.catalog import model
from engine.report.quantities import CLIP_LABELS
from engine.report.timings import by_model, estimates, reliability
from engine.specs import BenchmarkSpec, ModelName
from engine.specs.benchmark import CONDITIONS
from engine.specs.train import TrainSpec
from engine.store import Run
from engine.words import plural
from pages.shared import backend, table
from pages.shared.chart.chart import chart
from pages.shared.form.link import form_link
from pages.shared.runs import view
from pages.shared.table import informative_columns, results_table
from pages.shared.text import plain
from pages.shared.timing import calibrate, speeds

SPEEDS = ("setup", "mode", "image_size", "batch_size", "samples_per_s")


def draw_speeds(name: ModelName, sizes: pd.DataFrame) -> None:
    """Draw the tab of speeds. sizes: from model.sizes, one row per image size."""
    work = speeds.work()
    if work is None:
        st.caption(
            "The catalogue has no table of operators, so speeds cannot be estimated. Run "
            "`python -m engine catalog-build` to count them."
        )
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        image_size = st.selectbox(
            "Image size (px)", list(sizes["image_size"]), key="model_speed_size", bind="query-params", width=160
        )
        calibrate.draw("model_calibrate")
    timed = speeds.timed()
    devices = speeds.devices(timed)
    frame = estimates.of_model(devices, timed, work, name, image_size)
    if frame.empty:
        st.caption(
            "This model is not timed here, and without a complete count its speed cannot be estimated. Time it on "
            "the page Vision speed."
        )
        return
    speeds.table(frame, devices, key="model_speed", alt="Speed on each device")
    marked = reliability.mark_unreliable(frame, devices)
    table.download_table(lambda: marked, f"{name.model}-{image_size}-speeds", key="model_speed_file")


def draw_published(name: ModelName, lines: pd.DataFrame) -> None:
    """Draw the tables of published accuracies and speeds. lines: published accuracies of the model, one per row."""
    stem = name.model
    help = "Each value is from one publisher. Values of two publishers are not combined."
    st.header("Accuracies (%)", anchor=False, help=help)
    if lines.empty:
        st.caption("No published accuracy of this model is shipped or imported.")
    else:
        _accuracy_table(lines)
        table.download_table(lambda: lines, f"{stem}-accuracies", key="model_accuracies_file")
    st.header("Speeds", anchor=False)
    published = backend.published_speeds()
    rows = published[published["model"] == stem] if name.library == "timm" else published.head(0)
    if rows.empty:
        st.caption("No shipped table has a published speed of this model.")
        return
    rows = rows.sort_values("samples_per_s", ascending=False)
    results_table(rows, key="model_speeds", alt="Published throughput", columns=SPEEDS, pinned="setup")
    st.caption(
        plain(f"Measured by others on their machines: {published_speeds.PUBLISHER}. {published_speeds.SETTINGS}")
    )
    table.download_table(lambda: rows, f"{stem}-published-speeds", key="model_speeds_file")


def _accuracy_table(lines: pd.DataFrame) -> None:
    wide = model.by_tag(lines)
    formats: dict[str, Any] = {
        tag: st.column_config.NumberColumn(tag, format="%.2f") for tag in wide.columns if tag not in ("label", "source")
    }
    formats["label"] = st.column_config.Column("Data set", pinned=True)
    formats["source"] = st.column_config.Column("Published by", width="medium")
    results_table(wide, key="model_accuracies", alt="Accuracy by data set and weights", pinned="label", config=formats)
    sources = "; ".join(lines["source"].unique())
    st.caption(plain(f"Published by {sources}."))


COLUMNS = (
    *("run", "date", "mode", "variant", "batch_size", "latency_ms", "low_ms", "high_ms", "samples_per_s", "flags"),
    *("status", "speedup", "verdict", "dtype", "image_size", "where", "spread_percent", "p90_ms", "device_peak_mb"),
    *("process_peak_mb", "joules_per_sample", "samples", "processes", "purpose", *by_model.SETTING_FORMATS),
    *("torch", "error"),
)
BENCHMARKS = 200
"""Read at most this many benchmarks, newest first."""


def timings(name: ModelName) -> tuple[pd.DataFrame, int]:
    """Return the timings of a model, newest first, and the number of runs searched: at most BENCHMARKS."""
    runs = by_model.runs(backend.store(), name, "benchmark", BENCHMARKS)
    with st.spinner("Reading the timings"):
        return by_model.together([_run_timings(run, name) for run in runs]), len(runs)


@st.cache_data(max_entries=2000, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _run_timings(run: Run, name: ModelName) -> pd.DataFrame:
    """Return the timings of a model in one run."""
    return by_model.of_run(run, backend.store().rows(run.id, name.model), name)


def draw_timings(name: ModelName) -> None:
    """Draw the tab of timings. If there are none, draw a link to the form that times the model."""
    frame, searched = timings(name)
    if frame.empty:
        st.caption("No timings of this model yet.")
        form_link(BenchmarkSpec(models=(name,)), "Time it", icon=":material/timer:", key="model_time")
        return
    if frame["latency_ms"].notna().any():
        chart(by_model.over_time(frame), key="model_over_time", alt="Median latency of every timing, by date")
        st.caption(
            "Whiskers go from the fastest process to the slowest. Hollow points have flags, listed in the table. "
            "The machine, the library versions or a flag can explain a jump between dates."
        )
    shown = informative_columns(frame, ("tower", "purpose", *CONDITIONS))
    config, alt = {"torch": st.column_config.Column("torch")}, "Every timing of this model, newest first"
    view.runs_table(shown, key="model_timings", alt=alt, columns=list(dict.fromkeys(COLUMNS)), config=config)
    runs = frame["run"].nunique()
    st.caption(
        f"{plural(len(frame), 'row')} of {plural(runs, 'run')}"
        + (f". Only the latest {searched} runs of this model were searched." if searched >= BENCHMARKS else ".")
    )
    table.download_table(lambda: frame, f"{name.model}-timings", key="model_timings_file")


LATEST = 100
"""Read at most this many trainings and evaluations each, newest first."""
TRAINING_COLUMNS = (
    *("run", "date", "what", "state", *model.MAIN_SHARES, "clip_val_loss", "data", "begins_with", "epochs", "seconds"),
)


def draw_trainings(name: ModelName) -> None:
    """Draw the tab of trainings. If there are none, draw a link to the form that trains the model."""
    frame, is_cut_off = _trainings(name)
    if frame.empty:
        st.caption("No trainings or evaluations of this model yet.")
        form_link(TrainSpec(model=name.model), "Train it", icon=":material/model_training:", key="model_train")
        return
    config = {
        "what": st.column_config.Column("Request"),
        "clip_val_loss": st.column_config.NumberColumn(CLIP_LABELS["clip_val_loss"], format="%.4g"),
        "begins_with": st.column_config.Column("Initial weights"),
    }
    shown = frame.dropna(axis=1, how="all")
    alt = "Trainings and evaluations of this model, newest first"
    view.runs_table(shown, key="model_trainings", alt=alt, columns=TRAINING_COLUMNS, config=config)
    st.caption(
        "A training shows the values of its best epoch. Values depend on the data of the run: compare only runs on the "
        "same data."
        + (f" Only the latest {LATEST} trainings and the latest {LATEST} evaluations are shown." if is_cut_off else "")
    )
    table.download_table(lambda: frame, f"{name.model}-trainings", key="model_trainings_file")


def _trainings(name: ModelName) -> tuple[pd.DataFrame, bool]:
    """Return the trainings and evaluations of a model, and True if there may be older ones."""
    store = backend.store()
    by_kind = [by_model.runs(store, name, kind, LATEST) for kind in ("train", "evaluate")]
    frame = model.of_runs([(run, store.rows(run.id)) for runs in by_kind for run in runs], name)
    return frame, any(len(runs) >= LATEST for runs in by_kind)
