"""A run as it goes: its state, what can be done about it, and its results as they come."""

from importlib import import_module
from typing import Any

import streamlit as st

from engine import jobs
from engine.jobs import hosts
from engine.specs import Refused, Spec
from engine.specs.timed import QUOTABLE
from engine.store import RETRYABLE, Cause, Run, State
from pages.shared import announce, backend, redraw
from pages.shared.form_link import form_link
from pages.shared.kinds import PAGES
from pages.shared.run_state import badge, progress, sentence
from pages.shared.text import duration, plain

TICK_S = 1
TIMING_TICK_S = 3
"""While something is timed: drawing costs processor time, which the timing would see."""
CLONE = "Open the form, filled like this run."
RETRY = "Retry", ":material/replay:", "Queue this very run again; its rows are replaced."
RESUME = "Resume", ":material/play_arrow:", "Continue from the newest whole checkpoint."


def follow(run: Run, *, beside_form: bool = False) -> None:
    """Draw a run, again every few seconds while it waits or goes; other parts of the page stay untouched meanwhile.

    beside_form: the form is on this very page, so there is nothing to clone into.
    """
    going = not run.state.ended
    tick = TIMING_TICK_S if run.spec.exclusive else TICK_S
    st.fragment(_draw, run_every=tick if going else None, key=f"run_{run.id}")(run.id, going, beside_form)


def _draw(run_id: int, ticking: bool, beside_form: bool) -> None:
    store = backend.store()
    run = store.run(run_id)
    if ticking and run.state.ended:
        redraw.page()  # the last time: from here on nothing changes, so nothing ticks
    with st.container(horizontal=True, vertical_alignment="center"):
        badge(run)
        st.text(sentence(run, store), width="stretch")
        actions(run, beside_form)
    progress(run)
    import_module(f"pages.{PAGES[run.kind]}.results").draw(run, store.rows(run.id))


def actions(run: Run, beside_form: bool) -> None:
    """Stop, clone and, after a failure, what may help."""
    if not run.state.ended and st.button(
        "Stopping" if run.cancel_requested else "Cancel",
        key=f"cancel_{run.id}",
        icon=":material/stop:",
        disabled=run.cancel_requested,
        help="Rows that are there already are kept.",
    ):
        backend.store().request_cancel(run.id)
        st.rerun(scope="fragment")
    if run.state in RETRYABLE:
        _retries(run)
    if run.state in (State.VANISHED, State.STOPPING):
        _declare_gone(run)
    if not beside_form:
        form_link(run.spec, "Clone", icon=":material/content_copy:", key=f"clone_{run.id}", help=CLONE)


def _declare_gone(run: Run) -> None:
    """Offer to close the attempts of a host that has been silent for long, such as a container that was recreated."""
    lost = hosts.lost_host(backend.store(), backend.settings(), run.id)
    if lost is None:
        return
    label = f"Declare {plain(lost.name)} gone"
    several = f" It has {len(lost.run_ids)} open runs; all are closed." if len(lost.run_ids) > 1 else ""
    help = f"No heartbeat for {duration(abs(lost.silent_s))}. Choose this if the host will not come back.{several}"
    if st.button(label, key=f"gone_{run.id}", icon=":material/link_off:", help=help):
        try:
            hosts.declare_gone(backend.store(), backend.settings(), lost.id)
        except Refused as refusal:  # it has reported meanwhile
            announce.later(str(refusal), ":material/error:")
        jobs.ensure_scheduler(backend.settings(), backend.store())
        st.rerun()


def _retries(run: Run) -> None:
    if run.cause is Cause.OUT_OF_MEMORY and run.spec.half_batch is not None:
        half = run.spec.half_batch
        if st.button(f"Again with batch {half}", key=f"half_{run.id}", icon=":material/restart_alt:"):
            again(run.spec.model_copy(update={run.spec.batch_field: half}))
    label, icon, told = RESUME if run.kind == "train" else RETRY
    if st.button(label, key=f"retry_{run.id}", icon=icon, help=told):
        _retry(run.id)
    if st.button("Run again", key=f"again_{run.id}", icon=":material/restart_alt:", help="As a new run"):
        again(run.spec)


def _retry(run_id: int) -> None:
    """Queue a run again, in its place, and draw the page anew; a run that cannot be tried again says why."""
    try:
        jobs.retry(backend.store(), backend.settings(), run_id)
    except (Refused, LookupError) as refusal:
        st.error(plain(str(refusal)), icon=":material/error:")
        return
    st.rerun()


def quotable(run: Run, **more: Any) -> None:
    """What was a quick look can be asked for again in enough processes to be quoted. more: fields changed as well."""
    if run.state.ended and run.spec.processes < QUOTABLE:
        asked = run.spec.model_copy(update={"replicates": None, "min_seconds": None, **more})
        told = f"The same in {asked.processes} fresh processes, as a new run"
        if st.button("Run as quotable", key=f"quotable_{run.id}", icon=":material/verified:", help=told):
            again(asked)


def again(spec: Spec) -> None:
    """Start a new run and open it."""
    try:
        started = jobs.submit(backend.store(), backend.settings(), spec)
    except Refused as refusal:
        st.error(plain(str(refusal)))
        return
    st.switch_page("run/page.py", query_params={"run": str(started)})
