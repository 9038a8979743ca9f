"""A connection to the store's database: SQLite in WAL mode, or PostgreSQL.

There is one writer at a time on both, so that a decision and the write it leads to cannot be interleaved.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, create_engine, event, make_url
from sqlalchemy.exc import OperationalError

Unavailable = OperationalError
"""The database does not answer: locked for too long, its disk full, its server gone."""

BUSY_S = 60.0
ONE_WRITER = 0x7669_7461_6C73
"""Key of the advisory lock that makes PostgreSQL's writers queue up as SQLite's do."""


class Database:
    """Opens connections lazily; safe to share between threads, not across a fork."""

    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {"connect_args": {"timeout": BUSY_S}} if self.sqlite else {"pool_pre_ping": True}
        self._engine = create_engine(self.url, **options)
        self._writer = self._engine.execution_options(writes=True)
        if self.sqlite:
            event.listen(self._engine, "connect", _configure_sqlite)
        event.listen(self._engine, "begin", self._begin)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view for reading."""
        with self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write; nobody else's can until it ends."""
        with self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        """Give all connections back."""
        self._engine.dispose()

    def _begin(self, connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        if self.sqlite:
            # the busy timeout does not cover a read that turns into a write: say so from the start
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        elif writes:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ONE_WRITER})")


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, DDL included
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = NORMAL")  # in WAL mode: a killed process loses nothing
    _use_wal(cursor)
    cursor.close()


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """The mode lasts in the file. First openers collide here, and SQLite's busy timeout does not cover that."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
