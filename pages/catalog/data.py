"""What the catalogue page joins to its costs, read once per server: published accuracies and timings."""

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
    """Published accuracies, shipped and imported, with their rows of the catalogue; anew when a file changes."""
    settings = backend.settings()
    imports = update.folder(settings)
    return _matched(settings.catalog_dir, imports, backend.stamp(settings.catalog_dir), backend.stamp(imports))


@st.cache_resource(max_entries=2, show_spinner="Joining published accuracies")
def _matched(catalog_dir: Path, imports: Path, counted: Stamp, imported: Stamp) -> Matched:
    return match.match(match.read(imports), backend.catalogue(), shipped.versions(catalog_dir))


def timed() -> pd.DataFrame:
    """The latest timing of every model, size and setting; a run is read once, and again when it has changed."""
    store = backend.settings().store_url
    runs = _benchmarks(store, backend.store().revision())
    return _timed(store, tuple((run.id, run.revision) for run in runs), runs)


@st.cache_resource(max_entries=2, show_spinner=False)
def _benchmarks(store: str, revision: int) -> list[Run]:
    return backend.store().runs(kind="benchmark", limit=MOST_RUNS)


@st.cache_data(max_entries=2, show_spinner="Reading the timings")
def _timed(store: str, revisions: tuple[tuple[int, int], ...], _runs: list[Run]) -> pd.DataFrame:
    return stored.latest(_of_run(store, run.id, run.revision, run) for run in _runs)


@st.cache_resource(max_entries=2 * MOST_RUNS, show_spinner=False)
def _of_run(store: str, run_id: int, revision: int, _run: Run) -> list[Line]:
    return stored.of_run(_run, backend.store().rows(run_id))


def figures(axes: Axes, filters: Filters) -> list[str]:
    """Return the published accuracies that the page shows."""
    return list(dict.fromkeys([*axes.published, *([filters.figure] if filters.figure else [])]))


def table(axes: Axes, filters: Filters) -> pd.DataFrame:
    """Return the whole catalogue with what the page shows beside its costs: see choosing.table."""
    return choose.table(
        backend.catalogue(),
        published(),
        figures(axes, filters),
        stored.within(timed(), filters.setting),
        catalog.describe(shipped.versions(backend.settings().catalog_dir)),
        filters.setting.label,
    )


def selected(frame: pd.DataFrame, axes: Axes, filters: Filters) -> pd.DataFrame:
    """Return the rows of `table` that meet the filters, in the order in which to look at them. Errors: Refused."""
    kept = filters.kept(frame)
    return pareto.ranked(kept, axes.x, axes.y) if axes.front else kept


def rows(axes: Axes, filters: Filters) -> pd.DataFrame:
    """Return what the page's table shows, for its download. Errors: Refused."""
    return selected(table(axes, filters), axes, filters)


def settings(timed: pd.DataFrame) -> list[Setting]:
    """The settings to choose from: those there are timings in here, one per device of this machine, other machines'."""
    machine, known = backend.store().machine(), stored.settings(timed)
    if machine is None:
        plain = [Setting()]
    else:
        plain = [
            Setting(
                device=device.name,
                device_name=device.model,
                host=machine.host,
                threads=machine.threads if device.name == "cpu" else None,
            )
            for device in machine.devices
        ]
    here = [setting for setting in known if machine is None or setting.host == machine.host]
    return list(dict.fromkeys([*here, *plain, *known]))
