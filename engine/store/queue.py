"""The queue: runs wait in order, and an attempt takes a run when all slots that it needs are free."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select

from engine.specs import Spec
from engine.specs.base import CLUSTER
from engine.store.database import Clock, Database
from engine.store.listing import insert_listing
from engine.store.model import Attempt, Cause, State
from engine.store.records import ATTEMPTS, change_run, devices_of, run_values
from engine.store.tables import attempts, runs, slots

Place = tuple[str, str]
"""A slot: host and device."""
Nodes = Mapping[str, Mapping[str, Sequence[str]]]
"""The slots that serve each device, by node of the cluster."""
DAMAGED = "the store no longer holds which devices this run needs: its file is damaged"


_OWNED = runs.alias("own")
_TURN = func.row_number().over(partition_by=runs.c.owner, order_by=runs.c.id)
_LAST_START = select(func.max(_OWNED.c.attempt_id)).where(_OWNED.c.owner == runs.c.owner).scalar_subquery()
TURNS = (_TURN, func.coalesce(_LAST_START, 0), runs.c.id)
"""The order of queued runs: the oldest run of every owner, then the second oldest of every owner, and so on.
Within each of these groups, owners whose latest start is longest ago come first."""


def claim(database: Database, host: str, run_id: int | None = None, nodes: Nodes | None = None) -> Attempt | None:
    """Start an attempt of the first queued run by TURNS whose slots are free (or of run_id), if there is one.

    A waiting run reserves its slots against those behind it, so that no run waits for ever.
    nodes: given if `host` is the cluster. A run that names a device several times takes as many slots, on as few nodes
    as possible; its attempt is on the first one. Another host serves its own devices.
    """
    queued = runs.c.state == State.QUEUED
    waiting = select(runs.c.id, runs.c.devices, runs.c.exclusive).where(queued).order_by(*TURNS)
    if not database.rows(select(runs.c.id).where(queued).limit(1)):  # usually so, and then no write lock is needed
        return None
    with database.claiming(host) as connection:
        occupied, exclusive = _occupied(connection, [host] if nodes is None else list(nodes))
        for run in connection.execute(waiting).all():
            devices = devices_of(run.devices)
            if not devices:  # every spec names at least one device
                damaged = {"state": State.FAILED, "cause": Cause.ERROR, "error": DAMAGED, "ended_at": time.time()}
                change_run(connection, runs.c.id == run.id, queued, **damaged)
                continue
            places = _places(devices, host, nodes, exclusive=run.exclusive)
            if len(places) < len(devices):
                continue  # another host has these devices
            full = exclusive | ({name for name, _ in occupied} if run.exclusive else set())
            free = [place for place in places if place not in occupied and place[0] not in full]
            chosen = _choose(free, len(devices))
            if len(chosen) == len(devices) and run_id in (None, run.id):
                # on PostgreSQL, another host may be claiming it at this moment, or has claimed it since
                still_queued = select(runs.c.id).where(runs.c.id == run.id, queued).with_for_update(skip_locked=True)
                if connection.execute(still_queued).first() is None:
                    continue
                return _occupy(connection, run.id, chosen)
            occupied.update(chosen)
            if run.exclusive:
                exclusive.update(name for name, _ in places)
        return None


def claim_new(database: Database, host: str, spec: Spec, *, name: str) -> Attempt | None:
    """Record a run and start its only attempt at once, ahead of the queue; None when a slot it needs is occupied."""
    with database.write() as connection:
        occupied, exclusive = _occupied(connection, [host])
        needed = [(host, device) for device in spec.devices]
        if exclusive or occupied & set(needed) or (spec.exclusive and occupied):
            return None
        return _occupy(connection, insert_run(connection, spec, name, tries_left=1), needed)


def holders(database: Database, host: str) -> dict[str, int]:
    """Return the id of the run that holds each device of a host, by device."""
    held = select(slots.c.device, slots.c.run_id).where(slots.c.host == host)
    return {slot.device: slot.run_id for slot in database.rows(held)}


def places_of(database: Database, attempt: Attempt) -> Counter[str]:
    """Return how many slots an attempt holds on each host."""
    held = select(slots.c.host, func.count()).where(slots.c.attempt_id == attempt.token).group_by(slots.c.host)
    with database.read() as connection:
        return Counter({host: count for host, count in connection.execute(held)})


def waiting(database: Database) -> tuple[int, float | None]:
    """Return the number of queued runs, and for how many seconds the first of them has waited; None without any.

    A run waits since it was created, or since its last attempt ended.
    """
    ended = select(func.max(attempts.c.closed_at)).where(attempts.c.run_id == runs.c.id).scalar_subquery()
    first = func.min(func.coalesce(ended, runs.c.created_at))
    with database.read() as connection:
        count, since = connection.execute(select(func.count(), first).where(runs.c.state == State.QUEUED)).one()
    return count, None if since is None else max(0.0, time.time() - since)


def insert_run(connection: Connection, spec: Spec, name: str, **columns: Any) -> int:
    """Insert a run with its search data and return its id. columns: values other than a new run has in the queue."""
    values = run_values(spec, name, time.time()) | {"state": State.QUEUED} | columns
    run_id = int(connection.execute(insert(runs).values(values).returning(runs.c.id)).scalar_one())
    insert_listing(connection, run_id, spec, name, columns.get("notes", ""))
    change_run(connection, runs.c.id == run_id)
    return run_id


def _occupied(connection: Connection, hosts: list[str]) -> tuple[set[Place], set[str]]:
    """Return the occupied slots of these hosts, and the hosts that a holder needs exclusively."""
    held = connection.execute(select(slots).where(slots.c.host.in_(hosts))).all()
    return {(slot.host, slot.device) for slot in held}, {slot.host for slot in held if slot.exclusive}


def _places(devices: list[str], host: str, nodes: Nodes | None, *, exclusive: bool) -> list[Place]:
    """Return the slots that can serve a run; none if another host has its devices. exclusive: only one per node."""
    if nodes is not None:
        most = 1 if exclusive else None
        return [(node, slot) for node, offers in nodes.items() for slot in offers.get(devices[0], ())[:most]]
    return [] if any(device.startswith(CLUSTER) for device in devices) else [(host, device) for device in devices]


def _choose(free: list[Place], count: int) -> list[Place]:
    """Return up to `count` free slots. Several are on as few hosts as possible: those with most free slots."""
    by_host = Counter(host for host, _ in free)
    return (free if count == 1 else sorted(free, key=lambda place: -by_host[place[0]]))[:count]


def _occupy(connection: Connection, run_id: int, held: list[Place]) -> Attempt:
    """Start an attempt on the host of its first slot. Each statement checks its precondition despite the one writer."""
    host = held[0][0]
    run = connection.execute(select(runs.c.attempt, runs.c.exclusive).where(runs.c.id == run_id)).one()
    now = time.time()
    values = {"run_id": run_id, "number": run.attempt + 1, "host": host, "created_at": now, "heartbeat_at": Clock()}
    token = connection.execute(insert(attempts).values(values).returning(attempts.c.id)).scalar_one()
    waiting = (runs.c.id == run_id, runs.c.state == State.QUEUED)
    was_queued = change_run(connection, *waiting, state=State.STARTING, attempt_id=token, attempt=run.attempt + 1)
    assert was_queued, f"run {run_id} was not queued"
    holder = {"attempt_id": token, "run_id": run_id, "exclusive": run.exclusive}
    connection.execute(insert(slots), [holder | {"host": host, "device": device} for host, device in sorted(held)])
    return Attempt(**connection.execute(ATTEMPTS.where(attempts.c.id == token)).one()._mapping)
