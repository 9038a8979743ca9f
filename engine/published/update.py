"""Import a newer version of a publisher's table of accuracies: check all of it, then merge it with earlier imports."""

import re
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import BinaryIO

import pandas as pd

from engine import atomic
from engine.published.match import COLUMNS, KEY, read, read_lines, tidy
from engine.published.publishers import TABLES, TIMM, TIMM_TESTS, Table
from engine.settings import Settings
from engine.specs import Refused
from engine.words import plural

LARGEST_FILE = 5_000_000
"""Largest file accepted, in bytes. The publishers' own tables are a tenth of that."""
MOST_ROWS = 20_000
NAME = re.compile(r"[\w.:/+-]{1,200}")
LARGEST_SIDE = 8192
LARGEST_DEVIATION = 0.011
"""Accuracy plus error of one row may differ from 100 by at most this, in per cent, because both are rounded."""


def folder(settings: Settings) -> Path:
    """Return the folder of imported tables. It is beside the runs, so that the shipped tables stay unchanged."""
    return settings.runs_dir / "published"


def open_table(path: str) -> BinaryIO:
    """Open a publisher's table for reading. Errors: Refused if the file does not exist; OSError."""
    if not Path(path).exists():
        pages = " or ".join(dict.fromkeys(table.page for table in TABLES.values()))
        raise Refused(f"no file at {path}: download the table from its publisher's page, {pages}, and give its path")
    return Path(path).open("rb")


def take(content: bytes, name: str, to: Path, *, kind: str | None = None) -> str:
    """Merge a publisher's table into the folder `to`, and return a sentence on the changes. A refused table changes
    nothing.

    name: file name, which identifies timm's test sets and is shown as the source with today's date. The number that a
    browser adds to a second download, ` (1)`, is left out. kind: one of TABLES; found by the headings if None.
    Errors: Refused.
    """
    name = re.sub(r" \(\d+\)(?=\.csv$)", "", name)
    frame = _parse(content, name)
    table = TABLES[kind] if kind else _find_table(frame, name)
    ours = _read_timm(frame, name) if table is TIMM else _read_clip(frame, table, name)
    source = f"{table.repository}, {name}, imported {datetime.now(UTC).date().isoformat()}"
    lines = tidy(ours, table, source)
    compared = lines.merge(read(to), on=[*KEY, "accuracy"], how="left", suffixes=("", "_before"))
    new, same = compared["percent_before"].isna(), compared["percent_before"] == compared["percent"]
    test = f"_{TIMM_TESTS[Path(name).name][0]}" if table is TIMM else ""
    _merge(lines, to / f"{table.kind}{test}.csv")
    changes = f"{plural(int(new.sum()), 'new value')}, {int((~new & ~same).sum()):,} changed"
    return f"{plural(len(ours), 'row')} of {table.repository}: {changes}. Imported values replace the shipped ones"


def _parse(content: bytes, name: str) -> pd.DataFrame:
    if len(content) > LARGEST_FILE:
        raise Refused(f"{name} has {len(content):,} bytes, at most {LARGEST_FILE:,} are taken")
    try:
        frame = pd.read_csv(StringIO(content.decode()), dtype=str, keep_default_na=False)
    except ValueError as error:  # includes those of UTF-8 and of an empty file
        raise Refused(f"{name} is no CSV that can be read: {error}") from error
    if not isinstance(frame.index, pd.RangeIndex):
        raise Refused(f"{name} has more cells in a line than it has columns")
    if not 1 <= len(frame) <= MOST_ROWS:
        raise Refused(f"{name} has {len(frame):,} rows, 1 to {MOST_ROWS:,} are taken")
    return frame


def _find_table(frame: pd.DataFrame, name: str) -> Table:
    """Return the table that has these headings. Errors: Refused."""
    for table in TABLES.values():
        if _key_columns(table) <= set(frame) and {table.accuracies[0].heading} <= set(frame):
            return table
    layouts = {table.kind: [*sorted(_key_columns(table)), table.accuracies[0].heading] for table in TABLES.values()}
    known = "; ".join(f"{kind} has {', '.join(columns)}" for kind, columns in layouts.items())
    raise Refused(f"{name} has none of the layouts that are known: {known}. It has {', '.join(frame.columns[:8])}")


def _key_columns(table: Table) -> set[str]:
    return {"model", "img_size"} if table is TIMM else {"name", "pretrained"}


