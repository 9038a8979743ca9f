"""Export of tables to CSV, JSON and Parquet: complete values, and no formulas for spreadsheets."""

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from pyarrow import parquet

from engine.report import frames
from engine.report.export import tables
from engine.report.quantities import QUANTITIES
from tests.support.page import benchmark_row, profile_row


@pytest.mark.parametrize(
    "cell",
    [
        *(
            "=1+1",
            "+cmd|' /C calc'!A0",
            "-2+3",
            "@SUM(A1)",
            "\t=1",
            "\r=1",
            "\t1",
            "\ttext",
            "\rtext",
            "-",
            "=HYPERLINK('http://x')",
        ),
        *("\n=1+1", "\r\n=1+1", "  =1+1", "\x00=1+1", "\x0b\x0c\x1f=1+1", "\u00a0=1+1", "\u3000=1+1", "\ufeff=1+1"),
        *("\u200b@SUM(A1)", "\u2028-2+3", "＝1+1", "＋cmd", "－2+3", "＠SUM(A1)", "\n ＝1+1", "－1", "\n-1"),
    ],
)
def test_formulas_become_text(cell: str) -> None:
    text = tables.to_csv(pd.DataFrame({"model": [cell]}))
    normalised = cell.replace("\r\n", "\n").replace("\r", "\n")
    assert list(csv.reader(io.StringIO(text, newline="")))[1:] == [[f"'{normalised}"]]


def test_line_breaks_in_cells_start_no_row() -> None:
    text = tables.to_csv(pd.DataFrame({"model": ["a\r=1", "b\n=1", "c\r\n=1"]}))
    assert [row[0][0] for row in csv.reader(io.StringIO(text, newline=""))] == ["m", "a", "b", "c"]


def test_formulas_in_headers_become_text() -> None:
    assert tables.to_csv(pd.DataFrame({"=evil": [1]})).splitlines()[0] == "'=evil"
    assert tables.to_csv(pd.DataFrame({" ＝evil": [1]})).splitlines()[0] == "' ＝evil"
    assert tables.guarded([["\n=evil"], ["－2+3"]]) == "\"'\n=evil\"\n'－2+3\n"


def test_numbers_stay_numbers() -> None:
    frame = pd.DataFrame({"delta": [-1.5, None], "text": ["-1.5", "a-b"], "count": pd.array([-3, None], "Int64")})
    assert tables.to_csv(frame) == "delta,text,count\n-1.5,-1.5,-3\n,a-b,\n"


def test_json_has_null_for_missing_values() -> None:
    text = tables.to_json(pd.DataFrame({"model": ["é=1", "b"], "gmacs": [1.5, None]}))
    assert json.loads(text) == [{"model": "é=1", "gmacs": 1.5}, {"model": "b", "gmacs": None}]


def test_json_has_exact_numbers_and_iso_8601_times() -> None:
    numbers = [3.217841e-11, 1 / 3, -2.5e300]
    times = pd.to_datetime(["2026-11-20T10:00:00.5Z", None, "2026-11-20T10:00:01Z"], utc=True, format="ISO8601")
    frame = pd.DataFrame({"deviation": numbers, "date": times, "count": pd.array([1, None, 3], "Int64")})
    lines = json.loads(tables.to_json(frame))
    assert [line["deviation"] for line in lines] == numbers
    assert [line["date"] for line in lines] == ["2026-11-20T10:00:00+00:00", None, "2026-11-20T10:00:01+00:00"]
    assert [line["count"] for line in lines] == [1, None, 3]


def test_guarded_file_changes_only_formulas() -> None:
    lines = [["true", "00007", "a", "a"], ["000123", "1e3", "=cmd", 'with, "quotes"\r\nand lines']]
    guarded = list(csv.reader(io.StringIO(tables.guarded(lines))))
    assert guarded == [lines[0], ["000123", "1e3", "'=cmd", 'with, "quotes"\nand lines']]


def test_headers_of_csv_files_include_units() -> None:
    """In a file, only the header can tell the unit of a quantity."""
    suffixes = {
        **{"M": ("mparams", "mbuffers", "macts"), "G": ("gmacs", "gflops"), "MB": ("_mb",), "ms": ("_ms",)},
        **{"%": ("_percent",), "FLOP/B": ("_flops_per_byte",), "samples/s": ("per_s",), "1/s": ("per_s",)},
        **{"s": ("seconds",), "J/sample": ("joules_per_sample",)},
    }
    without_unit = {"", "×"}
    only_on_pages = {"here", "theirs"}  # columns of a comparison on a page, which shows the unit
    frame = pd.DataFrame({name: [1.0] for name in QUANTITIES})
    header = tables.to_csv(frame).splitlines()[0].split(",")
    for (name, quantity), column in zip(QUANTITIES.items(), header, strict=True):
        if quantity.unit not in without_unit and name not in only_on_pages:
            stated = any(suffix in column for suffix in suffixes.get(quantity.unit, ()))
            assert stated, f"{column} does not state {quantity.unit}: list the suffix here, or the unit in IN_WORDS"


def test_csv_has_iso_8601_times_and_lists_joined_by_semicolons() -> None:
    frame = pd.DataFrame(
        {
            "created": pd.to_datetime(["2026-11-21T20:45:17.25Z", None]),
            "tags": [["a", "b"], []],
        }
    )
    assert tables.to_csv(frame) == "created,tags\n2026-11-21T20:45:17+00:00,a; b\n,\n"


def test_parquet_has_the_values_of_the_table(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "model": ["é=1", None],
            "gmacs": [1.5, None],
            "images": pd.array([3, None], "Int64"),
            "batch_size": [8, "sweep"],
            "created": pd.to_datetime(["2026-11-21T20:45:17Z", None]),
            "tags": [["a"], []],
            "share": [50.0, 50.0],
        }
    )
    tables.save(frame, tmp_path / "table.parquet")
    lines = parquet.read_table(tmp_path / "table.parquet").to_pylist()
    assert [line["model"] for line in lines] == ["é=1", None]
    assert [line["gmacs"] for line in lines] == [1.5, None]
    assert [line["images"] for line in lines] == [3, None]
    assert [line["batch_size"] for line in lines] == ["8", "sweep"]
    assert lines[0]["created"].isoformat() == "2026-11-21T20:45:17+00:00"
    assert [line["tags"] for line in lines] == [["a"], []]
    assert lines[0]["share_percent"] == 50


def test_parquet_columns_without_values_have_their_type(tmp_path: Path) -> None:
    frame = frames.benchmark([benchmark_row("a", error="", accuracy=None, p99_ms=None, context_length=None)])
    tables.save(frame, tmp_path / "table.parquet")
    types = {field.name: str(field.type) for field in parquet.read_schema(tmp_path / "table.parquet")}
    assert (types["accuracy"], types["p99_ms"], types["context_length"]) == (types["model"], "double", "int64")
    assert "null" not in types.values()
    tables.save(frames.profile([profile_row("a", complete=None)]), tmp_path / "table.parquet")
    assert str(parquet.read_schema(tmp_path / "table.parquet").field("complete").type) == "bool"
