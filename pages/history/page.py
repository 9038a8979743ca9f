"""What runs now and what waits, then everything that was."""

import tempfile
from pathlib import Path

import streamlit as st

from engine import jobs
from engine.specs import Refused
from engine.store import ACTIVE, ENDED, Filter, Run, State
from engine.store.bundle import import_bundle
from pages.history import filters
from pages.history import list as history_list
from pages.shared import announce, backend, redraw, run_deletion, run_storage, tour
from pages.shared.fold import fold
from pages.shared.run_state import badge, progress, sentence
from pages.shared.text import plain

TICK_S = 1
GOING, NEXT = 50, 10  # so many are shown of those that run, and of those that wait
WAITING = (State.QUEUED, *ACTIVE)


def now(ticking: bool, last_ended: int | None) -> None:
    """What runs and what waits, newest state; offers the list anew when runs have ended meanwhile."""
    store = backend.store()
    going = store.runs(states=ACTIVE, limit=GOING)
    queued = Filter(states=(State.QUEUED,), oldest_first=True)
    waiting, count = store.find(queued, limit=NEXT), store.count(queued)
    if not (going or waiting):
        st.caption("Nothing runs and nothing waits.")
    for run in [*reversed(going), *waiting]:
        entry(run)
    if count > len(waiting):
        st.caption(f"and {count - len(waiting)} more wait behind these.")
    if ticking and not (going or waiting):
        redraw.page()
    elif last_ended != next((run.id for run in store.runs(states=ENDED, limit=1)), None):
        st.button("Show what has ended since", icon=":material/refresh:", key="runs_refresh", on_click=st.rerun)


def entry(run: Run) -> None:
    """One run that is not over."""
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            badge(run)
            st.text(f"{run.id}  {run.name or run.spec.summary}: {sentence(run, backend.store())}", width="stretch")
            st.page_link("run/page.py", label="Open", icon=":material/open_in_new:", query_params={"run": str(run.id)})
            if st.button("Cancel", key=f"runs_cancel_{run.id}", icon=":material/stop:", disabled=run.cancel_requested):
                backend.store().request_cancel(run.id)
                st.rerun(scope="fragment")
        progress(run)


@st.fragment
def storage() -> None:
    """What all of them take up."""
    if part := fold("Storage", icon=":material/hard_drive:", key="runs_storage"):
        with part:
            run_storage.draw()


@st.fragment
def importer() -> None:
    """Take in a bundle that another machine exported."""
    given = bool(st.session_state.get("runs_bundle"))
    label = "Import a run from another machine"
    if not (part := fold(label, icon=":material/unarchive:", key="runs_import_fold", filled=given)):
        return
    with part:
        _import()


def _import() -> None:
    file = st.file_uploader("Run bundle (.zip)", type="zip", key="runs_bundle")
    if file and st.button("Import", icon=":material/unarchive:", key="runs_import"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / Path(file.name).name  # what an error calls it
            path.write_bytes(file.getvalue())
            try:
                run_id = import_bundle(backend.store(), backend.settings(), path)
            except Refused as refusal:
                st.error(plain(str(refusal)), icon=":material/error:")
                return
        if problem := jobs.why_not_again(backend.store(), backend.settings(), run_id):
            announce.show_later(f"This run cannot be run again here: {problem}", ":material/info:")
        st.switch_page("run/page.py", query_params={"run": str(run_id)})


@st.fragment
def listing() -> None:
    """Everything that was, narrowed down."""
    if (wanted := filters.fields(backend.store())) is not None:
        history_list.draw(wanted)


run_deletion.take_deleted()
st.title("Runs", anchor=False)
store = backend.store()
busy = bool(store.runs(states=WAITING, limit=1))
last_ended = next((run.id for run in store.runs(states=ENDED, limit=1)), None)
st.fragment(now, run_every=TICK_S if busy else None, key="runs_now")(busy, last_ended)
listing()
storage()
importer()
if (
    last_ended
    and tour.open_steps()
    and (part := fold("What else can be asked", icon=":material/explore:", key="runs_tour"))
):
    with part:
        tour.draw()
