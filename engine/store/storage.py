"""Disk space of runs, in bytes: in the database, in their folders, and what is free."""

import os
import shutil
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
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
    """A run with the size of its files."""

    run_id: int
    kind: str
    what: str
    files: Size


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


def largest(database: Database, folders: Mapping[int, Size], limit: int = 10) -> list[Largest]:
    """Return the runs with the largest files, largest first.

    Only runs that have ended by themselves have artifacts: a killed training has checkpoints in its folder alone, and a
    run of another machine may have no folder here. So the larger of both sizes counts.
    folders: the size of each run's folder, as `folders` returns it; empty to compare artifacts only.
    """
    bytes = func.sum(artifacts.c.size).label("bytes")
    sums = select(artifacts.c.run_id, func.count().label("files"), bytes).group_by(artifacts.c.run_id)
    recorded = database.rows(sums.order_by(bytes.desc(), artifacts.c.run_id.desc()).limit(limit))
    sizes = {row.run_id: Size(row.files, int(row.bytes)) for row in recorded}
    existing = {row.id for row in database.rows(select(runs.c.id))} & folders.keys() if folders else set()
    for run_id in sorted(existing, key=lambda run_id: folders[run_id].bytes, reverse=True)[:limit]:
        sizes[run_id] = max(sizes.get(run_id, Size()), folders[run_id], key=lambda size: size.bytes)
    query = select(runs.c.id, runs.c.kind, runs.c.name, runs.c.summary).where(runs.c.id.in_(sizes))
    found = [Largest(row.id, row.kind, row.name or row.summary, sizes[row.id]) for row in database.rows(query)]
    return sorted(found, key=lambda run: (run.files.bytes, run.run_id), reverse=True)[:limit]


def total(sizes: Iterable[Size]) -> Size:
    """Return the sum of sizes."""
    return sum(sizes, Size())


def of_runs(settings: Settings, run_ids: Iterable[int]) -> Size:
    """Return the size of all files in the folders of these runs, including logs and unrecorded files."""
    return total(_folder_size(RunFiles(settings.runs_dir, run_id).dir) for run_id in run_ids)


def folders(settings: Settings) -> tuple[dict[int, Size], Size]:
    """Return the size of each run's folder, and of all else in runs_dir but the database. Reads every folder."""
    run_folders, others = defaultdict[int, Size](Size), Size()
    for path in settings.runs_dir.iterdir():
        if path.name.isdecimal():
            run_folders[int(path.name)] += _folder_size(path)
        elif not path.name.startswith("vitals.sqlite"):
            others += _file_size(path) + _folder_size(path)
    return run_folders, others


def _folder_size(folder: Path) -> Size:
    """Return the size of a folder; 0 if it does not exist or disappears meanwhile. Links in it are not followed."""
    paths = (Path(parent, name) for parent, folders, files in os.walk(folder) for name in (*folders, *files))
    return total(map(_file_size, paths))


def _file_size(path: Path) -> Size:
    """Return the size of a file; 0 for a folder."""
    try:
        status = path.lstat()
    except OSError:
        return Size()
    return Size() if stat.S_ISDIR(status.st_mode) else Size(1, status.st_size)


def _database_size(database: Database) -> int:
    """Return the size of the SQLite file and of its write-ahead log."""
    paths = (Path(database.place), Path(f"{database.place}-wal"))
    return sum(path.stat().st_size for path in paths if path.is_file())
