"""Tables of results with pinned names, units in the headers and three significant digits, speed-ups with four."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pandas as pd
import streamlit as st

from engine.published.publishers import ACCURACIES
from engine.report.export import bulk, tables
from engine.report.quantities import MEASURED, QUANTITIES, is_share, title
from engine.results import Row
from engine.store import Run
from engine.words import plural
from pages.shared import backend

HELP = {
    "flags": "Conditions that limit what the timing shows. Select the row in its run to read what each flag means.",
    "status": "ok, or why there are no values. The column `error` has the details.",
    "verdict": "Compares the 99 % interval of the speed-up with a margin of 2 %.",
    "baseline": "The row that the speed-up refers to.",
    "differs_in": "Settings that differ from the baseline and make the two not comparable.",
}


PERCENT, WHOLE_PERCENT = "%.2f %%", "%.0f %%"
"""Formats of a cell with a share in per cent, see `in_percent`. Streamlit's format `percent` has no space, as in 5%."""


def in_percent(frame: pd.DataFrame, shares: Iterable[str]) -> pd.DataFrame:
    """Return the frame with the columns of `shares` that it has in per cent instead of from 0 to 1."""
    return frame.assign(**{name: 100 * frame[name].astype(float) for name in shares if name in frame})


def column_config(frame: pd.DataFrame, pinned: str) -> dict[str, Any]:
    """Return the column configuration of a frame: headers with units, number formats and help texts."""
    config: dict[str, Any] = {}
    for column in frame.columns:
        if column in QUANTITIES and not pd.api.types.is_numeric_dtype(frame[column]):
            # A text is a value, or the reason why it is missing.
            config[column] = st.column_config.TextColumn(title(column), help=QUANTITIES[column].help, alignment="right")
        elif column in QUANTITIES:
            header_width = 18 + round(5.4 * len(title(column)))  # in px: margins and the mean width of a letter
            config[column] = st.column_config.NumberColumn(
                title(column),
                help=QUANTITIES[column].help,
                # publishers give at least two decimals; limits of 1.005 and 1.014 would both be 1.01
                format="%.2f" if column in ACCURACIES else "%,.4g" if column.startswith("speedup") else "%,.3g",
                alignment="right",
                width=header_width if column in (*ACCURACIES, *MEASURED) else None,
            )
        elif is_share(column):
            config[column] = st.column_config.NumberColumn(title(column), format=PERCENT)
        elif column in HELP:
            config[column] = st.column_config.Column(title(column), help=HELP[column])
        elif column in ("image_size", "calls", "batch_size", "processes", "samples", "rate", "at"):
            config[column] = st.column_config.Column(title(column), alignment="right")
        else:
            width: Any = _name_width(frame[column]) if column == "model" else {"error": "medium"}.get(column)
            config[column] = st.column_config.Column(title(column), pinned=column == pinned, width=width)
    return config


def _name_width(names: "pd.Series[Any]") -> int:
    """Return the width of a column of names in px. Models of one family often differ only at the end of their names."""
    longest = int(names.astype(str).str.len().max()) if len(names) else 0
    return min(max(180, 18 + 7 * longest), 260)


def informative_columns(table: pd.DataFrame, constant: Sequence[str]) -> pd.DataFrame:
    """Return a table of timings without its empty columns. constant: columns to drop if all rows have one value."""
    filled = [name for name in table if table[name].replace(["", "–"], None).notna().any()]
    unchanging = [name for name in constant if table[name].nunique() == 1 and len(table) > 1]
    trivial = [name for name, value in (("status", "ok"), ("samples", 0)) if (table[name] == value).all()]
    return table[[name for name in filled if name not in (*unchanging, *trivial)]]


