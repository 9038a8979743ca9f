"""Read the published accuracies and timings that the catalogue page joins to the costs, once per server."""

from pathlib import Path

import pandas as pd
import streamlit as st

from engine import shipped
from engine.published import match, update
from engine.published.match import Matched
from engine.report.catalog import catalog, choose, pareto
from engine.report.timings import stored
from engine.report.timings.stored import MOST_RUNS, Line, Setting
from engine.store import Run
from pages.catalog.axes import Axes
from pages.catalog.filters import Filters
from pages.shared import backend

Stamp = tuple[int, ...]


def published() -> Matched:
    """Return published accuracies, matched to rows of the catalogue. Changed files are read again."""
    settings = backend.settings()
    imports = update.folder(settings)
    return _matched(settings.catalog_dir, imports, backend.stamp(settings.catalog_dir), backend.stamp(imports))


@st.cache_resource(max_entries=2, show_spinner="Joining published accuracies")
def _matched(catalog_dir: Path, imports: Path, counted: Stamp, imported: Stamp) -> Matched:
    return match.match(match.read(imports), backend.catalogue(), shipped.versions(catalog_dir))


def timed() -> pd.DataFrame:
    """Return the latest timing of every model, image size and timing setting. A run is read again when it changes."""
    store = backend.settings().store_url
    runs = _benchmarks(store, backend.store().revision())
    return _timed(store, tuple((run.id, run.revision) for run in runs), runs)


@st.cache_resource(max_entries=2, show_spinner=False)
def _benchmarks(store: str, revision: int) -> list[Run]:
    return backend.store().runs(kind="benchmark", limit=MOST_RUNS)


@st.cache_data(max_entries=2, show_spinner="Reading the timings")
def _timed(store: str, revisions: tuple[tuple[int, int], ...], _runs: list[Run]) -> pd.DataFrame:
    return stored.latest(_lines(store, run.id, run.revision, run) for run in _runs)


@st.cache_resource(max_entries=2 * MOST_RUNS, show_spinner=False)
def _lines(store: str, run_id: int, revision: int, _run: Run) -> list[Line]:
    return stored.of_run(_run, backend.store().rows(run_id))


def accuracies(axes: Axes, filters: Filters) -> list[str]:
    """Return the columns of published accuracies that the page shows."""
    return list(dict.fromkeys([*axes.published, *([filters.accuracy] if filters.accuracy else [])]))


def table(axes: Axes, filters: Filters) -> pd.DataFrame:
    """Return the whole catalogue with published accuracies and timings: see choose.table."""
    return choose.table(
        backend.catalogue(),
        published(),
        accuracies(axes, filters),
        stored.within(timed(), filters.setting),
        catalog.describe(shipped.versions(backend.settings().catalog_dir)),
        filters.setting.label,
    )


def selected(frame: pd.DataFrame, axes: Axes, filters: Filters) -> pd.DataFrame:
    """Return the rows of `table` that match the filters; with a Pareto front, its rows first. Errors: Refused."""
    kept = filters.kept(frame)
    return pareto.ranked(kept, axes.x, axes.y) if axes.front else kept


def rows(axes: Axes, filters: Filters) -> pd.DataFrame:
    """Return the rows of the page's table, for the download. Errors: Refused."""
    return selected(table(axes, filters), axes, filters)


def settings(timed: pd.DataFrame) -> list[Setting]:
    """Return the timing settings to choose from: this machine's with timings, one per device, then other machines'."""
    machine, existing = backend.store().machine(), stored.settings(timed)
    if machine is None:
        defaults = [Setting()]
    else:
        defaults = [
            Setting(
                device=device.name,
                device_name=device.model,
                host=machine.host,
                threads=machine.threads if device.name == "cpu" else None,
            )
            for device in machine.devices
        ]
    local = [setting for setting in existing if machine is None or setting.host == machine.host]
    return list(dict.fromkeys([*local, *defaults, *existing]))
