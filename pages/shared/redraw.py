"""Redraw the whole page from a fragment's timer without losing values that the server has just put into a form.

Each timer message carries the widget values of the browser. A preset or an upload sets values on the server; until the
browser has received them, its messages carry the old ones. Drawing the form with stale values would undo the new ones.
"""

import streamlit as st

HELD = "drawn_fields"


def hold(field: str) -> None:
    """Note the value that a field was just drawn with. field: the field's key."""
    st.session_state.setdefault(HELD, {})[field] = st.session_state.get(field)


def release(field: str) -> None:
    """Forget a field that is not drawn any more."""
    st.session_state.get(HELD, {}).pop(field, None)


def page() -> None:
    """Redraw the page, unless this message carries stale form values; a later message will carry the new ones.

    Returns only if the page is not redrawn.
    """
    held = st.session_state.get(HELD, {})
    if all(st.session_state[field] == value for field, value in held.items() if field in st.session_state):
        st.rerun()
