"""Move, back up and restore a store: copy all tables to an empty SQLite or PostgreSQL database and compare them.

Only the database is copied. The folders of runs, with logs, checkpoints and other artifacts, stay in the runs folder.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, func, insert, inspect, literal_column, select, text
from sqlalchemy.exc import DataError, IntegrityError

from engine.atomic import rename, temporary
from engine.settings import Settings, sqlite_url
from engine.specs import Refused
from engine.store import migrations
from engine.store.attempts import close, open_attempts
from engine.store.database import Database, Unavailable
from engine.store.model import ACTIVE, Cause, Exit
from engine.store.tables import attempts, changes, leases, metadata, runs
from engine.words import numbered_runs, plural

BATCH = 1000
"""Rows read and written at once, which limits memory use."""
TABLES = tuple(metadata.sorted_tables)
"""All tables, each after the tables that it refers to."""
RESTORED = "it was active when the backup was made, and a restored store cannot continue it"
"""Reason for closing the attempts that were open in a backup. Their processes belong to the original store."""
Counts = dict[str, int]
"""Rows by table."""


def move(settings: Settings, url: str) -> Counts:
    """Copy the store of these settings to the empty database at a URL. The store is locked during the copy.

    Errors: Refused when the store is in use, when the target is not empty, or when the copy differs; Unavailable.
    """
    with ExitStack() as opened:
        target = opened.enter_context(closing(_open_target(url)))
        source = _open_existing(opened, settings.store_url)
        if os.path.realpath(target.place) == os.path.realpath(source.place):
            raise Refused(f"the store is in {source.place} already: name another database")
        if target.sqlite and (path := Path(target.place)).parent.is_dir() and not path.exists():
            _create(path)
        with source.write() as reading:
            if not source.sqlite:  # the comparison may take longer than a writer may stay idle
                reading.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            _refuse_in_use(source, reading)
            return _copy(source, reading, target)


def back_up(settings: Settings, path: Path) -> Counts:
    """Write a consistent copy of the store to a new SQLite file, while runs go on. Errors: Refused; Unavailable."""
    if path.exists():
        raise Refused(f"{path} exists: name a file that does not exist yet")
    if not path.parent.is_dir():
        raise Refused(f"there is no folder {path.parent}: create it first")
    with ExitStack() as opened:
        source = _open_existing(opened, settings.store_url)
        copy_file = opened.enter_context(temporary(path))
        copy_file.unlink(missing_ok=True)  # what a backup that was killed left behind
        _create(copy_file)
        target = opened.enter_context(closing(Database(sqlite_url(copy_file))))
        with source.read() as reading:
            counts = _copy(source, reading, target)
        target.close()  # merges the write-ahead log into the file
        with copy_file.open("rb") as file:
            os.fsync(file.fileno())
        rename(copy_file, path)
    return counts


def restore_backup(settings: Settings, path: Path) -> Counts:
    """Copy a backup into the store of these settings, which must be empty. A backup of an earlier version is migrated.

    The runs that were active are lost to the new store: they are queued again, cancelled or failed.
    Errors: Refused, also when the file is not a store; Unavailable.
    """
    if not path.is_file():
        raise Refused(f"there is no backup {path}: name a file that `store backup` wrote")
    if (log := path.with_name(f"{path.name}-wal")).is_file() and log.stat().st_size:
        raise Refused(
            f"{path} is not a backup: it was not closed, and its last changes are in {log.name}. Run "
            f"`VITALS_DATABASE_URL=sqlite:///{path.absolute()} python -m engine store backup FILE`, then restore FILE"
        )
    settings.make_runs_dir()
    with ExitStack() as opened:
        copy_file = opened.enter_context(temporary(settings.runs_dir / path.name))
        shutil.copyfile(path, copy_file)  # opening a store may migrate it, and a backup must stay as it is
        try:
            source = _open_existing(opened, sqlite_url(copy_file))
        except Unavailable as error:
            raise Refused(f"{path} cannot be restored: {error.cause}. Name a file that `store backup` wrote") from error
        for attempt in open_attempts(source):  # their processes belong to the original, which may still go on
            close(source, attempt, Exit(note=RESTORED), Cause.KILLED, RESTORED)
        with source.write() as connection:
            connection.execute(delete(leases))
        target = opened.enter_context(closing(Database(settings.store_url)))
        with source.read() as reading:
            return _copy(source, reading, target)


def _open_target(url: str) -> Database:
    """Return the database at a URL that the user typed. Errors: Refused for an invalid URL; Unavailable."""
    try:
        return Database(url)
    except Unavailable as error:
        if "VITALS_DATABASE_URL" not in str(error):
            raise
        problem = error.cause.removeprefix("the store ")
        raise Refused(
            f"the target {problem}. Give postgresql://USER@HOST:PORT/DATABASE or sqlite:////FOLDER/vitals.sqlite"
        ) from None


def _create(path: Path) -> None:
    """Create an empty file that only its owner may read, as for every store. Errors: OSError, also if it exists."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _open_existing(opened: ExitStack, url: str) -> Database:
    """Open a database that holds a store, and migrate it. Errors: Unavailable, also when there is none."""
    database = opened.enter_context(closing(Database(url)))
    exists = not database.sqlite or Path(database.place).is_file()  # opening would create the file
    if exists:
        with database.read() as connection:
            exists = inspect(connection).has_table("alembic_version")
    if not exists:
        raise Unavailable(
            database.place, "holds no tables of this program", "Look at VITALS_RUNS_DIR and VITALS_DATABASE_URL"
        )
    migrations.upgrade(database)
    return database


