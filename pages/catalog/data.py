"""Read the published accuracies and timings that the catalogue page joins to the costs, once per server."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from engine import shipped
from engine.published import match, publishers, update
from engine.published.match import Matched
from engine.published.publishers import ACCURACIES
from engine.report.catalog import catalog, choose
from engine.report.timings import estimates, reliability, stored
from engine.report.timings.stored import Setting
from engine.store import Role
from pages.catalog.controls import Axes, Filters
from pages.shared import backend, rerun
from pages.shared.rerun import fold
from pages.shared.table import results_table
from pages.shared.text import plain, refusals_shown
from pages.shared.timing import speeds


def published() -> Matched:
    """Return published accuracies, matched to rows of the catalogue. Changed files are read again."""
    return _matched(backend.settings().catalog_dir, backend.imported_accuracies())


@st.cache_resource(max_entries=2, show_spinner="Joining published accuracies", hash_funcs=backend.BY_VERSION)
def _matched(catalog_dir: Path, imported: Path | None) -> Matched:
    return match.match(match.read(imported), backend.catalogue(), shipped.versions(catalog_dir))


def accuracies(axes: Axes, filters: Filters) -> list[str]:
    """Return the columns of published accuracies that the page shows."""
    sorted_by = [key.removeprefix("-") for key in filters.sort]
    wanted = [*axes.published, *([filters.accuracy] if filters.accuracy else []), *sorted_by]
    return [column for column in dict.fromkeys(wanted) if column in ACCURACIES]


def table(axes: Axes, filters: Filters) -> pd.DataFrame:
    """Return the whole catalogue with published accuracies and timings: see choose.table.

    With a device, its speeds take the place of the timings: see estimates.replace_timings.
    """
    work, timed = speeds.work(), speeds.timed()
    device = next((device for device in speeds.devices(timed) if device.fitted.label == filters.device), None)
    frame = choose.table(
        backend.catalogue(),
        published(),
        accuracies(axes, filters),
        stored.within(timed if device is None else timed.iloc[:0], filters.setting),
        catalog.describe(shipped.versions(backend.settings().catalog_dir)),
        filters.setting.label,
    )
    return frame if device is None or work is None else estimates.replace_timings(frame, device, work)


def selected(frame: pd.DataFrame, axes: Axes, filters: Filters) -> pd.DataFrame:
    """Return the rows of `table` that match the filters, in the chosen order. Errors: Refused.

    Without a chosen order, the rows of a Pareto front come first.
    """
    kept = filters.select(frame)
    if axes.front:
        kept = choose.ranked(kept, axes.x, axes.y, with_spoiled=axes.spoiled)
    return choose.ordered(kept, filters.sort) if filters.sort else kept


def rows(axes: Axes, filters: Filters, chosen: Sequence[str]) -> pd.DataFrame:
    """Return the rows of the page's table for the download, or only the chosen ones, if any. Errors: Refused.

    `provenance` is one line, so that a row is a line of a CSV file. `source` marks unreliable estimates.
    """
    shown = selected(table(axes, filters), axes, filters).drop(columns="tags")
    if "source" in shown:
        devices = [device for device in speeds.devices(speeds.timed()) if device.fitted.label == filters.device]
        shown = reliability.mark_unreliable(shown, devices)
    shown["provenance"] = shown["provenance"].str.replace("\n", "; ")
    return shown.loc[list(chosen)] if chosen else shown


CHOSEN, MANY = "catalog_rows", "catalog_many_rows"
MOST_LINKED = 20
"""Maximum number of selected rows in the address. Larger selections are only in the session."""


def draw_chosen(frame: pd.DataFrame) -> frozenset[str]:
    """Draw the field with the selected rows, if there are any, and return their labels. frame: from `table`."""
    named = {*st.query_params.get_all(CHOSEN), *st.session_state.get(CHOSEN, [])}
    options = [label for label in frame.index if label in named]
    if CHOSEN in st.session_state or not named:
        # Set here, so that Streamlit removes rows of another table from the address and writes rows selected later.
        st.session_state[CHOSEN] = [label for label in options if label in st.session_state.get(CHOSEN, [])]
    if named and (rows := st.sidebar.multiselect("Selected rows", options, key=CHOSEN, bind="query-params")):
        st.session_state[MANY] = []
        return frozenset(rows)
    return frozenset(st.session_state.get(MANY, []))


def choose_rows(labels: Sequence[str]) -> None:
    """Select these rows in the plot and in the table. The selection is kept while other pages are open."""
    few = len(labels) <= MOST_LINKED
    st.session_state[CHOSEN], st.session_state[MANY] = (labels, []) if few else ([], labels)


def settings(timed: pd.DataFrame) -> list[Setting]:
    """Return the timing settings to choose from.

    The order is: settings with timings of this machine, a default for each of its devices, settings of other machines.
    """
    machine, existing = backend.store().machine(), stored.settings(timed)
    if machine is None:
        return list(dict.fromkeys([*existing, Setting()]))
    defaults = [
        Setting(device.name, device.model, machine.host, machine.threads if device.name == "cpu" else None)
        for device in machine.devices
    ]
    local = [setting for setting in existing if setting.host == machine.host]
    return list(dict.fromkeys([*local, *defaults, *existing]))


FILE = "catalog_table_file"
LARGEST_MB = update.LARGEST_FILE // 1_000_000


@st.fragment
def draw_import() -> None:
    """Draw the collapsed section on published accuracies."""
    label, icon = "Published accuracies: sources and import", ":material/menu_book:"
    fold(label, _draw_published, icon=icon, key="catalog_published", filled=bool(st.session_state.get(FILE)))


def _draw_published() -> None:
    matched = published()
    counts = matched.counts.set_index("kind")
    for kind, table in publishers.TABLES.items():
        rows = counts.loc[kind]
        missing = f"{rows['unmatched']:,} without a counted model" if rows["unmatched"] else "all match a model"
        source = f"{', '.join(table.files)}: {rows['rows']:,} rows of {table.source}; {missing}."
        st.caption(plain(f"{source} Rows were shipped with this program unless their source says imported."))
    if len(matched.unmatched):
        results_table(matched.unmatched, key="catalog_unmatched", alt="Published rows without a model", height=220)
    if backend.user().role >= Role.ADMIN:  # an import changes what everybody sees
        _import()


def _import() -> None:
    """Draw the form of an import."""
    st.markdown("**Import a newer version of a publisher's table**")
    st.caption(
        f"Download timm's [results-*.csv]({publishers.TIMM.page}), or open_clip's openclip_results.csv or "
        f"openclip_retrieval_results.csv, from its [docs folder]({publishers.ZEROSHOT.page}). Keep the file's name. "
        "The whole table is checked first. If it has an error, nothing is imported. Imported values are credited to "
        "the publisher, so do not add your own."
    )
    file = st.file_uploader("Table (.csv)", type="csv", key=FILE, max_upload_size=LARGEST_MB)
    if st.button("Import", key="catalog_import", icon=":material/upload:", disabled=file is None) and file:
        with refusals_shown():
            with st.spinner("Checking"):
                sentence = update.take(file.getvalue(), file.name, update.folder(backend.settings()))
            rerun.show_later(f"{sentence}.", ":material/check:")
            st.rerun(scope="app")
