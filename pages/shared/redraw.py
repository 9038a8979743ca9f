"""Drawing a whole page again from a tick of one of its parts, without undoing what was put into its form meanwhile.

A tick brings the values that the browser knows. Sent before the browser has heard of values that were put into the form
here, by a preset or an upload, it brings those of before, and drawing the form with them would undo the others.
"""

import streamlit as st

HELD = "drawn_fields"


def hold(field: str) -> None:
    """Note what a field has just been drawn with. field: its key."""
    st.session_state.setdefault(HELD, {})[field] = st.session_state.get(field)


def release(field: str) -> None:
    """Forget a field that is not drawn any more."""
    st.session_state.get(HELD, {}).pop(field, None)


def page() -> None:
    """Draw the page again, unless this tick brings other values than its form was drawn with; the next one brings them.

    Returns only if it is not drawn again.
    """
    held = st.session_state.get(HELD, {})
    if all(st.session_state[field] == value for field, value in held.items() if field in st.session_state):
        st.rerun()
