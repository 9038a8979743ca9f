"""Show the state of a run in words and icons, not by colour alone."""

import streamlit as st

from engine.store import Run, State, Store
from pages.shared.text import duration, ordinal, plain

ICONS = {
    State.QUEUED: ":material/schedule:",
    State.STARTING: ":material/hourglass_top:",
    State.RUNNING: ":material/play_circle:",
    State.STOPPING: ":material/stop_circle:",
    State.FINISHED: ":material/check_circle:",
    State.FAILED: ":material/error:",
    State.VANISHED: ":material/visibility_off:",
    State.CANCELLED: ":material/cancel:",
}
COLOURS = {State.RUNNING: "blue", State.FINISHED: "green", State.FAILED: "red", State.VANISHED: "orange"}


def badge(run: Run) -> None:
    """Draw the state as a word with an icon."""
    st.badge(run.state.value, icon=ICONS[run.state], color=COLOURS.get(run.state, "gray"))


def sentence(run: Run, store: Store) -> str:
    """Return the state and progress of a run as plain text."""
    elapsed = duration(seconds) if (seconds := run.seconds()) is not None else ""
    done = f"{run.done} of {run.total}" if run.total else str(run.done)
    match run.state:
        case State.QUEUED:
            place = store.position(run.id)
            return "next in the queue" if place == 1 else f"{ordinal(place)} in the queue" if place else "waiting"
        case State.STARTING:
            return "starting the worker"
        case State.RUNNING:
            remaining = run.seconds_left()
            left = f", about {duration(remaining)} left" if remaining is not None else ""
            return f"{done} done, {run.note} now{left}" if run.note else f"{done} done{left}"
        case State.STOPPING:
            return f"stopping; {done} done"
        case State.FINISHED:
            return f"{done} done in {elapsed}"
        case State.FAILED:
            return f"{(run.cause or 'error').replace('_', ' ')} after {elapsed or '0 s'}; {done} done and kept"
        case State.VANISHED:
            return f"no heartbeat, and its process cannot be reached; {done} done. It continues if its host returns"
        case State.CANCELLED:
            return f"stopped on request; {done} done and kept"


def progress(run: Run) -> None:
    """Draw the progress bar of a running run, or the error of a failed one."""
    if run.state in (State.RUNNING, State.STOPPING) and run.total:
        st.progress(min(run.done / run.total, 1.0))
    if run.state is State.FAILED and run.error:
        st.error(plain(run.error), icon=":material/error:")
