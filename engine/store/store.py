"""The store as submitters and readers see it. Those who execute runs use `store.attempts`, `queue` and `leases` too."""

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import delete, insert, select

from engine import results
from engine.results import Machine, Metric, Row
from engine.settings import Settings
from engine.specs import Refused, Spec
from engine.store import find, migrations, notes, queue
from engine.store.database import Damaged, Database, Unavailable
from engine.store.find import Filter
from engine.store.model import Run, State, StoredArtifact
from engine.store.records import RUNS, UNREADABLE, mark_change, to_run
from engine.store.tables import artifacts, attempts, changes, machines, metrics, rows, runs


def open_store(settings: Settings, *, on_failure: Callable[[Unavailable], object] | None = None) -> "Store":
    """Return the store that settings name, created or migrated when that is due.

    on_failure: called with what a use of the store is about to raise. Errors: Unavailable.
    """
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
    return Store(database, queue_limit=settings.queue_limit)


class Store:
    """Runs and what came of them. Safe to share between threads; open one's own after a fork."""

    def __init__(self, database: Database, queue_limit: int) -> None:
        self.database = database
        self.queue_limit = queue_limit

    def enqueue(self, spec: Spec, *, name: str = "", key: str | None = None) -> int:
        """Return the id of a new queued run, or of the run once made with this key. Errors: QueueFull, Refused."""
        return queue.enqueue(self.database, spec, name=name, key=key, limit=self.queue_limit)

    def run(self, run_id: int) -> Run:
        """Return a run. Errors: LookupError, Damaged."""
        with self.database.read() as connection:
            row = connection.execute(RUNS.where(runs.c.id == run_id)).first()
        if row is None:
            raise LookupError(f"there is no run {run_id}")
        with self._parsing(run_id, "its request or state"):
            return to_run(row)

    def runs(self, *, kind: str | None = None, states: Iterable[State] | None = None, limit: int = 200) -> list[Run]:
        """Newest first. A run that this version cannot read is left out; by its id it can be deleted."""
        kinds = () if kind is None else (kind,)
        return self.find(Filter(kinds=kinds, states=tuple(states or ())), limit=limit)

    def find(self, wanted: Filter, *, limit: int, offset: int = 0) -> list[Run]:
        """Return a page of the runs that a filter lets through."""
        return find.find(self.database, wanted, limit=limit, offset=offset)

    def count(self, wanted: Filter) -> int:
        """Return how many runs a filter lets through."""
        return find.count(self.database, wanted)

    def lines(self, wanted: Filter) -> Iterator[list[dict[str, Any]]]:
        """Yield all runs that a filter lets through, some hundred at a time, as plain columns."""
        return find.lines(self.database, wanted)

    def devices(self) -> list[str]:
        """Return all that runs have asked for."""
        return find.devices(self.database)

    def tags(self) -> dict[str, int]:
        """Return every tag there is, with how many runs have it."""
        return notes.tags(self.database)

    def set_tags(self, run_id: int, tags: Iterable[str]) -> None:
        """Give a run these tags and no others. Errors: LookupError, Refused."""
        notes.set_tags(self.database, run_id, tags)

    def change_tags(self, run_ids: Iterable[int], *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        """Give tags to runs and take others away, at all of them or none. Errors: LookupError, Refused."""
        notes.change_tags(self.database, run_ids, add, remove)

    def set_notes(self, run_id: int, text: str) -> None:
        """Replace the notes of a run. Errors: LookupError, Refused."""
        notes.set_notes(self.database, run_id, text)

    def position(self, run_id: int) -> int | None:
        """Place in the queue, 1 is next; None for a run that does not wait."""
        return queue.position(self.database, run_id)

    def request_cancel(self, run_id: int) -> None:
        """Cancel a queued run at once, ask an active one to stop; a run that has ended stays as it is."""
        queue.request_cancel(self.database, run_id)

    def retry(self, run_id: int) -> None:
        """Queue a failed or cancelled run again. Errors: LookupError, Refused."""
        run = self.run(run_id)
        if not queue.retry(self.database, run):
            raise Refused(f"run {run_id} is {run.state}: only a failed or cancelled run can be tried again")

    def delete(self, run_id: int) -> None:
        """Forget a run that has ended, with all its results. Files are the caller's. Errors: LookupError, Refused."""
        unclosed = select(attempts.c.id).where(attempts.c.run_id == run_id, attempts.c.closed_at.is_(None))
        with self.database.write() as connection:
            state = connection.scalar(select(runs.c.state).where(runs.c.id == run_id))
            if state is None:
                raise LookupError(f"there is no run {run_id}")
            if not State(state).ended:
                raise Refused(f"run {run_id} is {state}: cancel it first")
            if connection.execute(unclosed).first():
                raise Refused(f"run {run_id} has {state}, but its process is still ending: try again in a moment")
            connection.execute(delete(runs).where(runs.c.id == run_id))
            mark_change(connection)

    def rows(self, run_id: int, model: str | None = None) -> list[Row]:
        """Results in the order they came. model: only those of this name, which its library gives it."""
        query = select(rows.c.kind, rows.c.payload).where(rows.c.run_id == run_id).order_by(rows.c.id)
        if model is not None:
            query = query.where(rows.c.model == model)
        with self.database.read() as connection:
            found = connection.execute(query).all()
        with self._parsing(run_id, "a row"):
            return [results.load(row.kind, json.loads(row.payload)) for row in found]

    def metrics(self, run_id: int) -> list[Metric]:
        """Return the metrics of a run, by name, then step."""
        columns = (metrics.c.step, metrics.c.name, metrics.c.value)
        query = select(*columns).where(metrics.c.run_id == run_id).order_by(metrics.c.name, metrics.c.step)
        with self.database.read() as connection:
            found = connection.execute(query).all()
        with self._parsing(run_id, "a metric"):
            return [Metric(step=row.step, name=row.name, value=row.value) for row in found]

    def artifacts(self, run_id: int) -> list[StoredArtifact]:
        """Files of a run, by name, with size and SHA-256."""
        query = select(artifacts).where(artifacts.c.run_id == run_id).order_by(artifacts.c.name)
        with self.database.read() as connection:
            found = connection.execute(query).all()
        with self._parsing(run_id, "an artifact"):
            return [StoredArtifact(name=row.name, kind=row.kind, size=row.size, sha256=row.sha256) for row in found]

    def machine(self) -> Machine | None:
        """This host as last probed, else the host probed last (the scheduler may be elsewhere), else None."""
        own_first = (machines.c.host == socket.gethostname()).desc()
        query = select(machines.c.payload).order_by(own_first, machines.c.probed_at.desc()).limit(1)
        with self.database.read() as connection:
            payload = connection.scalar(query)
        try:
            return Machine.model_validate_json(payload) if payload else None
        except UNREADABLE:  # damaged; the next probe replaces it
            return None

    def save_machine(self, machine: Machine, fingerprint: str = "") -> None:
        """Replace what was known of its host. fingerprint: of the code and boot that probed it."""
        values: dict[str, Any] = {"host": machine.host, "payload": machine.model_dump_json()}
        with self.database.write() as connection:
            connection.execute(delete(machines).where(machines.c.host == machine.host))
            connection.execute(insert(machines).values(**values, fingerprint=fingerprint, probed_at=time.time()))
            mark_change(connection)

    def machine_age(self, host: str, fingerprint: str) -> float | None:
        """Seconds since a host was probed by the code of this fingerprint; None when it never was."""
        same = (machines.c.host == host, machines.c.fingerprint == fingerprint)
        with self.database.read() as connection:
            probed_at = connection.scalar(select(machines.c.probed_at).where(*same))
        return None if probed_at is None else time.time() - probed_at

    def revision(self) -> int:
        """Grows whenever a reader could see something new, in any run."""
        with self.database.read() as connection:
            return int(connection.execute(select(changes.c.revision)).scalar_one())

    @contextmanager
    def _parsing(self, run_id: int, what: str) -> Iterator[None]:
        """Raise what unreadable values of a run lead to as Damaged. what: which values."""
        try:
            yield
        except UNREADABLE as error:
            cause = f"holds run {run_id}, but {what} cannot be read: damaged, or of another version of the program"
            delete = f"delete it with `python -m engine runs delete {run_id}`"
            remedy = f"Read it with the version that wrote it, {delete}, or put a backup in the store's place"
            self.database.fail(Damaged(self.database.place, cause, remedy), error)

    def close(self) -> None:
        """Give connections back."""
        self.database.close()
