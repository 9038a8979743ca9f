"""Telling what was done once the page is drawn anew: what is told before goes with the drawing that it belongs to."""

import streamlit as st

from pages.shared.text import plain

WAITING = "announced"


def later(said: str, icon: str) -> None:
    """Tell it when all of a page is drawn next."""
    st.session_state.setdefault(WAITING, []).append((said, icon))


def now() -> None:
    """Tell what was done before this drawing of the page."""
    for said, icon in st.session_state.pop(WAITING, []):
        at_once(said, icon)


def at_once(said: str, icon: str) -> None:
    """Tell it in this drawing."""
    st.toast(plain(said), icon=icon)