def _refuse_in_use(source: Database, connection: Connection) -> None:
    """Refuse to move a store that a scheduler or a worker may still write to. Errors: Refused."""
    scheduler = connection.scalars(select(leases.c.name).where(leases.c.expires_at > time.time())).first()
    if scheduler:
        raise Refused(
            f"the scheduler {scheduler} uses the store {source.place}: stop the app, then run `python -m engine stop`"
        )
    active = (attempts.c.closed_at.is_(None), runs.c.state.in_(ACTIVE))
    if open_runs := connection.scalars(select(runs.c.id).join(attempts).where(*active).distinct()).all():
        raise Refused(
            f"{numbered_runs(sorted(open_runs))} of the store {source.place} must end first: wait or cancel, then run "
            "`python -m engine stop`"
        )


def _copy(source: Database, reading: Connection, target: Database) -> Counts:
    """Copy all tables in one transaction of the target, and compare rows and hashes. Errors: Refused; Unavailable."""
    with target.read() as connection:
        names = inspect(connection).get_table_names()
    if names and "alembic_version" not in names:
        raise Refused(f"{target.place} holds other tables ({', '.join(sorted(names)[:5])}): name an empty database")
    migrations.upgrade(target)
    with target.write() as writing:
        _refuse_filled(target, writing)
        writing.execute(delete(changes))
        checksums = {}
        for table in TABLES:
            checksums[table.name] = _checksum(_sent(_batches(source, reading, table), writing, table))
            with source.explained():
                last = _last_id(reading, table)
            _set_last_id(writing, table, last)
        for table in TABLES:
            copied = _checksum(_batches(target, writing, table))
            if copied != checksums[table.name]:
                raise Refused(
                    f"the copy differs from the source in table {table.name} ({checksums[table.name][0]:,} rows there, "
                    f"{copied[0]:,} in the copy). Nothing was kept in {target.place}"
                )
    return {name: count for name, (count, _) in checksums.items()}


def _refuse_filled(target: Database, connection: Connection) -> None:
    """Refuse a target that has rows. Errors: Refused."""
    for table in TABLES:
        count = connection.scalar(select(func.count()).select_from(table)) or 0
        if count and table is not changes:  # an empty store has one row there
            raise Refused(
                f"the store {target.place} is not empty (table {table.name}: {plural(count, 'row')}): name an empty one"
            )


def _batches(database: Database, connection: Connection, table: Table) -> Iterator[Sequence[Row[Any]]]:
    """Yield the rows of a table in batches, without reading the whole table into memory. Errors: Unavailable."""
    with database.explained():
        yield from connection.execute(select(table), execution_options={"yield_per": BATCH}).partitions()


def _sent(batches: Iterator[Sequence[Row[Any]]], writing: Connection, table: Table) -> Iterator[Sequence[Row[Any]]]:
    """Yield each batch of rows after inserting it. Errors: Refused for a row that is not accepted."""
    for batch in batches:
        try:
            writing.execute(insert(table), [dict(row._mapping) for row in batch])
        except (DataError, IntegrityError) as error:
            reason = str(error.orig).partition("\n")[0]
            raise Refused(f"a row of table {table.name} is not accepted: {reason}. Nothing was copied") from error
        yield batch


def _checksum(batches: Iterable[Sequence[Row[Any]]]) -> tuple[int, int]:
    """Return the number of rows and the sum of their hashes, which does not depend on their order."""
    count, total = 0, 0
    for batch in batches:
        for row in batch:
            count += 1
            total += int.from_bytes(sha256(repr(tuple(row)).encode()).digest())
    return count, total


def _last_id(connection: Connection, table: Table) -> int | None:
    """Return the highest id that a table has given, also to rows since deleted; None for a table without such ids."""
    if "id" not in table.c:
        return None
    if connection.dialect.name == "sqlite":
        last = connection.scalar(text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": table.name})
    else:
        sequence = text(f"{table.name}_id_seq")
        last = connection.scalar(select(literal_column("last_value")).select_from(sequence).where(text("is_called")))
    return max(last or 0, connection.scalar(select(func.max(table.c.id))) or 0)


def _set_last_id(connection: Connection, table: Table, last: int | None) -> None:
    """Let the ids of new rows continue after `last`, because ids of deleted runs and attempts are never reused."""
    if not last:
        return
    if connection.dialect.name != "sqlite":
        connection.execute(select(func.setval(f"{table.name}_id_seq", last)))
    elif table.dialect_options["sqlite"]["autoincrement"]:
        connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": table.name})
        values = {"name": table.name, "last": last}
        connection.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)"), values)
