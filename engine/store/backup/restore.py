"""Rebuild a damaged SQLite store from its readable parts.

Every table is read row by row into a fresh store, without the rows on damaged pages. Derived data are computed again:
the slots that runs hold, and the search data.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, exists, func, insert, select, update

from engine.settings import Settings, sqlite_url
from engine.specs import Refused
from engine.store import listing, migrations
from engine.store.database import Damaged, Database
from engine.store.model import ACTIVE, Cause, State
from engine.store.records import devices_of
from engine.store.store import open_store
from engine.store.tables import artifacts, attempts, changes, machines, metrics, rows, run_tags, runs, slots

COPIED = (runs, attempts, rows, run_tags, metrics, artifacts, machines)
"""The tables to copy. `runs` comes first, because the others refer to it."""
MOST_MISSES = 30_000
"""Give up the rest of a table after this many successive unreadable row ids. A damaged page holds fewer rows."""
BATCH = 1000
"""Rows written at once, which limits memory use."""


def store_file(settings: Settings) -> Path:
    """Return the file of a SQLite store. Errors: Refused for another database."""
    database = Database(settings.store_url)
    if not database.sqlite:
        raise Refused(f"the store {database.place} is a PostgreSQL database: restore it from its own backup")
    return Path(database.place)


def check_damage(settings: Settings) -> None:
    """Check that the store is damaged. Errors: Refused when it is missing or whole; Unavailable for any other fault."""
    path = store_file(settings)
    if not path.is_file():
        raise Refused(f"there is no store at {path}: nothing can be restored")
    try:
        with closing(open_store(settings)) as store, store.database.read() as connection:
            verdict = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
    except Damaged:
        return
    if verdict == "ok":
        raise Refused(f"the store {path} is whole: there is nothing to restore")


def restore(settings: Settings) -> tuple[Path, dict[str, int], dict[str, int | None]]:
    """Replace a damaged store by a fresh one with all readable rows. The damaged file is kept under a dated name.

    Returns that name, the recovered rows by table, and the rows of the damaged file by table, None where they cannot be
    counted. No process may have the store open.
    Errors: Unavailable, as for a full disk; then the damaged store stays in place.
    """
    path = store_file(settings)
    aside = path.with_name(f"{path.stem}-damaged-{datetime.now(UTC):%Y%m%d-%H%M%S}{path.suffix}")
    fresh = path.with_name(f"{path.stem}-restoring{path.suffix}")
    _remove(fresh)  # left by an interrupted restore
    database = Database(sqlite_url(fresh))
    try:
        migrations.upgrade(database)
        with closing(_open_damaged(path)) as old, database.write() as connection:
            found = _copy(old, connection)
            _derive(connection)
            kept = {table.name: connection.scalar(select(func.count()).select_from(table)) or 0 for table in COPIED}
        database.close()  # merges the write-ahead log into the file
        for ending in ("-wal", "-shm"):
            if (log := path.with_name(path.name + ending)).exists():
                log.rename(aside.with_name(aside.name + ending))
        path.rename(aside)
        fresh.rename(path)
    finally:
        database.close()
        _remove(fresh)
    return aside, kept, found


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _open_damaged(path: Path) -> sqlite3.Connection:
    """Open the file read-only, so that it stays unchanged."""
    connection = sqlite3.connect(f"file:{quote(bytes(path))}?mode=ro", uri=True)
    connection.text_factory = lambda text: text.decode(errors="replace")
    # lets tables be read although the schema entry of an index is wrong
    connection.execute("PRAGMA writable_schema = ON")
    return connection


def _copy(old: sqlite3.Connection, connection: Connection) -> dict[str, int | None]:
    """Copy the readable rows of every table; return how many rows each table had."""
    connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")  # until rows of lost runs are deleted below
    found: dict[str, int | None] = dict.fromkeys(table.name for table in COPIED)
    for table in COPIED:
        columns = [name for name in _columns(old, table.name) if name in table.c]
        if columns:
            found[table.name] = _count_damaged(old, table.name)
            marks = ", ".join("?" for _ in columns)
            statement = f"INSERT OR IGNORE INTO {table.name} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608
            lines = _readable(old, table.name, columns)
            while batch := list(islice(lines, BATCH)):
                connection.exec_driver_sql(statement, batch)
        if "run_id" in table.c:
            connection.execute(table.delete().where(table.c.run_id.not_in(select(runs.c.id))))
    for name, number in _readable(old, "sqlite_sequence", ["name", "seq"]):
        if name in found and isinstance(number, int):  # the ids of lost runs must not be reused either
            connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
            connection.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, number))
    revisions = [number for (number,) in _readable(old, "changes", ["revision"]) if isinstance(number, int)]
    last = connection.scalar(select(func.max(runs.c.revision))) or 0
    connection.execute(update(changes).values(revision=max([*revisions, last]) + 1))
    return found


def _columns(old: sqlite3.Connection, table: str) -> list[str]:
    """Return the column names of a table; an empty list if the file's schema cannot be read."""
    try:
        return [name for _, name, *_ in old.execute(f"PRAGMA table_info({table})")]
    except sqlite3.DatabaseError:
        return []


def _count_damaged(old: sqlite3.Connection, table: str) -> int | None:
    """Return the number of rows of a table, from an intact index or from the table; None if neither can be read."""
    for hint in ("", "NOT INDEXED"):
        with suppress(sqlite3.DatabaseError):
            return int(old.execute(f"SELECT count(*) FROM {table} {hint}").fetchone()[0])  # noqa: S608
    return None


def _readable(old: sqlite3.Connection, table: str, columns: list[str]) -> Iterator[tuple[object, ...]]:
    """Yield the readable rows of a table in the order of their ids."""
    query = f"SELECT rowid, {', '.join(columns)} FROM {table} NOT INDEXED WHERE rowid > ? ORDER BY rowid"  # noqa: S608
    start = misses = 0
    while misses < MOST_MISSES:
        last = start
        try:
            for rowid, *values in old.execute(query, (start,)):
                last, misses = rowid, 0
                yield tuple(values)
            return
        except sqlite3.DatabaseError:
            start, misses = max(start, last) + 1, misses + 1  # a damaged table may give ids out of order


def _derive(connection: Connection) -> None:
    """Compute the search data and the occupied slots again, and fail active runs whose attempt is lost."""
    is_open = (attempts.c.id == runs.c.attempt_id, attempts.c.closed_at.is_(None))
    failure = {"state": State.FAILED, "cause": Cause.ERROR, "ended_at": time.time()}
    failure["error"] = "the store was damaged, and what it held of this attempt is lost"
    connection.execute(update(runs).where(runs.c.state.in_(ACTIVE), ~exists().where(*is_open)).values(**failure))
    listing.rebuild(connection)
    columns = (attempts.c.host, attempts.c.id, runs.c.id.label("run_id"), runs.c.devices, runs.c.exclusive)
    open_attempts = select(*columns).join(runs, attempts.c.run_id == runs.c.id).where(*is_open)
    for attempt in connection.execute(open_attempts).all():
        for device in devices_of(attempt.devices):
            slot = {"host": attempt.host, "device": device, "attempt_id": attempt.id, "run_id": attempt.run_id}
            connection.execute(insert(slots).prefix_with("OR IGNORE").values(**slot, exclusive=attempt.exclusive))