def results_table(
    frame: pd.DataFrame,
    *,
    key: str,
    alt: str,
    pinned: str = "model",
    columns: Sequence[str] | None = None,
    height: int | Literal["auto"] = "auto",
    selectable: bool = False,
    selected: Sequence[Any] = (),
    on_select: Callable[[list[Any]], None] | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Draw a table, with shares in per cent, and return the index labels of its selected rows.

    selected: labels of the rows drawn as selected; needs `on_select`, which is called with the labels of the rows that
    the reader selects.
    config: column configuration that replaces the one of `column_config`.
    """
    shown = frame if columns is None else frame[[column for column in columns if column in frame]]
    shown = in_percent(shown, filter(is_share, shown.columns))
    options: dict[str, Any] = {}
    if selectable or on_select:
        options = {"on_select": (lambda: on_select(_selected(key))) if on_select else "rerun"}
        _select(key, list(shown.index), selected if on_select else _selected(key))
    st.dataframe(
        shown,
        key=drawn_key(key),
        alt=alt,
        hide_index=True,
        height=height,
        column_config=column_config(shown, pinned) | dict(config or {}),
        placeholder="–",
        **options,
    )
    return _selected(key) if options else []


def drawn_key(key: str) -> str:
    """Return the key under which Streamlit knows a table now: another one each time a change has moved selected rows.

    A message that the browser sends before it receives the changed table has positions in the table before. Streamlit
    ignores positions that it gets for another key. With one key, the rows at these positions would be selected.
    """
    moves = st.session_state.get(f"{key}_moves", 0)
    return f"{key}_{moves}" if moves else key


def _selected(key: str) -> list[Any]:
    """Return the labels of the selected rows. Streamlit stores positions, which change when rows come or go."""
    labels, state = st.session_state.get(f"{key}_labels", []), st.session_state.get(drawn_key(key))
    rows = state["selection"]["rows"] if state else []
    return [labels[position] for position in rows if position < len(labels)]


def _select(key: str, labels: list[Any], selected: Sequence[Any]) -> None:
    """Select the rows with the labels `selected`. labels: of all rows, in their order."""
    chosen = set(selected)
    rows = [position for position, label in enumerate(labels) if label in chosen]
    state = st.session_state.get(drawn_key(key))
    if rows != sorted(state["selection"]["rows"] if state else []):
        if state and labels != st.session_state.get(f"{key}_labels"):
            st.session_state[f"{key}_moves"] = st.session_state.get(f"{key}_moves", 0) + 1
        st.session_state[drawn_key(key)] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    st.session_state[f"{key}_labels"] = labels


FORMATS = {"csv": "CSV", "json": "JSON", "parquet": "Parquet"}


def download(
    label: str,
    content: Callable[[], str | bytes],
    file_name: str,
    *,
    icon: str | None = ":material/download:",
    **more: Any,
) -> None:
    """Draw a button that downloads `content()` as a file. more: arguments of st.download_button, such as key.

    icon: None in a menu of downloads, whose buttons have the same width.
    """
    more = {"width": "stretch"} | more if icon is None else more
    mime = "application/octet-stream"  # a browser keeps the ending of the name
    st.download_button(label, content, file_name, mime=mime, on_click="ignore", icon=icon, **more)


def download_table(frame: Callable[[], pd.DataFrame], stem: str, *, key: str, label: str = "", **more: Any) -> Any:
    """Draw the menu that downloads a table in each of FORMATS, and return it. label: name of the table among others."""
    return download_formats(lambda name: tables.FORMATS[name](frame()), f"{stem}.{{}}", key=key, label=label, **more)


def from_rows(run: Run, make: Callable[[Sequence[Any]], Any]) -> Callable[[], Any]:
    """Return a function that reads the rows of a run and passes them to `make`. It fails once the run is deleted."""
    run_id = run.id
    return lambda: make(backend.store().rows(backend.store().run(run_id).id))


def csv_rows(run: Run, frame: Callable[[Sequence[Any]], pd.DataFrame]) -> Callable[[], str]:
    """Return a function that writes a table of the rows of a run as CSV. frame: makes the table."""
    return from_rows(run, lambda rows: tables.to_csv(frame(rows)))


def download_rows(run: Run, *, label: str = "") -> Any:
    """Draw the menu that downloads the rows of a run with its environment, and return it."""
    content = from_rows(run, lambda rows: bulk.of_run(backend.store(), run, rows))
    return download_table(content, f"{run.kind}-{run.id}", key=f"rows_{run.id}", label=label)


def failures(rows: Sequence[Row], what: str = "failed") -> None:
    """Draw the number of failed rows, if there are any. what: the verb for their failure."""
    if failed := sum(row.status != "ok" for row in rows):
        st.caption(f":material/error: {failed} of {plural(len(rows), 'row')} {what}. See the columns status and error.")


def download_formats(
    content: Callable[[str], str | bytes],
    file_name: str,
    *,
    key: str,
    label: str = "",
    help: str = "All columns of all rows.",
    disabled: bool = False,
) -> Any:
    """Draw a menu with a button per format, and return it. content: makes a file. file_name: `{}` is its extension."""
    menu = st.popover(f"Download {label}".strip(), icon=":material/download:", help=help, disabled=disabled)
    with menu:
        for format, name in FORMATS.items():
            file = file_name.replace("{}", format)
            download(name, partial(content, format), file, icon=None, key=f"{key}_{format}")
    return menu
