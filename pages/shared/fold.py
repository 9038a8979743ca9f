"""Collapsed sections. They are rendered only when opened, because each widget costs the browser about 10 ms."""

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def fold(label: str, *, key: str, icon: str | None = None, filled: bool = False) -> DeltaGenerator | None:
    """Draw a collapsed section and return its container, or None while it is closed.

    key: of the state open or closed. filled: render it even when closed, because a field in it has a value.
    """
    section = st.expander(label, icon=icon, key=key, on_change="rerun")
    return section if section.open or filled else None
