"""Redraw a page without losing entered values, toasts and open sections."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.shared.text import plain

# Each timer message carries the widget values of the browser. After a preset or an upload has set new values on the
# server, messages carry the old values until the browser has received the new ones. Drawing the form with old values
# would undo the change.
HELD = "drawn_fields"
QUICK_TO_READ = 60
"""Toasts with more characters stay for 10 s instead of 4."""


def hold(field: str) -> None:
    """Store the value that a field was just drawn with. field: the field's key."""
    st.session_state.setdefault(HELD, {})[field] = st.session_state.get(field)


def release(field: str) -> None:
    """Remove the stored value of a field that is not drawn any more."""
    st.session_state.get(HELD, {}).pop(field, None)


def page() -> None:
    """Redraw the page, unless that could undo changes of the form; then a later message of the timer redraws it.

    A field whose value differs from the last drawn one may hold a stale value of the browser. A field drawn in this run
    may have a new value that the browser has not received; a second drawing would replace the one that sends it.
    Returns only if the page is not redrawn.
    """
    context = get_script_run_ctx()
    assert context is not None
    drawn_now = context.shared.widget_user_keys_this_run.snapshot()
    held = {field: value for field, value in st.session_state.get(HELD, {}).items() if field in st.session_state}
    if all(st.session_state[field] == value and field not in drawn_now for field, value in held.items()):
        st.rerun()


def updates_itself() -> bool:
    """Return whether a fragment is drawn alone, and not with its page."""
    context = get_script_run_ctx(suppress_warning=True)
    return bool(context and context.fragment_ids_this_run)


def is_history_navigation() -> bool:
    """Return whether Back or Forward of the browser asked for this drawing, so that the address decides."""
    context = get_script_run_ctx(suppress_warning=True)
    return bool(context and context.is_history_navigation)


Arguments = ParamSpec("Arguments")
_TURN = RLock()


def in_turn(draw: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Return a fragment's function that lets only one session of the server update itself at a time.

    Otherwise 50 sessions that follow runs share the interpreter with a page that somebody opens, which takes seconds.
    The first draw of a fragment, with its page, does not wait.
    """

    @wraps(draw)
    def draw_in_turn(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        with _TURN if updates_itself() else nullcontext():
            draw(*args, **kwargs)

    return draw_in_turn


# Streamlit loses a toast that is sent before a rerun, so it is kept and shown after it.
WAITING = "announced"


def show_later(message: str, icon: str) -> None:
    """Show a toast once, the next time the whole page is drawn."""
    st.session_state.setdefault(WAITING, {})[message] = icon


def show_waiting() -> None:
    """Show the toasts that were kept before this run of the page."""
    for message, icon in st.session_state.pop(WAITING, {}).items():
        show(message, icon)


def show(message: str, icon: str) -> None:
    """Show a toast now. A rerun of the page would lose it."""
    st.toast(plain(message), icon=icon, duration="long" if len(message) > QUICK_TO_READ else "short")


Result = TypeVar("Result")


def fold(
    label: str, draw: Callable[[], Result], *, key: str, icon: str | None = None, filled: bool = False
) -> Result | None:
    """Draw a collapsed section, and its content while it is open. Return what `draw` returns; None while it is closed.

    key: key of the open or closed state. filled: draw the content even when closed, because a field in it has a value.
    """
    section = st.expander(label, icon=icon, key=key, on_change="rerun")
    with section:
        return draw() if section.open or filled else None


class PageEnd(Exception):
    """Raised to end a page. `st.stop()` would also end the frame, which draws its own messages after the page."""
