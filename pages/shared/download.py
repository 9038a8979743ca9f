"""Files to take away: made when they are asked for, without drawing the page again.

A session keeps what the functions here hold until the server forgets the session, minutes after its tab was closed. So
they hold what to read or to compute, not the data: see `stored`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.report import frames
from engine.report.export import tables
from engine.store import Run
from pages.shared import backend

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
    formats(lambda format: tables.FORMATS[format](frame()), f"{stem}.{{}}", key=key, label=label, **more)


def stored(run: Run, make: Callable[[Sequence[Any]], Any]) -> Callable[[], Any]:
    """Return a function that reads the rows of a run from the store and makes something of them."""
    run_id = run.id
    return lambda: make(backend.store().rows(run_id))


def rows_table(run: Run, frame: Callable[[Sequence[Any]], pd.DataFrame], *, label: str = "") -> None:
    """Buttons that give the rows of a run with its environment. frame: makes the table of them; label: as for table."""
    content = stored(run, lambda rows: frames.with_environment(frame(rows), run))
    table(content, f"{run.kind}-{run.id}", key=f"rows_{run.id}", label=label)


def formats(content: Callable[[str], str | bytes], file_name: str, *, key: str, label: str = "", **more: Any) -> None:
    """Buttons that give the same in each format. content: of a format; file_name: with `{}` where its ending goes."""
    names = {"csv": f"CSV of {label}" if label else "CSV", "json": "JSON", "parquet": "Parquet"}
    told = f"{label[0].upper()}{label[1:]}: all columns" if label else "All columns of all rows"
    for format, name in names.items():
        given = {"key": f"{key}_{format}", "help": told} | more
        download(name, lambda format=format: content(format), file_name.replace("{}", format), **given)
