"""Toasts that survive a rerun. Streamlit loses a toast that is sent before a rerun, so it is kept and sent after it."""

import streamlit as st

from pages.shared.text import plain

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
