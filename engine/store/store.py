"""The store for processes that submit and read runs. Those that execute runs also use the other modules."""

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select, update

from engine import results
from engine.results import Machine, Metric, Row
from engine.settings import Settings
from engine.specs import Refused, Spec
from engine.specs.base import CLUSTER
from engine.store import find, migrations, queue
from engine.store.access import LOCAL, Role, User
from engine.store.database import Damaged, Database, Unavailable
from engine.store.find import LINES, Filter
from engine.store.listing import searchable
from engine.store.model import ACTIVE, LONGEST_NOTES, MOST_TAGS, RETRYABLE, QueueFull, Run, State, StoredArtifact, tag
from engine.store.records import (
    RUNS,
    UNREADABLE,
    UNSTARTED,
    change_run,
    devices_of,
    mark_change,
    readable_run,
    storable,
    to_run,
)
from engine.store.tables import artifacts, attempts, changes, machines, metrics, rows, run_tags, run_texts, runs
from engine.words import plural

BATCH = 500
"""Runs that `Store.lines` reads at once."""


def open_store(settings: Settings, *, on_failure: Callable[[Unavailable], object] | None = None) -> "Store":
    """Open the store of these settings; create or migrate it first if needed.

    on_failure: called with each Unavailable before it is raised. Errors: Unavailable; Refused when SQLite is to serve a
    cluster, or the URL of copies holds a secret.
    """
    if settings.refusal:
        raise Refused(settings.refusal)
    try:
        settings.make_runs_dir()
    except OSError as error:
        cause = f"needs a folder that cannot be made ({error.strerror})"
        remedy = "Let this user write to the folder above it, or name another one in VITALS_RUNS_DIR"
        raise Unavailable(str(settings.runs_dir), cause, remedy) from error
    database = Database(settings.store_url, on_failure=on_failure)
    try:
        migrations.upgrade(database)
    except BaseException:
        database.close()
        raise
    return Store(database, queue_limit=settings.queue_limit, user_queue_limit=settings.user_queue_limit)


