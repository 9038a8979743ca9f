"""A connection to the store's database: SQLite in WAL mode, or PostgreSQL.

There is one writer at a time on both, so that a decision and the write it leads to cannot be interleaved.
"""

import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from sqlalchemy import Connection, create_engine, event, make_url, select, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError

from engine.store.tables import HEAD, metadata

BUSY_S = 60.0
"""Seconds to wait for another process's lock: longer than any transaction of ours takes on a slow disk."""
CONNECT_S = 10
"""Seconds to wait for PostgreSQL to take a connection; without a limit an unreachable host takes two minutes."""
ONE_WRITER = 0x7669_7461_6C73
"""Key of the advisory lock that makes PostgreSQL's writers queue up as SQLite's do."""
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


class Unavailable(OSError):
    """The store cannot be read or written. The message names it, the cause and the remedy."""

    def __init__(self, place: str, cause: str, remedy: str) -> None:
        super().__init__(f"the store {place} {cause}. {remedy}")
        self.cause = f"the store {cause}"
        """The message without the place, which not everybody may know."""


class Busy(Unavailable):
    """The store is locked or out of reach at the moment: a later try may succeed."""


class Damaged(Unavailable):
    """The store's file is no database, or parts of it cannot be read."""


Fault = tuple[type[Unavailable], str, str]
"""Class, cause and remedy of an error."""

RESTORE = (
    "Stop the app, run `python -m engine stop`, then `python -m engine runs restore`, which keeps what can be read; "
    "or put a backup in its place"
)
MAY_WRITE = "Let this user write to the file, to the files with -wal and -shm beside it, and to their folder"
FREE_SPACE = "Free space on its disk, then try again"
NOT_OURS: Fault = Damaged, "does not have the tables of this program", RESTORE
SQLITE_FAULTS: dict[int, Fault] = {
    sqlite3.SQLITE_CORRUPT: (Damaged, "is damaged: parts of it cannot be read", RESTORE),
    sqlite3.SQLITE_NOTADB: (Damaged, "is damaged: it is not a SQLite database", RESTORE),
    sqlite3.SQLITE_FULL: (Unavailable, "cannot be written because the disk is full", FREE_SPACE),
    sqlite3.SQLITE_IOERR: (
        Unavailable,
        "cannot be read or written because its disk fails or has no space left",
        "Look at the disk's free space, the quota and the system's log",
    ),
    sqlite3.SQLITE_READONLY: (Unavailable, "is read-only", MAY_WRITE),
    sqlite3.SQLITE_CANTOPEN: (Unavailable, "cannot be opened", MAY_WRITE),
    sqlite3.SQLITE_PERM: (Unavailable, "cannot be opened", MAY_WRITE),
    **dict.fromkeys(
        LOCKED,
        (Busy, "is locked by another process", "Wait until that process is done, or end it: `fuser` names it"),
    ),
}
"""By SQLite's primary error codes, see https://sqlite.org/rescode.html. Other codes are faults of our own queries."""
POSTGRES_FAULTS: dict[str, Fault] = {
    "53100": (Unavailable, "cannot be written because the disk is full", FREE_SPACE),
    "25006": (Unavailable, "is read-only", "Connect to a server that takes writes"),
    "42501": (Unavailable, "refuses this user", "Grant the user of VITALS_DATABASE_URL all rights on its tables"),
    "55P03": (Busy, "is locked by another process", "Wait until that process is done, or end it: see pg_stat_activity"),
    "XX001": (Damaged, "is damaged: parts of it cannot be read", "Restore it from a backup"),
    "XX002": (Damaged, "is damaged: an index cannot be read", "Rebuild its indexes with REINDEX"),
    "42P01": (Damaged, "does not have the tables of this program", "Restore it from a backup"),
}
"""By SQLSTATE, see https://www.postgresql.org/docs/current/errcodes-appendix.html."""
OUT_OF_REACH = ("08", "28", "3D", "57P", "53300")
"""SQLSTATEs begin so when a connection is lost, a login fails, the database is absent, the server stops or is full."""
NO_ANSWER: Fault = (
    Busy,
    "does not answer",
    "Start PostgreSQL, or look at the host, port, database, user and password in VITALS_DATABASE_URL",
)


