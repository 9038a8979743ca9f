"""Running and queued runs, then the list of all runs."""

from typing import Any

import streamlit as st

from engine import jobs
from engine.store import ACTIVE, ENDED, UNFINISHED, Filter, Run, State, Store
from engine.store.bundles.bundle import import_file
from pages.history import filters
from pages.history import list as history_list
from pages.shared import backend, rerun, tour
from pages.shared.rerun import fold
from pages.shared.runs import actions
from pages.shared.runs.view import badge, open_run, progress, sentence
from pages.shared.text import refusals_shown

TICK_S = 1
# Maximum numbers of running and of queued runs shown above the list.
MOST_ACTIVE, MOST_QUEUED = 50, 10


def _open_runs(store: Store) -> tuple[list[Run], list[Run], int, int | None]:
    """Return the running runs, the first queued runs, the number of queued runs, and the id of the last ended run."""
    in_queue = Filter(states=(State.QUEUED,), order="oldest")
    active = store.runs(states=ACTIVE, limit=MOST_ACTIVE)
    return active, store.find(in_queue, limit=MOST_QUEUED), store.count(in_queue), _last_ended(store)


# Shared by all sessions that update themselves.
shared_open_runs = st.cache_resource(max_entries=4, show_spinner=False, hash_funcs=backend.BY_VERSION)(_open_runs)


def _last_ended(store: Store) -> int | None:
    return next((run.id for run in store.runs(states=ENDED, limit=1)), None)


def draw_open_runs(ticking: bool, last_ended: int | None) -> None:
    """Draw the running and queued runs. If other runs have ended, draw a button that refreshes the list.

    ticking, last_ended: True if there were such runs, and the last run that had ended, when the page was drawn.
    """
    read = shared_open_runs if rerun.updates_itself() else _open_runs
    active, queued, count, newest_ended = read(backend.store())
    if not (active or queued):
        st.caption("No active runs.")
    for run in [*reversed(active), *queued]:
        draw_run(run)
    if count > len(queued):
        st.caption(f"and {count - len(queued):,} more in the queue.")
    if ticking and not (active or queued):
        rerun.page()
    elif last_ended != newest_ended:
        st.button("Show runs that have ended", icon=":material/refresh:", key="runs_refresh", on_click=st.rerun)


def draw_run(run: Run) -> None:
    """Draw the state and progress of a run that has not ended."""
    with st.container(border=True):
        left, right = st.columns([3, 1], vertical_alignment="center")  # the buttons stay where they are
        with left, st.container(horizontal=True, vertical_alignment="center"):
            badge(run)
            with st.container():  # as in run_view
                st.text(f"{run.id}  {run.name or run.spec.summary}: {sentence(run, backend.store())}")
        with right, st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="right"):
            # labels with the number: a screen reader lists links and buttons without the texts beside them
            options: dict[str, Any] = {"icon": ":material/open_in_new:", "query_params": {"run": str(run.id)}}
            st.page_link("run/page.py", label=f"Open run {run.id}", **options)
            options = {"icon": ":material/stop:", "disabled": run.cancel_requested}
            if backend.may_change(run) and st.button(f"Cancel run {run.id}", key=f"runs_cancel_{run.id}", **options):
                backend.store().request_cancel(run.id)
                st.rerun()
        progress(run)


@st.fragment
def storage() -> None:
    """Draw the collapsed section on disk space."""
    fold("Storage", actions.draw_storage, icon=":material/hard_drive:", key="runs_storage")


@st.fragment
def importer() -> None:
    """Draw the collapsed section that imports a run bundle of another machine."""
    label, has_file = "Import a run from another machine", bool(st.session_state.get("runs_bundle"))
    fold(label, _import, icon=":material/unarchive:", key="runs_import_fold", filled=has_file)


@refusals_shown()
def _import() -> None:
    file = st.file_uploader("Run bundle (.zip)", type="zip", key="runs_bundle")
    if file and st.button("Import", icon=":material/unarchive:", key="runs_import"):
        run_id = import_file(backend.store(), backend.settings(), file, file.name)
        if problem := jobs.why_not_again(backend.store(), backend.settings(), run_id):
            rerun.show_later(f"This run cannot be repeated on this machine: {problem}", ":material/info:")
        open_run(run_id)


@st.fragment
def listing() -> None:
    """Draw the filters and the list of runs."""
    if (filter := filters.fields(backend.store())) is not None:
        history_list.draw(filter)


actions.take_deleted()
st.title("Runs", anchor=False)
store = backend.store()
busy = bool(store.runs(states=UNFINISHED, limit=1))
last_ended = _last_ended(store)
st.fragment(rerun.in_turn(draw_open_runs), run_every=TICK_S if busy else None, key="runs_now")(busy, last_ended)
listing()
storage()
if backend.may_start():
    importer()
if last_ended and tour.open_steps():
    fold("First steps", tour.draw, icon=":material/explore:", key="runs_tour")
