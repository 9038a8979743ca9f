"""Read the devices whose speed can be estimated, once per server, and draw speeds measured or estimated on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.estimate import work as estimate_work
from engine.report.timings import estimates, reliability, stored
from engine.report.timings.estimates import Device
from engine.report.timings.stored import MOST_RUNS, Line
from engine.store import Run, Store
from pages.shared import backend
from pages.shared.table import results_table
from pages.shared.text import plain


def work() -> pd.DataFrame | None:
    """Return the work of every counted model; None if the catalogue has no table of operators."""
    files = backend.settings().catalog_dir
    return _work(files) if (files / estimate_work.OPERATORS).is_file() else None


@st.cache_resource(max_entries=2, show_spinner="Reading the counted operators", hash_funcs=backend.BY_VERSION)
def _work(files: Path) -> pd.DataFrame:
    return estimate_work.read(files)


def timed() -> pd.DataFrame:
    """Return the latest timing of every model, image size and timing setting. A run is read again when it changes."""
    return _timed(_benchmarks(backend.store()))


@st.cache_resource(max_entries=2, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _benchmarks(store: Store) -> list[Run]:
    return store.runs(kind="benchmark", limit=MOST_RUNS)


@st.cache_data(max_entries=2, show_spinner="Reading the timings", hash_funcs=backend.BY_VERSION)
def _timed(runs: list[Run]) -> pd.DataFrame:
    return stored.latest(map(_lines, runs))


@st.cache_resource(max_entries=2 * MOST_RUNS, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _lines(run: Run) -> list[Line]:
    return stored.of_run(run, backend.store().rows(run.id))


def devices(timed: pd.DataFrame) -> list[Device]:
    """Return the devices whose speed can be estimated. timed: from `timed`; a change refits the devices."""
    settings = backend.settings()
    return [] if work() is None else _devices(timed, settings.catalog_dir, settings.device_dir)


@st.cache_resource(max_entries=2, show_spinner="Fitting the devices timed here", hash_funcs=backend.BY_VERSION)
def _devices(timed: pd.DataFrame, catalog_dir: Path, device_dir: Path) -> list[Device]:
    return estimates.available(timed, _work(catalog_dir), device_dir)


def draw_warnings(devices: Sequence[Device]) -> None:
    """Draw a warning for each device whose estimates are unreliable, and for each imported one that cannot be read."""
    _, unreadable = estimates.imported(backend.settings().device_dir)
    for text in [*unreadable, *reliability.warnings(devices)]:
        st.warning(plain(text), icon=":material/warning:")


COLUMNS = ("model", "device", "batch_size", "latency_ms", "samples_per_s", "source", "interval", "error_percent")


def table(
    frame: pd.DataFrame,
    devices: Sequence[Device],
    *,
    key: str,
    alt: str,
    extra_columns: Sequence[str] = (),
    config: dict[str, Any] | None = None,
) -> None:
    """Draw speeds on devices, each with its source, what the sources mean, and warnings about unreliable estimates.

    frame: from estimates.side_by_side.
    extra_columns: columns to add, if they have values. config: as for results_table.
    """
    estimated = set(frame.loc[frame["source"] == "estimated", "device"])
    draw_warnings([device for device in devices if device.fitted.label in estimated])
    shown = reliability.mark_unreliable(estimates.for_readers(frame), devices)
    column = st.column_config
    results_table(
        shown,
        key=key,
        alt=alt,
        columns=[name for name in (*COLUMNS, *extra_columns) if name in shown and shown[name].notna().any()],
        config={
            "device": column.TextColumn("Device", width=350),
            "interval": column.TextColumn(
                "90 % interval (ms)",
                help="Range of an estimated latency. It contains the latency of 90 % of models like those that the "
                "device was fitted to.",
                width=140,
            ),
            "error_percent": column.NumberColumn(
                "Typical error (%)",
                help="Median error of this device's estimates on families of models that were left out of the fit. "
                "A calibration times only quick models, so the error may be larger for large ones.",
                format="%.2g",
            ),
            **(config or {}),
        },
    )
    st.caption(
        "A speed is measured if there is a timing (made here, imported, or published by timm's authors). If not, it "
        "is estimated from the counted operators. Estimates outside the fitted range may be far off. On a GPU, "
        "estimates above batch 1 and published speeds are of calls queued back to back, so their latency is batch size "
        "/ throughput, which may be less than that of a single call."
    )
