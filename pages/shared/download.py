"""Download buttons. A file is made when its button is pressed, and the page is not drawn again.

The server keeps the functions passed here until it forgets the session, minutes after the tab was closed. Pass
functions that read or compute the data, not functions that hold them: see `from_rows`.
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
    """Draw a button that downloads `content()` as a file. more: arguments of st.download_button, such as key."""
    mime = MIME[Path(file_name).suffix]
    st.download_button(label, content, file_name, mime=mime, on_click="ignore", icon=icon, **more)


def table(frame: Callable[[], pd.DataFrame], stem: str, *, key: str, label: str = "", **more: Any) -> None:
    """Draw buttons that download the whole table as CSV, JSON and Parquet.

    label: name of the table, for a page with several tables.
    """
    formats(lambda format: tables.FORMATS[format](frame()), f"{stem}.{{}}", key=key, label=label, **more)


def from_rows(run: Run, make: Callable[[Sequence[Any]], Any]) -> Callable[[], Any]:
    """Return a function that reads the rows of a run from the store and passes them to `make`."""
    run_id = run.id
    return lambda: make(backend.store().rows(run_id))


def rows_table(run: Run, frame: Callable[[Sequence[Any]], pd.DataFrame], *, label: str = "") -> None:
    """Draw buttons that download the rows of a run with its environment.

    frame: makes a table of the rows. label: as for table.
    """
    content = from_rows(run, lambda rows: frames.with_environment(frame(rows), run))
    table(content, f"{run.kind}-{run.id}", key=f"rows_{run.id}", label=label)


def formats(content: Callable[[str], str | bytes], file_name: str, *, key: str, label: str = "", **more: Any) -> None:
    """Draw one button per format. content: makes the file of a format. file_name: `{}` stands for the extension."""
    names = {"csv": f"CSV of {label}" if label else "CSV", "json": "JSON", "parquet": "Parquet"}
    help = f"{label[0].upper()}{label[1:]} with all columns." if label else "All columns of all rows."
    for format, name in names.items():
        options = {"key": f"{key}_{format}", "help": help} | more
        download(name, lambda format=format: content(format), file_name.replace("{}", format), **options)
