"""Disk space of runs, in bytes: in the database, in their folders, and what is free."""

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select, text

from engine.settings import Settings
from engine.store.database import Database
from engine.store.files import RunFiles
from engine.store.tables import artifacts, runs

SERVER_SIZE = text("SELECT pg_database_size(current_database())")


@dataclass(frozen=True)
class Size:
    """Number of files and their total size."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(self.files + other.files, self.bytes + other.bytes)


@dataclass(frozen=True)
class Usage:
    """Sizes that are known without reading any folder."""

    runs: int
    database: int
    artifacts: Size
    """Artifacts as recorded in the database, without logs."""
    free: int
    """Free bytes on the disk with the runs."""


@dataclass(frozen=True)
class Largest:
    """A run with the size of its artifacts."""

    run_id: int
    kind: str
    what: str
    artifacts: Size


def usage(database: Database, settings: Settings) -> Usage:
    """Return the number of runs, the sizes in the database, and the free disk space."""
    with database.read() as connection:
        stored = connection.execute(select(func.count(), func.coalesce(func.sum(artifacts.c.size), 0))).one()
        return Usage(
            runs=connection.scalar(select(func.count()).select_from(runs)) or 0,
            database=_database_size(database) if database.sqlite else int(connection.scalar(SERVER_SIZE)),
            artifacts=Size(int(stored[0]), int(stored[1])),
            free=shutil.disk_usage(settings.runs_dir).free,
        )


def largest(database: Database, limit: int = 10) -> list[Largest]:
    """Return the runs with the largest artifacts, largest first."""
    total = func.sum(artifacts.c.size).label("total")
    sums = select(artifacts.c.run_id, func.count().label("files"), total).group_by(artifacts.c.run_id)
    top = sums.order_by(total.desc(), artifacts.c.run_id.desc()).limit(limit).subquery()
    query = select(top, runs.c.kind, runs.c.name, runs.c.summary).join(runs, runs.c.id == top.c.run_id)
    return [
        Largest(row.run_id, row.kind, row.name or row.summary, Size(row.files, int(row.total)))
        for row in database.rows(query.order_by(top.c.total.desc(), top.c.run_id.desc()))
    ]


def of_runs(settings: Settings, run_ids: list[int]) -> Size:
    """Return the size of all files in the folders of these runs, including logs and unrecorded files."""
    return sum((_folder_size(RunFiles(settings.runs_dir, run_id).dir) for run_id in run_ids), Size())


def folders(settings: Settings) -> tuple[Size, Size]:
    """Return the size of all runs' folders, and of all else in runs_dir but the database. Reads every folder."""
    run_folders, others = Size(), Size()
    for path in settings.runs_dir.iterdir():
        if path.name.isdecimal():
            run_folders += _folder_size(path)
        elif not path.name.startswith("vitals.sqlite"):
            others += _file_size(path) + _folder_size(path)
    return run_folders, others


def _folder_size(folder: Path) -> Size:
    """Return the size of a folder; 0 if it does not exist or disappears meanwhile. Links in it are not followed."""
    paths = (Path(parent, name) for parent, folders, files in os.walk(folder) for name in (*folders, *files))
    return sum(map(_file_size, paths), Size())


def _file_size(path: Path) -> Size:
    """Return the size of a file; 0 for a folder."""
    try:
        status = path.lstat()
    except OSError:
        return Size()
    return Size() if stat.S_ISDIR(status.st_mode) else Size(1, status.st_size)


def _database_size(database: Database) -> int:
    """Return the size of the SQLite file and of its write-ahead log."""
    name = database.url.database or ""
    return sum(path.stat().st_size for path in (Path(name), Path(f"{name}-wal")) if path.is_file())
