"""Parts of pages that run in the browser: each is a .html, a .css and a .js file beside this one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

HERE = Path(__file__).parent


def component(name: str) -> Callable[..., Any]:
    """What draws it. Its style sheet is the page's: plotly has one of its own there."""
    html, css, js = ((HERE / f"{name}.{part}").read_text(encoding="utf-8") for part in ("html", "css", "js"))
    return st.components.v2.component(name, html=html, css=css, js=js, isolate_styles=False)
