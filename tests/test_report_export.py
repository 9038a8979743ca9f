"""Exports: complete, and harmless in a spreadsheet."""

import csv
import io
import json

import pandas as pd
import pytest

from engine.report import export


@pytest.mark.parametrize(
    "cell", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "=HYPERLINK('http://x')"]
)
def test_formulas_become_text(cell: str) -> None:
    written = export.to_csv(pd.DataFrame({"model": [cell]}))
    assert list(csv.reader(io.StringIO(written, newline="")))[1:] == [[f"'{cell}".replace("\r", "\n")]]


def test_no_cell_can_begin_a_row_of_its_own() -> None:
    written = export.to_csv(pd.DataFrame({"model": ["a\r=1", "b\n=1", "c\r\n=1"]}))
    assert [row[0][0] for row in csv.reader(io.StringIO(written, newline=""))] == ["m", "a", "b", "c"]


def test_headers_are_guarded_too() -> None:
    assert export.to_csv(pd.DataFrame({"=evil": [1]})).splitlines()[0] == "'=evil"


def test_numbers_stay_numbers() -> None:
    frame = pd.DataFrame({"delta": [-1.5, None], "text": ["-1.5", "a-b"], "count": pd.array([-3, None], "Int64")})
    assert export.to_csv(frame) == "delta,text,count\n-1.5,-1.5,-3\n,a-b,\n"


def test_json_has_null_for_what_is_missing() -> None:
    written = export.to_json(pd.DataFrame({"model": ["é=1", "b"], "gmacs": [1.5, None]}))
    assert json.loads(written) == [{"model": "é=1", "gmacs": 1.5}, {"model": "b", "gmacs": None}]
