"""Make each link one entry of the browser's history, so that Back returns to the page as it was."""

from pathlib import Path

import streamlit as st

_draw = st.components.v2.component("history", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"))


def merge_entries() -> None:
    """Merge the entries that one click makes. Draws nothing."""
    _draw(key="history")
