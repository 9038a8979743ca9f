"""Charts as all pages draw them."""

from collections.abc import Callable, Mapping
from typing import Any

import plotly.graph_objects as go
import streamlit as st

CONFIG = {"displaylogo": False}


def chart(figure: go.Figure, *, key: str, alt: str) -> None:
    """Draw a figure. alt: what it shows, for who cannot see it."""
    st.plotly_chart(figure, key=key, config=CONFIG, alt=alt)


def tabs(contents: Mapping[str, Callable[[], None]], *, key: str, **more: Any) -> None:
    """One tab per content, of which only the open one is drawn; nothing where there is none. more: of st.tabs."""
    if not contents:
        return
    for tab, content in zip(
        st.tabs(list(contents), key=key, on_change="rerun", **more), contents.values(), strict=True
    ):
        if tab.open:
            with tab:
                content()