class Database:
    """Opens connections lazily; safe to share between threads, not across a fork.

    busy_s: seconds to wait for locks. on_failure: called with what `read` and `write` are about to raise.
    """

    def __init__(
        self, url: str, *, busy_s: float = BUSY_S, on_failure: Callable[[Unavailable], object] | None = None
    ) -> None:
        self.url = make_url(url)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        self._busy_s = busy_s
        self._on_failure = on_failure
        limits = {"timeout": busy_s} if self.sqlite else {"connect_timeout": min(CONNECT_S, math.ceil(busy_s))}
        self._engine = create_engine(self.url, connect_args=limits, pool_pre_ping=not self.sqlite)
        self._writer = self._engine.execution_options(writes=True)
        if self.sqlite:
            event.listen(self._engine, "connect", self._configure_sqlite)
            event.listen(self._engine, "checkout", self._check_file)
        event.listen(self._engine, "begin", self._begin)

    @property
    def place(self) -> str:
        """The place of the database, without a password."""
        if self.sqlite:
            return self.url.database or "in memory"
        return f"{self.url.database} on {self.url.host or 'localhost'}:{self.url.port or 5432}"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a consistent view for reading. Errors: Unavailable."""
        with self._explained(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that may write; nobody else can until it ends. Errors: Unavailable."""
        with self._explained(), self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        """Give all connections back."""
        self._engine.dispose()

    def fail(self, failure: Unavailable, error: Exception) -> NoReturn:
        """Raise what an error of the database, or of its contents, means to whoever uses it."""
        if self._on_failure:
            self._on_failure(failure)
        raise failure from error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise an error of the database as Unavailable, and open new connections the next time."""
        try:
            yield
        except DBAPIError as error:
            if (fault := self._fault(error)) is None:
                raise
            kind, cause, remedy = fault
            self._engine.dispose()
            self.fail(kind(self.place, cause, remedy), error)

    def _fault(self, error: DBAPIError) -> Fault | None:
        """Return what an error means; None for a fault of our own queries."""
        if not self.sqlite:
            state = str(getattr(error.orig, "sqlstate", None) or "")
            # an error of connecting has no SQLSTATE
            lost = error.connection_invalidated or (not state and isinstance(error, OperationalError))
            return NO_ANSWER if lost or state.startswith(OUT_OF_REACH) else POSTGRES_FAULTS.get(state)
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is None:  # of Python's own module, which cannot decode a text
            return SQLITE_FAULTS[sqlite3.SQLITE_CORRUPT] if isinstance(error.orig, sqlite3.OperationalError) else None
        if code == sqlite3.SQLITE_ERROR:
            return None if self._has_our_tables() else NOT_OURS
        return SQLITE_FAULTS.get(code & 0xFF)  # the primary code of an extended one

    def _has_our_tables(self) -> bool:
        try:
            with self._engine.connect() as connection:
                for table in metadata.sorted_tables:
                    connection.execute(select(table).limit(0))
                return bool(connection.scalar(text("SELECT version_num FROM alembic_version")) == HEAD)
        except DBAPIError:
            return False

    def _begin(self, connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        if self.sqlite:
            # the busy timeout does not cover a read that turns into a write: say so from the start
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        elif writes:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{self._busy_s:g}s'")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ONE_WRITER})")

    def _configure_sqlite(self, connection: sqlite3.Connection, record: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say, DDL included
        cursor = connection.cursor()
        try:
            cursor.execute("PRAGMA foreign_keys = ON")
            cursor.execute("PRAGMA synchronous = NORMAL")  # in WAL mode: a killed process loses nothing
            self._use_wal(cursor)
        except sqlite3.Error:
            connection.close()  # or it would keep a damaged file open until the error is forgotten
            raise
        cursor.close()
        record.info["file"] = self._file()

    def _use_wal(self, cursor: sqlite3.Cursor) -> None:
        """Set WAL mode, which lasts in the file. First openers collide here, which SQLite's busy timeout does not
        cover."""
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in LOCKED or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _check_file(self, _connection: object, record: Any, _proxy: object) -> None:
        """Let the pool open a new connection when the file was replaced, as by a backup, since this one was opened."""
        if record.info["file"] != self._file():
            raise DisconnectionError

    def _file(self) -> tuple[int, int] | None:
        """Return what tells the file from one that takes its place; None without a file."""
        try:
            found = Path(self.url.database or "").stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino
