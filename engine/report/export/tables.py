"""Write whole tables as files: CSV that no spreadsheet executes, JSON, and Parquet."""

import csv
import io
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pandas as pd

from engine import atomic
from engine.report.quantities import QUANTITIES

IN_WORDS = {"%": "percent", "FLOP/B": "flops_per_byte"}
"""Words for units. They are added to column names that do not contain them."""
FORMULA = frozenset("=+-@＝＋－＠")
"""Characters that begin a formula. Spreadsheets in some languages also accept the full-width ones."""


def guard(cell: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would interpret as a formula. Numbers stay numbers.

    Carriage returns become line feeds: the CSV writer quotes only line feeds, and an unquoted return would begin a new
    row.
    """
    if not isinstance(cell, str):
        return cell
    guarded = f"'{cell}" if _is_formula(cell) and not _is_number(cell) else cell
    return guarded.replace("\r\n", "\n").replace("\r", "\n")


def _is_formula(text: str) -> bool:
    """Return whether the first visible character begins a formula. Spreadsheets skip invisible ones before it."""
    first = next((sign for sign in text if unicodedata.category(sign)[0] not in "CZ"), "")
    return first in FORMULA or text.startswith(("\t", "\r", "\n"))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()


def to_csv(frame: pd.DataFrame) -> str:
    """Return the whole table without its index: units in headers, times as ISO 8601, texts and headers guarded."""
    frame = frame.rename(columns=exported_name)
    texts = {str(name): column for name, column in frame.items() if not pd.api.types.is_numeric_dtype(column)}
    columns = {name: [guard(_format_cell(cell)) for cell in column] for name, column in texts.items()}
    guarded = frame.assign(**columns).rename(columns=guard)
    return str(guarded.to_csv(index=False, lineterminator="\n"))


def guarded(lines: Iterable[Sequence[str]]) -> str:
    """Return the lines as CSV with every cell guarded and otherwise unchanged, so that `007` stays a text."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([guard(cell) for cell in line] for line in lines)
    return text.getvalue()


def to_json(frame: pd.DataFrame) -> str:
    """Return a list of objects, one per row: numbers with all digits, times as ISO 8601, missing values as null."""
    # pandas itself would write ten decimals, and so write small values as 0
    records = frame.rename(columns=exported_name).to_dict("records")
    return orjson.dumps(records, default=_json_value, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode()


def to_parquet(frame: pd.DataFrame) -> bytes:
    """Return the table as Parquet, each column with one type. Missing values are null.

    A column of objects without values is one of texts: columns of numbers and truth values have a type even then.
    """
    frame = frame.rename(columns=exported_name)
    objects = {str(name): column for name, column in frame.items() if column.dtype == object}
    others = {name: column for name, column in objects.items() if column.dropna().map(type).nunique() != 1}
    texts = {name: column.map(str, na_action="ignore").astype("str") for name, column in others.items()}
    return bytes(frame.assign(**texts).to_parquet(index=False))


FORMATS: dict[str, Callable[[pd.DataFrame], str | bytes]] = {"csv": to_csv, "json": to_json, "parquet": to_parquet}
"""Functions that write a table, by format. Every table can be exported in each of them."""


def save(frame: pd.DataFrame, path: Path, format: str | None = None) -> None:
    """Write a table in this format (of FORMATS), or else in the format of the file's extension. Errors: OSError."""
    atomic.export(path, FORMATS[format or path.suffix.removeprefix(".")](frame))


def exported_name(column: Any) -> Any:
    """Return a column's name in files, which states a unit that the name does not: `share_percent` for `share`."""
    unit = IN_WORDS.get(QUANTITIES[column].unit, "") if column in QUANTITIES else ""
    return f"{column}_{unit}" if unit and unit not in column else column


def _format_cell(cell: Any) -> Any:
    if isinstance(cell, datetime):
        return "" if pd.isna(cell) else cell.isoformat(timespec="seconds")
    return "; ".join(map(str, cell)) if isinstance(cell, list | tuple) else cell


def _json_value(cell: Any) -> Any:
    """Return a JSON value for a cell of a type that JSON does not have."""
    return None if cell is pd.NA or cell is pd.NaT else _format_cell(cell)
