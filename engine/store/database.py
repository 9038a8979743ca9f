"""A connection to the store's database: SQLite in WAL mode, or PostgreSQL.

Both allow one writer at a time, so that no other write can come between a decision and the write that follows from it.
Only claims of different hosts run side by side on PostgreSQL (`claiming`).
"""

import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from sqlalchemy import URL, Connection, Float, Row, Select, create_engine, event, func, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, NoSuchModuleError, OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from engine.store.tables import HEAD, metadata

BUSY_S = 60.0
"""Wait at most this many seconds for another process's lock: longer than our transactions take on a slow disk."""
CONNECT_S = 10
"""Wait at most this many seconds for a PostgreSQL connection; without a limit an unreachable host takes two minutes."""
ONE_WRITER = 0x7669_7461_6C73
"""Key of the advisory lock that makes PostgreSQL's writers wait for each other as SQLite's do. Claims share it."""
CLAIMS = 0x7669_7461
"""First key of the advisory lock that makes claims for one host wait for each other."""
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
"""SQLite's primary error codes for a lock that another connection holds."""


class Unavailable(OSError):
    """The store cannot be read or written. The message names the store, the cause and the remedy."""

    def __init__(self, place: str, cause: str, remedy: str) -> None:
        super().__init__(f"the store {place} {cause}. {remedy}")
        self.cause = f"the store {cause}"
        """The message without the place, which not every reader may see."""


class Busy(Unavailable):
    """The store is locked or out of reach for the moment; a later try may succeed."""


class Damaged(Unavailable):
    """The store's file is not a database, or parts of it cannot be read."""


Fault = tuple[type[Unavailable], str, str]
"""Class, cause and remedy of a database error."""

RESTORE = (
    "Stop the app, run `python -m engine stop`, then `python -m engine runs restore`, which keeps what can be read; "
    "or put a backup in its place"
)
MAY_WRITE = "Let this user write to the file, to the files with -wal and -shm beside it, and to their folder"
USE_VALID_URL = "Give `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, or leave it empty for SQLite in the runs folder"
FREE_SPACE = "Free space on its disk, then try again"
BY_HAND = (
    "To make room on a full disk, delete scheduler.older.log in the runs folder, or move a run's folder to another "
    "disk. Then `python -m engine runs prune` works again"
)
"""SQLite needs space even to read a store, so no command can delete runs on a full disk."""
NOT_OURS: Fault = Damaged, "does not have the tables of this program", RESTORE
SQLITE_FAULTS: dict[int, Fault] = {
    sqlite3.SQLITE_CORRUPT: (Damaged, "is damaged: parts of it cannot be read", RESTORE),
    sqlite3.SQLITE_NOTADB: (Damaged, "is damaged: it is not a SQLite database", RESTORE),
    sqlite3.SQLITE_FULL: (Unavailable, "cannot be written because the disk is full", f"{FREE_SPACE}. {BY_HAND}"),
    sqlite3.SQLITE_IOERR: (
        Unavailable,
        "cannot be read or written because its disk fails or has no space left",
        f"Look at the disk's free space, the quota and the system's log. {BY_HAND}",
    ),
    sqlite3.SQLITE_READONLY: (Unavailable, "is read-only", MAY_WRITE),
    sqlite3.SQLITE_CANTOPEN: (Unavailable, "cannot be opened", MAY_WRITE),
    sqlite3.SQLITE_PERM: (Unavailable, "cannot be opened", MAY_WRITE),
    **dict.fromkeys(
        LOCKED, (Busy, "is locked by another process", "Wait until that process is done, or end it: `fuser` names it")
    ),
}
"""Faults by SQLite's primary error code (https://sqlite.org/rescode.html). Others are errors in our own queries."""
POSTGRES_FAULTS: dict[str, Fault] = {
    "53100": (Unavailable, "cannot be written because the disk is full", FREE_SPACE),
    "25006": (Unavailable, "is read-only", "Connect to a server that takes writes"),
    "42501": (Unavailable, "refuses this user", "Grant the user of VITALS_DATABASE_URL all rights on its tables"),
    "55P03": (Busy, "is locked by another process", "Wait until that process is done, or end it: see pg_stat_activity"),
    "XX001": (Damaged, "is damaged: parts of it cannot be read", "Restore it from a backup"),
    "XX002": (Damaged, "is damaged: an index cannot be read", "Rebuild its indexes with REINDEX"),
    "42P01": (Damaged, "does not have the tables of this program", "Restore it from a backup"),
}
"""Faults by SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html)."""
OUT_OF_REACH = ("08", "28", "3D", "57P", "53300")
"""Prefixes of SQLSTATE for: connection lost, login failed, no such database, server stopped, too many connections."""
NO_ANSWER: Fault = (
    Busy,
    "does not answer",
    "Start PostgreSQL, or look at the host, port, database, user and password in VITALS_DATABASE_URL",
)
NOT_READY: Fault = Busy, "is starting or stopping", "Wait a moment. If this stays so, look at PostgreSQL's log"
NO_LOGIN: Fault = Busy, "refuses the connection", "Look at the database, user and password, and at pg_hba.conf"


