"""What state a run is in, told truthfully in words: never by colour alone."""

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
    """The state as a word with its sign."""
    st.badge(run.state.value, icon=ICONS[run.state], color=COLOURS.get(run.state, "gray"))


def sentence(run: Run, store: Store) -> str:
    """Where the run stands, as plain text."""
    took = duration(seconds) if (seconds := run.seconds()) is not None else ""
    done = f"{run.done} of {run.total}" if run.total else str(run.done)
    match run.state:
        case State.QUEUED:
            place = store.position(run.id)
            return "next in the queue" if place == 1 else f"{ordinal(place)} in the queue" if place else "waits"
        case State.STARTING:
            return "has its slot; the worker is being started"
        case State.RUNNING:
            left = run.seconds_left()
            rest = f", about {duration(left)} left" if left is not None else ""
            return f"{done} done, {run.note} now{rest}" if run.note else f"{done} done{rest}"
        case State.STOPPING:
            return f"asked to stop; {done} done"
        case State.FINISHED:
            return f"{done} done in {took}"
        case State.FAILED:
            return f"{(run.cause or 'error').replace('_', ' ')} after {took or 'no time'}; {done} done and kept"
        case State.VANISHED:
            return f"no heartbeat, and its process cannot be reached; {done} done. It goes on if its host comes back"
        case State.CANCELLED:
            return f"stopped on request; {done} done and kept"


def progress(run: Run) -> None:
    """A bar while the run goes, and the error of one that failed."""
    if run.state in (State.RUNNING, State.STOPPING) and run.total:
        st.progress(min(run.done / run.total, 1.0))
    if run.state is State.FAILED and run.error:
        st.error(plain(run.error), icon=":material/error:")