class Store:
    """Runs and their results, as one user may change them. Threads may share it; a forked process must open its own.

    Every method that changes a run raises Refused when its user may not.
    """

    def __init__(self, database: Database, queue_limit: int, user_queue_limit: int = 50, user: User = LOCAL) -> None:
        self.database = database
        self.queue_limit = queue_limit
        self.user_queue_limit = user_queue_limit
        self.user = user

    def acting_as(self, user: User) -> "Store":
        """Return this store for another user."""
        return Store(self.database, self.queue_limit, self.user_queue_limit, user)

    def check_owner(self, *run_ids: int) -> None:
        """Check that the user may change all these runs. Errors: Refused."""
        if self.user.role is Role.ADMIN:
            return
        for run in self.database.rows(select(runs.c.id, runs.c.owner).where(runs.c.id.in_(run_ids))):
            self.user.check_owner(run.owner, f"run {run.id}")

    def enqueue(self, spec: Spec, *, name: str = "", key: str | None = None) -> int:
        """Return the id of a new queued run, or of the earlier run with this key. Errors: QueueFull, Refused."""
        self.user.require(Role.RUNNER)
        with self.database.write() as connection:
            earlier_id = None if key is None else connection.scalar(select(runs.c.id).where(runs.c.key == key))
            if earlier_id is not None:
                return int(earlier_id)
            self._check_limits(connection, self.user.email)
            return queue.insert_run(connection, spec, name, key=key, owner=self.user.email)

    def _check_limits(self, connection: Connection, owner: str) -> None:
        """Check that one more run of an owner may wait. A run without an owner has no limit. Errors: QueueFull."""
        queued = select(func.count()).where(runs.c.state == State.QUEUED)
        limits = [("", queued, self.queue_limit)]
        if owner:
            limits.append((f" of {owner}", queued.where(runs.c.owner == owner), self.user_queue_limit))
        for whose, query, most in limits:
            if (waiting := connection.scalar(query) or 0) >= most:
                raise QueueFull(
                    f"{plural(waiting, 'run')}{whose} in the queue, at most {most:,} may wait: cancel some or try later"
                )

    def run(self, run_id: int) -> Run:
        """Return a run. Errors: LookupError, Damaged."""
        # no database takes a larger integer, and a request may name a run by any number
        if run_id >= 2**63 or not (found := self.database.rows(RUNS.where(runs.c.id == run_id))):
            raise LookupError(f"there is no run {run_id}")
        with self._parsing(run_id, "its request or state"):
            return to_run(found[0])

    def runs(self, *, kind: str | None = None, states: Iterable[State] | None = None, limit: int = 200) -> list[Run]:
        """Return runs, newest first. Runs that this version cannot read are left out; they can be deleted by id."""
        kinds = () if kind is None else (kind,)
        return self.find(Filter(kinds=kinds, states=tuple(states or ())), limit=limit)

    def find(self, wanted: Filter, *, limit: int, offset: int = 0) -> list[Run]:
        """Return one page of the runs that match a filter. Runs that this version cannot read are left out."""
        page = find.ids(wanted).limit(limit).offset(offset)
        with self.database.read() as connection:
            ids = list(connection.scalars(page))  # ids first, from indexes alone: rows of `runs` are wide
            found = connection.execute(RUNS.where(runs.c.id.in_(ids)).order_by(*find.order(wanted)))
            return [run for row in found if (run := readable_run(row))]

    def count(self, wanted: Filter) -> int:
        """Return the number of runs that match a filter."""
        matching = select(func.count()).select_from(runs).where(*find.conditions(wanted))
        return int(self.database.rows(matching)[0][0])

    def ids(self, wanted: Filter) -> list[int]:
        """Return the ids of all runs that match a filter, also of runs that this version cannot read."""
        return [run.id for run in self.database.rows(find.ids(wanted))]

    def lines(self, wanted: Filter) -> Iterator[list[dict[str, Any]]]:
        """Yield the columns LINES of all runs that match a filter, in batches of BATCH. No spec is read."""
        found = self.ids(wanted)
        for start in range(0, len(found), BATCH):
            batch = LINES.where(runs.c.id.in_(found[start : start + BATCH])).order_by(*find.order(wanted))
            yield [dict(row._mapping) for row in self.database.rows(batch)]

    def devices(self) -> list[str]:
        """Return all devices that any run has requested, sorted."""
        lists = self.database.rows(select(runs.c.devices).distinct())
        return sorted({device for (devices,) in lists for device in devices_of(devices)})

    def tags(self) -> dict[str, int]:
        """Return the number of runs of every tag."""
        counted = select(run_tags.c.tag, func.count().label("runs")).group_by(run_tags.c.tag)
        return {row.tag: row.runs for row in self.database.rows(counted.order_by(run_tags.c.tag))}

    def change_tags(self, run_ids: Iterable[int], *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        """Add and remove tags of several runs, all or none. Errors: LookupError, Refused."""
        run_ids = list(run_ids)
        self.check_owner(*run_ids)
        added, removed = [tag(text) for text in add], {tag(text) for text in remove}
        with self.database.write() as connection:
            for run_id in run_ids:
                current = connection.scalars(select(run_tags.c.tag).where(run_tags.c.run_id == run_id))
                names = [name for name in dict.fromkeys([*current, *added]) if name not in removed]
                if len(names) > MOST_TAGS:
                    raise Refused(f"a run has at most {MOST_TAGS} tags, and run {run_id} would have {len(names)}")
                _change(connection, run_id)
                connection.execute(delete(run_tags).where(run_tags.c.run_id == run_id))
                if names:
                    connection.execute(insert(run_tags), [{"run_id": run_id, "tag": name} for name in names])

    def set_notes(self, run_id: int, text: str, *, before: str | None = None) -> bool:
        """Replace the notes of a run.

        before: the notes that `text` was written from. If they were changed since, both texts are kept.
        Returns whether both were kept. Errors: LookupError, Refused.
        """
        self.check_owner(run_id)
        with self.database.write() as connection:
            current = connection.scalar(select(runs.c.notes).where(runs.c.id == run_id))
            if merged := before is not None and current not in (None, before, text):
                text = "\n\n".join(filter(None, (current, text)))
            if len(text) > LONGEST_NOTES:
                raise Refused(f"notes have at most {LONGEST_NOTES:,} characters, these {len(text):,}")
            stored = storable(text)
            _change(connection, run_id, notes=stored)
            row = connection.execute(select(runs.c.name, runs.c.summary).where(runs.c.id == run_id)).one()
            search_text = update(run_texts).where(run_texts.c.run_id == run_id)
            connection.execute(search_text.values(text=searchable(row.name, row.summary, stored)))
        return merged

    def position(self, run_id: int) -> int | None:
        """Return a run's position in the queue, 1 for the next one; None if it does not wait."""
        order = self.queue_order()
        return order.index(run_id) + 1 if run_id in order else None

    def queue_order(self) -> list[int]:
        """Return the ids of the queued runs, the next one first."""
        queued = select(runs.c.id).where(runs.c.state == State.QUEUED).order_by(*queue.TURNS)
        return [run.id for run in self.database.rows(queued)]

    def request_cancel(self, run_id: int) -> None:
        """Cancel a queued run at once; request the end of an active one; ignore an ended one. Errors: Refused."""
        self.check_owner(run_id)
        ended = {"state": State.CANCELLED, "cancel_requested": True, "ended_at": time.time()}
        with self.database.write() as connection:
            if not change_run(connection, runs.c.id == run_id, runs.c.state == State.QUEUED, **ended):
                change_run(connection, runs.c.id == run_id, runs.c.state.in_(ACTIVE), cancel_requested=True)

    def retry(self, run_id: int) -> None:
        """Queue a failed or cancelled run again with all its tries. Its rows stay until the next attempt begins.

        Errors: LookupError, QueueFull, Refused.
        """
        self.check_owner(run_id)
        run = self.run(run_id)
        values = UNSTARTED | {"state": State.QUEUED, "cause": None, "error": "", "ended_at": None}
        values |= {"cancel_requested": False, "tries_left": run.spec.attempts}
        with self.database.write() as connection:
            self._check_limits(connection, run.owner)
            queued = change_run(connection, runs.c.id == run_id, runs.c.state.in_(RETRYABLE), **values)
        if not queued:
            advice = "" if run.state.ended else ". If its process was killed, the scheduler finds out within a minute"
            if run.state is State.FINISHED and run.kind == "train":
                advice = ". To train further, start a training with more epochs that continues its folder (resume)"
            raise Refused(f"run {run_id} is {run.state}: only a failed or cancelled run can be tried again{advice}")

    def delete(self, run_id: int) -> None:
        """Delete an ended run with its results. The caller deletes its files. Errors: LookupError, Refused."""
        self.check_owner(run_id)
        unclosed = select(attempts.c.id).where(attempts.c.run_id == run_id, attempts.c.closed_at.is_(None))
        with self.database.write() as connection:
            state = connection.scalar(select(runs.c.state).where(runs.c.id == run_id))
            if state is None:
                raise LookupError(f"there is no run {run_id}")
            if not State(state).ended:
                raise Refused(f"run {run_id} is {state}: cancel it first")
            if connection.execute(unclosed).first():
                raise Refused(f"run {run_id} is {state}, but its process is still ending: try again in a moment")
            connection.execute(delete(runs).where(runs.c.id == run_id))
            mark_change(connection)

    def rows(self, run_id: int, model: str | None = None) -> list[Row]:
        """Return the rows of a run in the order they were stored. model: only rows with this unqualified name."""
        query = select(rows.c.kind, rows.c.payload).where(rows.c.run_id == run_id).order_by(rows.c.id)
        if model is not None:
            query = query.where(rows.c.model == model)
        table_rows = self.database.rows(query)
        with self._parsing(run_id, "a row"):
            return [results.load(row.kind, json.loads(row.payload)) for row in table_rows]

    def metrics(self, run_id: int) -> Iterator[Metric]:
        """Yield the metrics of a run, by name, then step. A long training has more than fit into memory."""
        columns = (metrics.c.step, metrics.c.name, metrics.c.value)
        query = select(*columns).where(metrics.c.run_id == run_id).order_by(metrics.c.name, metrics.c.step)
        with self._parsing(run_id, "a metric"), self.database.read() as connection:
            for step, name, value in connection.execute(query.execution_options(yield_per=BATCH)):
                yield Metric(step=step, name=name, value=value)

    def artifacts(self, run_id: int) -> list[StoredArtifact]:
        """Return the artifacts of a run, sorted by name."""
        columns = (artifacts.c.name, artifacts.c.kind, artifacts.c.size, artifacts.c.sha256)
        query = select(*columns).where(artifacts.c.run_id == run_id).order_by(artifacts.c.name)
        table_rows = self.database.rows(query)
        with self._parsing(run_id, "an artifact"):
            return [StoredArtifact(**row._mapping) for row in table_rows]

    def machine(self) -> Machine | None:
        """Return the last probe of this host, else of any (the scheduler may be elsewhere); None without a probe."""
        own_first = (machines.c.host == socket.gethostname()).desc()
        known = select(machines.c.payload).where(machines.c.host != CLUSTER)
        return self._machine(known.order_by(own_first, machines.c.probed_at.desc()))

    def cluster(self) -> Machine | None:
        """Return the devices of the Ray cluster as the scheduler last saw them; None if it never did."""
        return self._machine(select(machines.c.payload).where(machines.c.host == CLUSTER))

    def _machine(self, query: Select[Any]) -> Machine | None:
        with self.database.read() as connection:
            payload = connection.scalar(query.limit(1))
        try:
            return Machine.model_validate_json(payload) if payload else None
        except UNREADABLE:  # damaged; the next probe replaces it
            return None

    def save_machine(self, machine: Machine, fingerprint: str = "") -> None:
        """Store the probe of a host in place of the previous one. fingerprint: of the code that probed it."""
        values: dict[str, Any] = {"host": machine.host, "payload": machine.model_dump_json()}
        with self.database.write() as connection:
            connection.execute(delete(machines).where(machines.c.host == machine.host))
            connection.execute(insert(machines).values(**values, fingerprint=fingerprint, probed_at=time.time()))
            mark_change(connection)

    def machine_age(self, host: str, fingerprint: str) -> float | None:
        """Return the seconds since a host was probed by code with this fingerprint; None if it never was."""
        probe = (machines.c.host == host, machines.c.fingerprint == fingerprint)
        with self.database.read() as connection:
            probed_at = connection.scalar(select(machines.c.probed_at).where(*probe))
        return None if probed_at is None else time.time() - probed_at

    def revision(self) -> int:
        """Return a number that increases whenever readers can see a change in any run."""
        return int(self.database.rows(select(changes.c.revision))[0].revision)

    @contextmanager
    def _parsing(self, run_id: int, what: str) -> Iterator[None]:
        """Raise Damaged when stored values of a run cannot be parsed. what: name of the values, for the message."""
        try:
            yield
        except UNREADABLE as error:
            cause = f"holds run {run_id}, but {what} cannot be read: damaged, or of another version of the program"
            delete = f"delete it with `python -m engine runs delete {run_id}`"
            remedy = f"Read it with the version that wrote it, {delete}, or put a backup in the store's place"
            self.database.fail(Damaged(self.database.place, cause, remedy), error)

    def close(self) -> None:
        """Close all connections."""
        self.database.close()


def _change(connection: Connection, run_id: int, **values: str) -> None:
    if not change_run(connection, runs.c.id == run_id, **values):
        raise LookupError(f"there is no run {run_id}")
