"""The list of runs, page by page, and what can be done with those that are chosen in it."""

from typing import Any

import streamlit as st

from engine.report import frames
from engine.report.export import bulk
from engine.store import Filter, Run
from pages.history.filters import BIND, clear, first_page, key
from pages.shared import backend, run_bulk, run_deletion, tour
from pages.shared.download import table
from pages.shared.table import results_table

SIZES = (25, 50, 100, 200)
COLUMNS = ("id", "kind", "what", "state", "tags", "progress", "created", "duration_s", "device", "cause", "error")


def draw(wanted: Filter) -> None:
    """One page of the runs that the filter lets through."""
    store = backend.store()
    seen = backend.settings().store_url, store.revision()
    total = _count(*seen, wanted)
    if not total:
        _nothing(wanted)
        return
    page_of_them = st.container()
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        size = st.selectbox(
            "Runs on a page", SIZES, 1, key=key("size"), bind=BIND, label_visibility="collapsed", width=100,
            on_change=first_page,
        )  # fmt: skip
        page = st.pagination(-(-total // size), key=key("page"), bind=BIND)
        first = (page - 1) * size
        st.caption(f"{first + 1:,} to {min(first + size, total):,} of {total:,} runs")
        table(
            lambda: bulk.runs(store, wanted),
            "runs",
            key=key("file"),
            label=f"{total:,} runs",
            help="A line for each run on all pages.",
        )
    with page_of_them:
        _choice(wanted, size, first)


@st.fragment
def _choice(wanted: Filter, size: int, first: int) -> None:
    """A page of runs, and what can be done with those ticked in it. To tick one draws neither filters nor pages."""
    store = backend.store()
    runs = _page(backend.settings().store_url, store.revision(), wanted, size, first)
    actions = st.container()
    chosen = _table(runs)
    with actions:
        run_bulk.draw([run for run in runs if run.id in chosen])
    st.caption("A run's number opens it. Tick runs to compare, tag, export, try again or delete them.")
    run_deletion.draw_dialog()


@st.cache_data(max_entries=64, show_spinner=False)
def _count(url: str, revision: int, wanted: Filter) -> int:
    """As of a revision of the store: turning a page need not count again."""
    return backend.store().count(wanted)


@st.cache_resource(max_entries=8, show_spinner=False)
def _page(url: str, revision: int, wanted: Filter, size: int, first: int) -> list[Run]:
    """As of a revision of the store: ticking a run need not read them all again."""
    return backend.store().find(wanted, limit=size, offset=first)


def _nothing(wanted: Filter) -> None:
    if wanted in (Filter(), Filter(oldest_first=True)):
        st.info("No run has been asked for yet.", icon=":material/history:")
        tour.draw()
        return
    st.info("No run is like this. Other filters may let some through.", icon=":material/filter_alt:")
    st.button("Show all runs", icon=":material/filter_alt_off:", key=key("show_all"), on_click=clear)


def _table(runs: list[Run]) -> list[int]:
    """The runs of a page; answers those that are ticked. A run's number opens it."""
    if (click := st.session_state.get(key("open"))) is not None:
        st.switch_page("run/page.py", query_params={"run": click.label})
    frame = frames.runs(runs)  # anew: what still runs has taken longer by now
    shown = frame.assign(id=frame["id"].astype(str)).set_index(frame["id"].rename("run"))
    return [
        int(run)
        for run in results_table(
            shown[list(COLUMNS)],
            key=key("table"),
            alt="Runs on this page",
            pinned="id",
            selectable=True,
            config=_config(),
        )
    ]


def _config() -> dict[str, Any]:
    column = st.column_config
    return {
        "id": column.ButtonColumn("Run", help="Opens it", pinned=True, width="small", type="tertiary", key=key("open")),
        "kind": column.TextColumn("Kind", width="small"),
        "what": column.TextColumn("What", width="large"),
        "state": column.TextColumn("State", width="small"),
        "tags": column.ListColumn("Tags", width="small"),
        "progress": column.ProgressColumn("Done", format="percent", width="small"),
        "created": column.DatetimeColumn("Asked for", format="YYYY-MM-DD HH:mm:ss"),
        "duration_s": column.NumberColumn("Took (s)", format="%.3g", width="small"),
        "device": column.TextColumn("Device", width="small"),
        "cause": column.TextColumn("Cause", width="small"),
        "error": column.TextColumn("Error"),
    }
