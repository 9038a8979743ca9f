"""Tables as files: CSV that no spreadsheet executes, and JSON."""

from typing import Any

import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def guard(cell: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets an apostrophe in front; numbers stay numbers.

    Carriage returns become line feeds: the writer quotes only those, and an unquoted one would begin a new row.
    """
    if not isinstance(cell, str):
        return cell
    guarded = f"'{cell}" if cell.startswith(FORMULA) and not _is_number(cell) else cell
    return guarded.replace("\r\n", "\n").replace("\r", "\n")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()


def to_csv(frame: pd.DataFrame) -> str:
    """The whole table, without its index, headers guarded like cells."""
    columns = {name: [guard(cell) for cell in frame[name]] for name in frame.columns if not _numeric(frame[name])}
    guarded = frame.assign(**columns).rename(columns=guard)
    return str(guarded.to_csv(index=False, lineterminator="\n"))


def _numeric(column: "pd.Series[Any]") -> bool:
    return bool(pd.api.types.is_numeric_dtype(column))


def to_json(frame: pd.DataFrame) -> str:
    """A list of objects, one a row; missing figures are null."""
    return str(frame.to_json(orient="records", indent=2, force_ascii=False, date_format="iso"))