def _read_timm(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the lines of a file in timm's layout. Errors: Refused.

    Columns: model with its tag, top1, top1_err, top5, top5_err, img_size. There is one file per test set.
    """
    if Path(name).name not in TIMM_TESTS:
        raise Refused(f"{name}: of timm's tables, these are taken, by their names: {', '.join(TIMM_TESTS)}")
    test = TIMM_TESTS[Path(name).name][0]
    _check_columns(frame, ["model", "top1", "top1_err", "top5", "top5_err", "img_size"], name)
    _check_names(frame, "model", name)
    sizes = _numbers(frame, "img_size", name)
    _refuse_where(frame, (sizes % 1 != 0) | (sizes < 1) | (sizes > LARGEST_SIDE), "img_size", name, "pixels")
    accuracies = {column: _percentages(frame, column, name, 100) for column in ("top1", "top1_err", "top5", "top5_err")}
    for k in ("top1", "top5"):
        inconsistent = (accuracies[k] + accuracies[f"{k}_err"] - 100).abs() > LARGEST_DEVIATION
        _refuse_where(frame, inconsistent, k, name, f"100 less its {k}_err")
    _refuse_where(frame, accuracies["top5"] < accuracies["top1"], "top5", name, "at least its top1")
    models = frame["model"].str.partition(".")
    ours = pd.DataFrame(
        {
            **{"model": models[0], "pretrained": models[2], "image_size": sizes.astype(int).astype(str)},
            **{f"{test}_top{k}": accuracies[f"top{k}"] for k in (1, 5)},
        }
    )
    return _check_unique(ours, name)


def _read_clip(frame: pd.DataFrame, table: Table, name: str) -> pd.DataFrame:
    """Return the lines of a file in open_clip's layout: name, pretrained, a column per data set, in fractions of 1."""
    _check_columns(frame, ["name", "pretrained", *(accuracy.heading for accuracy in table.accuracies)], name)
    _check_names(frame, "name", name)
    _check_names(frame, "pretrained", name)
    accuracies = {accuracy.name: _percentages(frame, accuracy.heading, name, 1) for accuracy in table.accuracies}
    return _check_unique(pd.DataFrame({"model": frame["name"], "pretrained": frame["pretrained"], **accuracies}), name)


def _check_columns(frame: pd.DataFrame, columns: list[str], name: str) -> None:
    if missing := [column for column in columns if column not in frame]:
        raise Refused(f"{name} lacks the columns {', '.join(missing[:5])}{', ...' * (len(missing) > 5)}")


def _check_names(frame: pd.DataFrame, column: str, name: str) -> None:
    _refuse_where(frame, ~frame[column].map(lambda text: bool(NAME.fullmatch(text))), column, name, "a name")


def _numbers(frame: pd.DataFrame, column: str, name: str) -> "pd.Series[float]":
    values = pd.to_numeric(frame[column], errors="coerce").astype(float)
    _refuse_where(frame, values.isna(), column, name, "a number")
    return values


def _percentages(frame: pd.DataFrame, column: str, name: str, whole: float) -> "pd.Series[float]":
    values = _numbers(frame, column, name)
    _refuse_where(frame, (values < 0) | (values > whole), column, name, f"from 0 to {whole:g}")
    return values


def _refuse_where(frame: pd.DataFrame, wrong: "pd.Series[bool]", column: str, name: str, right: str) -> None:
    """Refuse a table with wrong values. Errors: Refused, with the first wrong line and what would be right."""
    if wrong.any():
        place = int(wrong.to_numpy().argmax())
        value = str(frame[column].iloc[place])[:60]
        raise Refused(f"{name}, line {place + 2}: {column} is {value!r}, which is not {right}")


def _check_unique(ours: pd.DataFrame, name: str) -> pd.DataFrame:
    key = [column for column in KEY if column in ours]
    if (twice := ours.duplicated(key)).any():
        row = ours[twice].iloc[0]
        raise Refused(f"{name} has {' '.join(str(row[column]) for column in key)} twice: which one is meant?")
    return ours


def _merge(lines: pd.DataFrame, path: Path) -> None:
    """Write lines to a file. They replace the file's own lines for the same KEY and accuracy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.locked(path.parent):
        if path.is_file():
            lines = pd.concat([lines, read_lines(path)]).drop_duplicates([*KEY, "accuracy"])
        atomic.write(path, lines.to_csv(index=False, columns=COLUMNS, lineterminator="\n"))
