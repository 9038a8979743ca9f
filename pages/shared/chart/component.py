"""Load browser components. Each is a .html, a .css and a .js file beside this module."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

HERE = Path(__file__).parent


def component(name: str) -> Callable[..., Any]:
    """Return the function that draws the component. Its styles are not isolated: plotly adds styles to the page."""
    html, css, js = ((HERE / f"{name}.{part}").read_text(encoding="utf-8") for part in ("html", "css", "js"))
    return st.components.v2.component(name, html=html, css=css, js=js, isolate_styles=False)