class Clock(FunctionElement[float]):
    """The database's time in seconds since the epoch: one clock for all hosts that share it."""

    type = Float()
    inherit_cache = True


@compiles(Clock, "sqlite")
def _read_sqlite_clock(*_: object, **__: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400)"  # from noon of 24 November 4714 BC to 1970


@compiles(Clock, "postgresql")
def _read_postgres_clock(*_: object, **__: object) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"


class Database:
    """Opens connections when needed. Threads may share it; processes after a fork may not.

    busy_s: seconds to wait for locks. on_failure: called with each Unavailable before `read` or `write` raises it.
    """

    def __init__(
        self, url: str, *, busy_s: float = BUSY_S, on_failure: Callable[[Unavailable], object] | None = None
    ) -> None:
        self.url = _parse_url(url)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        self._busy_s = busy_s
        self._on_failure = on_failure
        limits = {"timeout": busy_s} if self.sqlite else {"connect_timeout": min(CONNECT_S, math.ceil(busy_s))}
        try:
            # without a limit of the pool, threads that wait for the lock would hold up readers
            self._engine = create_engine(self.url, connect_args=limits, pool_pre_ping=not self.sqlite, max_overflow=-1)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            cause = f"needs a driver that is not installed ({self.url.drivername})"
            raise Unavailable(self.place, cause, "Run `make setup-cluster`") from error
        # without this, each statement of a reader would see another state of a PostgreSQL database
        snapshot = {} if self.sqlite else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reader = self._engine.execution_options(**snapshot)
        self._writer = self._engine.execution_options(lock=func.pg_advisory_xact_lock)
        self._claimer = self._engine.execution_options(lock=func.pg_advisory_xact_lock_shared)
        if self.sqlite:
            event.listen(self._engine, "connect", self._configure_sqlite)
            event.listen(self._engine, "checkout", self._check_file)
        event.listen(self._engine, "begin", self._begin)

    @property
    def place(self) -> str:
        """Return where the database is, without a password."""
        name = self.url.database or "database"  # a server has a default one
        return name if self.sqlite else f"{name} on {self.url.host or 'localhost'}:{self.url.port or 5432}"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a consistent view for reading. Errors: Unavailable."""
        with self.explained(), self._reader.connect() as connection, connection.begin():
            yield connection

    def rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        """Return all rows of a query. Errors: Unavailable."""
        with self.read() as connection:
            return connection.execute(query).all()

    def now(self) -> float:
        """Return the time of the database's clock. Errors: Unavailable."""
        return float(self.rows(select(Clock()))[0][0])

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that may write; no other can until it ends. Errors: Unavailable."""
        with self.explained(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def claiming(self, host: str) -> Iterator[Connection]:
        """Open a transaction that may write as a claim for a host does. Errors: Unavailable.

        On PostgreSQL only other writes and claims for the same host wait for it, so it must lock the run that it takes.
        """
        with self.explained(), self._claimer.begin() as connection:
            if not self.sqlite:
                connection.execute(select(func.pg_advisory_xact_lock(CLAIMS, func.hashtext(host))))
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def fail(self, failure: Unavailable, error: Exception) -> NoReturn:
        """Report a failure to `on_failure` and raise it from the original error."""
        if self._on_failure:
            self._on_failure(failure)
        raise failure from error

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise an error of this database as Unavailable, and discard the open connections."""
        try:
            yield
        except DBAPIError as error:
            if (fault := self._fault(error)) is None:
                raise
            kind, cause, remedy = fault
            self._engine.dispose()
            self.fail(kind(self.place, cause, remedy), error)

    def _fault(self, error: DBAPIError) -> Fault | None:
        """Return the fault for a database error; None when our own query is wrong."""
        if not self.sqlite:
            state = str(getattr(error.orig, "sqlstate", None) or "")
            # a failed connection attempt has neither SQLSTATE nor statement
            never_connected = not state and (error.statement is None or isinstance(error, OperationalError))
            if not (never_connected or error.connection_invalidated or state.startswith(OUT_OF_REACH)):
                return POSTGRES_FAULTS.get(state)
            message = str(error.orig).partition("\n")[0]
            answered = "FATAL:" in message or "no password supplied" in message
            refusal = NOT_READY if "the database system is" in message else NO_LOGIN
            kind, cause, remedy = refusal if answered else NO_ANSWER
            return kind, cause, f"{remedy}. The driver says: {message}"
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is None:  # raised by Python's sqlite3 module itself, when it cannot decode a text
            return SQLITE_FAULTS[sqlite3.SQLITE_CORRUPT] if isinstance(error.orig, sqlite3.OperationalError) else None
        if code == sqlite3.SQLITE_ERROR:
            return None if self._has_our_tables() else NOT_OURS
        return SQLITE_FAULTS.get(code & 0xFF)  # the low byte is the primary code

    def _has_our_tables(self) -> bool:
        try:
            with self._engine.connect() as connection:
                for table in metadata.sorted_tables:
                    connection.execute(select(table).limit(0))
                return bool(connection.scalar(text("SELECT version_num FROM alembic_version")) == HEAD)
        except DBAPIError:
            return False

    def _begin(self, connection: Connection) -> None:
        lock = connection.get_execution_options().get("lock")
        if self.sqlite:
            # the busy timeout does not cover a read transaction that starts to write, so lock from the start
            connection.exec_driver_sql("BEGIN IMMEDIATE" if lock else "BEGIN")
        elif lock:
            # the second limit ends a writer whose host has died or whose process is stopped, and frees its locks
            limits = ("lock_timeout", "idle_in_transaction_session_timeout")
            longest = f"{math.ceil(self._busy_s * 1000)}ms"
            connection.execute(select(*(func.set_config(name, longest, True) for name in limits)))
            connection.execute(select(lock(ONE_WRITER)))

    def _configure_sqlite(self, connection: sqlite3.Connection, record: Any) -> None:
        connection.isolation_level = None  # we begin transactions ourselves, for DDL too
        cursor = connection.cursor()
        try:
            cursor.execute("PRAGMA foreign_keys = ON")
            cursor.execute("PRAGMA synchronous = NORMAL")  # in WAL mode a killed process loses nothing
            self._use_wal(cursor)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            connection.close()  # an open connection would hold a damaged file until the error is garbage-collected
            if isinstance(error, UnicodeDecodeError):  # SQLite's message quotes a damaged name of a table
                raise sqlite3.OperationalError("the names of tables cannot be read") from error
            raise
        cursor.close()
        record.info["file"] = self._file()

    def _use_wal(self, cursor: sqlite3.Cursor) -> None:
        """Set WAL mode, which the file keeps. Retry, because the busy timeout does not cover first openers."""
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
        """Make the pool open a new connection if the file was replaced since this one was opened, as by a backup."""
        if record.info["file"] != self._file():
            raise DisconnectionError

    def _file(self) -> tuple[int, int] | None:
        """Return device and inode of the file, which change when it is replaced; None without a file."""
        try:
            status = Path(self.place).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def _parse_url(url: str) -> URL:
    """Return a URL with its driver. Errors: Unavailable, without any part of the URL that may belong to a password."""
    place = "of VITALS_DATABASE_URL"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise Unavailable(place, "has no URL that can be read", USE_VALID_URL) from None
    if "@" in (parsed.host or ""):
        raise Unavailable(place, "has a URL with more than one @", "Write an @ of the password as %40")
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql", "postgres"):
        raise Unavailable(place, f"is of the kind {backend!r}, and only PostgreSQL and SQLite are known", USE_VALID_URL)
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise Unavailable(place, "has a URL without a file, which all processes need", USE_VALID_URL)
    if backend != "sqlite" and "+" not in parsed.drivername:
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed
