"""Redraw a page without losing entered values, toasts and open sections."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from threading import RLock
from typing import ParamSpec

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.shared.text import plain

# Each timer message carries the widget values of the browser. After a preset or an upload has set new values on the
# server, messages carry the old values until the browser has received the new ones. Drawing the form with old values
# would undo the change.
HELD = "drawn_fields"


def hold(field: str) -> None:
    """Store the value that a field was just drawn with. field: the field's key."""
    st.session_state.setdefault(HELD, {})[field] = st.session_state.get(field)


def release(field: str) -> None:
    """Remove the stored value of a field that is not drawn any more."""
    st.session_state.get(HELD, {}).pop(field, None)


def page() -> None:
    """Redraw the page, unless this message carries stale form values; a later message will carry the new ones.

    Returns only if the page is not redrawn.
    """
    held = st.session_state.get(HELD, {})
    if all(st.session_state[field] == value for field, value in held.items() if field in st.session_state):
        st.rerun()


def updates_itself() -> bool:
    """Return whether a fragment is drawn alone, and not with its page."""
    context = get_script_run_ctx(suppress_warning=True)
    return bool(context and context.fragment_ids_this_run)


def through_history() -> bool:
    """Return whether Back or Forward of the browser asked for this drawing, so that the address decides."""
    context = get_script_run_ctx(suppress_warning=True)
    return bool(context and context.is_history_navigation)


Arguments = ParamSpec("Arguments")
_TURN = RLock()


def in_turn(draw: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Return the function of a fragment that updates itself, so that only one session of the server updates at a time.

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
    """Show a toast the next time the whole page is drawn."""
    st.session_state.setdefault(WAITING, []).append((message, icon))


def show_waiting() -> None:
    """Show the toasts that were kept before this run of the page."""
    for message, icon in st.session_state.pop(WAITING, []):
        show(message, icon)


def show(message: str, icon: str) -> None:
    """Show a toast now. A rerun of the page would lose it."""
    st.toast(plain(message), icon=icon)


def fold(label: str, *, key: str, icon: str | None = None, filled: bool = False) -> DeltaGenerator | None:
    """Draw a collapsed section and return its container, or None while it is closed.

    key: key of the open or closed state. filled: render the section even when closed, because a field in it has a
    value.
    """
    section = st.expander(label, icon=icon, key=key, on_change="rerun")
    return section if section.open or filled else None


class PageEnd(Exception):
    """Raised to end a page. `st.stop()` would also end the frame, which draws its own messages after the page."""
