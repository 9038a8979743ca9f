"""Leases, which decide who schedules: one process at a time holds the lease of a name, with a hash of its code."""

import time
from dataclasses import dataclass

from sqlalchemy import delete, exists, insert, select, update

from engine.store.database import Database
from engine.store.model import State
from engine.store.tables import attempts, leases, runs

KEPT_S = 7 * 86_400.0
"""Delete expired leases after this many seconds (7 days). A host uses a new lease name after each boot."""


@dataclass(frozen=True)
class Lease:
    """A lease as read from the database."""

    name: str
    holder: str
    fingerprint: str
    expires_at: float

    @property
    def expired(self) -> bool:
        """Return whether the holder has not renewed the lease in time."""
        return time.time() > self.expires_at


def read(database: Database, name: str) -> Lease | None:
    """Return the lease of this name; None if there is none."""
    return next((Lease(**row._mapping) for row in database.rows(select(leases).where(leases.c.name == name))), None)


def take(database: Database, name: str, holder: str, fingerprint: str, seconds: float, seen: Lease | None) -> bool:
    """Take a lease last seen as `seen`, and delete long expired ones. Return False when another has taken it since."""
    values = {"holder": holder, "fingerprint": fingerprint, "expires_at": time.time() + seconds}
    with database.write() as connection:
        connection.execute(delete(leases).where(leases.c.name != name, leases.c.expires_at < time.time() - KEPT_S))
        if seen is None:
            if connection.execute(select(leases.c.name).where(leases.c.name == name)).first():
                return False
            connection.execute(insert(leases).values(name=name, **values))
            return True
        unchanged = (leases.c.name == name, leases.c.holder == seen.holder)
        return connection.execute(update(leases).where(*unchanged).values(**values)).rowcount == 1


def renew(database: Database, name: str, holder: str, seconds: float) -> bool:
    """Extend the lease; return False when another process holds it. The former holder must then claim no more runs."""
    held = (leases.c.name == name, leases.c.holder == holder)
    with database.write() as connection:
        extension = update(leases).where(*held).values(expires_at=time.time() + seconds)
        return connection.execute(extension).rowcount == 1


def release(database: Database, name: str, holder: str, *, host: str = "", only_idle: bool = False) -> bool:
    """Give the lease back and return whether this succeeded.

    only_idle: keep the lease while a run waits or an attempt on `host` is open. One statement checks and deletes, so
    that a run queued at this moment finds either a live scheduler or no lease.
    """
    conditions = [leases.c.name == name, leases.c.holder == holder]
    if only_idle:
        conditions += [
            ~exists().where(runs.c.state == State.QUEUED),
            ~exists().where(attempts.c.host == host, attempts.c.closed_at.is_(None)),
        ]
    with database.write() as connection:
        return connection.execute(delete(leases).where(*conditions)).rowcount == 1
