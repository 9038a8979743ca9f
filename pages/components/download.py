"""Files to take away: made when they are asked for, without drawing the page again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.report import export

MIME = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".parquet": "application/vnd.apache.parquet",
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


def table(frame: Callable[[], pd.DataFrame], stem: str, *, key: str, label: str = "", **more: Any) -> None:
    """Buttons that give a table as CSV, JSON and Parquet: what is shown, all pages of it.

    label: which table, where a page has several.
    """
    formats(lambda format: export.FORMATS[format](frame()), f"{stem}.{{}}", key=key, label=label, **more)


def formats(content: Callable[[str], str | bytes], file_name: str, *, key: str, label: str = "", **more: Any) -> None:
    """Buttons that give the same in each format. content: of a format; file_name: with `{}` where its ending goes."""
    names = {"csv": f"CSV of {label}" if label else "CSV", "json": "JSON", "parquet": "Parquet"}
    told = f"{label[0].upper()}{label[1:]}: all columns" if label else "All columns of all rows"
    for format, name in names.items():
        given = {"key": f"{key}_{format}", "help": told} | more
        download(name, lambda format=format: content(format), file_name.replace("{}", format), **given)
