"""Files to take away: made when they are asked for, without drawing the page again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

MIME = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".pt": "application/octet-stream",
    ".txt": "text/plain",
    ".zip": "application/zip",
}


def download(
    label: str, content: Callable[[], str | bytes], file_name: str, *, icon: str = ":material/download:", **more: Any
) -> None:
    """A button that gives `content()` under that name. more: of st.download_button, such as its key."""
    mime = MIME[Path(file_name).suffix]
    st.download_button(label, content, file_name, mime=mime, on_click="ignore", icon=icon, **more)
