"""Who schedules: a lease on a name, held by one process at a time, with the fingerprint of the code it runs."""

import time
from dataclasses import dataclass

from sqlalchemy import delete, exists, insert, select, update

from engine.store.database import Database
from engine.store.model import State
from engine.store.tables import attempts, leases, runs

KEPT_S = 7 * 86_400.0
"""Seconds after which an expired lease is forgotten: a host has a new name for its lease after each start."""


@dataclass(frozen=True)
class Lease:
    """A lease as it was read."""

    name: str
    holder: str
    fingerprint: str
    expires_at: float

    @property
    def expired(self) -> bool:
        """Whether its holder has been silent for too long."""
        return time.time() > self.expires_at


def read(database: Database, name: str) -> Lease | None:
    """Return the lease of this name, if anyone has it."""
    with database.read() as connection:
        row = connection.execute(select(leases).where(leases.c.name == name)).first()
        return Lease(row.name, row.holder, row.fingerprint, row.expires_at) if row else None


def take(database: Database, name: str, holder: str, fingerprint: str, seconds: float, seen: Lease | None) -> bool:
    """Take the lease that was seen free, expired or outdated; False when somebody else did so first.

    Leases of hosts that no longer exist go on the way.
    """
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
    """False when the lease is another's by now: its former holder must claim nothing more."""
    mine = (leases.c.name == name, leases.c.holder == holder)
    with database.write() as connection:
        extended = update(leases).where(*mine).values(expires_at=time.time() + seconds)
        return connection.execute(extended).rowcount == 1


def release(database: Database, name: str, holder: str, *, host: str = "", only_idle: bool = False) -> bool:
    """Give the lease back. only_idle: not while a run waits or an attempt on `host` is open, in one statement, so that
    a run queued at this moment either finds a scheduler or finds that there is none.
    """
    mine = [leases.c.name == name, leases.c.holder == holder]
    if only_idle:
        mine += [
            ~exists().where(runs.c.state == State.QUEUED),
            ~exists().where(attempts.c.host == host, attempts.c.closed_at.is_(None)),
        ]
    with database.write() as connection:
        return connection.execute(delete(leases).where(*mine)).rowcount == 1
