"""What runs now and what waits, then everything that was."""

import tempfile
from pathlib import Path

import streamlit as st

from engine.report import frames
from engine.specs import Refused
from engine.store import ACTIVE, ENDED, Run, State
from engine.store.bundle import import_bundle
from pages.components import backend
from pages.components.state import badge, progress, sentence
from pages.components.text import plain

TICK_S = 1
LISTED = 200
WAITING = (State.QUEUED, *ACTIVE)


def now(ticking: bool, last_ended: int | None) -> None:
    """What runs and what waits, newest state; offers the list anew when runs have ended meanwhile."""
    store = backend.store()
    runs = store.runs(states=WAITING, limit=500)
    going = [run for run in runs if run.state in ACTIVE]
    waiting = sorted((run for run in runs if run.state not in ACTIVE), key=lambda run: store.position(run.id) or 0)
    if not runs:
        st.caption("Nothing runs and nothing waits.")
    for run in [*reversed(going), *waiting[:10]]:
        entry(run)
    if len(waiting) > 10:
        st.caption(f"and {len(waiting) - 10} more wait behind these.")
    if ticking and not runs:
        st.rerun()
    elif last_ended != next((run.id for run in store.runs(states=ENDED, limit=1)), None):
        st.button("Show what has ended since", icon=":material/refresh:", key="runs_refresh", on_click=st.rerun)


def entry(run: Run) -> None:
    """One run that is not over."""
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            badge(run)
            st.text(f"{run.id}  {run.name or run.spec.summary}: {sentence(run, backend.store())}", width="stretch")
            st.page_link("runs/run.py", label="Open", icon=":material/open_in_new:", query_params={"run": str(run.id)})
            if st.button("Cancel", key=f"runs_cancel_{run.id}", icon=":material/stop:", disabled=run.cancel_requested):
                backend.store().request_cancel(run.id)
                st.rerun(scope="fragment")
        progress(run)


def history(runs: list[Run]) -> None:
    """All runs as a table; a selected row opens."""
    frame = frames.runs(runs)
    event = st.dataframe(
        frame.drop(columns="position"),
        key="runs_table",
        on_select="rerun",
        selection_mode="single-row",
        hide_index=True,
        alt="Runs, newest first",
        column_config={
            "id": st.column_config.NumberColumn("Run", format="%d", pinned=True, width="small"),
            "kind": st.column_config.TextColumn("Kind", width="small"),
            "what": st.column_config.TextColumn("What", width="large"),
            "state": st.column_config.TextColumn("State", width="small"),
            "progress": st.column_config.ProgressColumn("Done", format="percent", width="small"),
            "created": st.column_config.DatetimeColumn("Asked for", format="YYYY-MM-DD HH:mm:ss"),
            "duration_s": st.column_config.NumberColumn("Took (s)", format="%.3g", width="small"),
            "cause": st.column_config.TextColumn("Cause", width="small"),
            "error": st.column_config.TextColumn("Error"),
        },
    )
    if event.selection.rows:
        chosen = int(frame.iloc[event.selection.rows[0]]["id"])
        st.switch_page("runs/run.py", query_params={"run": str(chosen)})


def importer() -> None:
    """Take in a bundle that another machine exported."""
    file = st.file_uploader("Run bundle (.zip)", type="zip", key="runs_bundle")
    if file and st.button("Import", icon=":material/unarchive:", key="runs_import"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bundle.zip"
            path.write_bytes(file.getvalue())
            try:
                run_id = import_bundle(backend.store(), backend.settings(), path)
            except Refused as refusal:
                st.error(plain(str(refusal)), icon=":material/error:")
                return
        st.switch_page("runs/run.py", query_params={"run": str(run_id)})


st.title("Runs", anchor=False)
runs = backend.store().runs(limit=LISTED)
busy = any(not run.state.ended for run in runs)
last_ended = next((run.id for run in runs if run.state.ended), None)
st.fragment(now, run_every=TICK_S if busy else None, key="runs_now")(busy, last_ended)
if runs:
    history(runs)
    more = f" These are the newest {LISTED}; `python -m engine runs list --limit N` shows older ones."
    st.caption("Select a run to open it." + more * (len(runs) == LISTED))
else:
    st.info("No run has been asked for yet.", icon=":material/history:")
    st.page_link("costs/profile.py", label="Count models", icon=":material/calculate:")
with st.expander("Import a run from another machine", icon=":material/unarchive:"):
    importer()
