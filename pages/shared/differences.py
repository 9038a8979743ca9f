"""Warn of differences between runs that change what their values mean."""

from collections.abc import Sequence

import streamlit as st

from engine.report.compare import settings
from engine.store import Run
from pages.shared.text import plain


def draw(runs: Sequence[Run]) -> None:
    """Draw a warning with a sentence per important difference in settings or environment. runs: of one kind."""
    if warnings := settings.warnings(runs):
        st.warning(
            "  \n".join(plain(sentence) for sentence in warnings),
            title="These runs differ in settings that change what their values mean",
            icon=":material/warning:",
        )
