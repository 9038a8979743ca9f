"""Store what attempts report, and update a run when its attempt ends. Only the latest attempt of a run may write.

Every write names the attempt and the states that it expects. A stale attempt changes nothing and raises `StaleAttempt`.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, delete, exists, func, insert, literal, select, update

from engine.results import Environment, Event, Metric, Progress, Row
from engine.specs import ModelName
from engine.store.database import Clock, Database
from engine.store.listing import delete_results, insert_models, set_results
from engine.store.model import ACTIVE, Attempt, Cause, Exit, StaleAttempt, State, StoredArtifact
from engine.store.records import ATTEMPTS, LONGEST_TEXT, UNSTARTED, change_run, storable
from engine.store.tables import artifacts, attempts, metrics, rows, runs, slots

PROMOTED = ("kind", "library", "model", "status")
"""Fields of a result row that the store also keeps as columns, for its queries."""
MOST_STARTS = 10
"""After this many attempts, a run is not queued again because its process died before it began or its host was lost.
The number of tries does not limit such attempts."""


def open_attempts(database: Database) -> list[Attempt]:
    """Return the attempts whose processes may still exist, on any host."""
    query = ATTEMPTS.where(attempts.c.closed_at.is_(None)).order_by(attempts.c.id)
    return [Attempt(**row._mapping) for row in database.rows(query)]


def current(database: Database, run_id: int) -> Attempt | None:
    """Return the latest attempt of a run; None when it is closed or there is none."""
    is_open = (attempts.c.run_id == run_id, attempts.c.id == runs.c.attempt_id, attempts.c.closed_at.is_(None))
    return next((Attempt(**row._mapping) for row in database.rows(ATTEMPTS.where(*is_open))), None)


def begin(database: Database, attempt: Attempt) -> None:
    """Record that the worker has started. Rows of earlier attempts are deleted, so that results are never mixed.

    Errors: StaleAttempt, also when another worker has begun this very attempt.
    """
    now = time.time()
    unbegun = (attempts.c.id == attempt.token, attempts.c.begun_at.is_(None), attempts.c.closed_at.is_(None))
    with database.write() as connection:
        begun = update(attempts).where(*unbegun).values(begun_at=now, heartbeat_at=Clock())
        if connection.execute(begun).rowcount != 1:
            raise StaleAttempt(f"attempt {attempt.number} of run {attempt.run_id} has begun or ended elsewhere")
        _change(connection, attempt, **UNSTARTED | {"started_at": now, "tries_left": runs.c.tries_left - 1})
        connection.execute(delete(rows).where(rows.c.run_id == attempt.run_id, rows.c.attempt_id < attempt.token))
        delete_results(connection, attempt.run_id)


def heartbeat(database: Database, attempt: Attempt) -> bool:
    """Record that the worker is alive; return whether to stop. A vanished run runs again. Errors: StaleAttempt."""
    with database.write() as connection:
        alive = update(attempts).where(attempts.c.id == attempt.token, attempts.c.closed_at.is_(None))
        connection.execute(alive.values(heartbeat_at=Clock()))
        change_run(connection, *_latest(attempt), runs.c.state == State.VANISHED, state=State.RUNNING)
        active = (*_latest(attempt), runs.c.state.in_(ACTIVE))
        run = connection.execute(select(runs.c.cancel_requested).where(*active)).first()
        if run is None:
            raise _stale(attempt)
        return bool(run.cancel_requested)


def record(database: Database, attempt: Attempt, events: Sequence[Event]) -> None:
    """Store events in order, all or none. The first call sets the run to `running`. Errors: StaleAttempt."""
    with database.write() as connection:
        not_running = runs.c.state.in_((State.STARTING, State.VANISHED))
        values: dict[str, Any] = {"state": case((not_running, State.RUNNING), else_=runs.c.state)}
        for event in events:
            if isinstance(event, Progress):
                values |= {"done": event.done, "total": event.total, "note": storable(event.note)}
                values["seconds_left"] = event.seconds_left
                moved = runs.c.done != event.done
                values["progressed_at"] = case((moved, time.time()), else_=runs.c.progressed_at)
            elif isinstance(event, Environment):
                values["environment"] = event.model_dump_json()
        _change(connection, attempt, **values)
        insert_events(connection, attempt.run_id, attempt.token, events)


def count_rows(database: Database, attempt: Attempt) -> int:
    """Return how many rows an attempt has stored."""
    of_attempt = (rows.c.run_id == attempt.run_id, rows.c.attempt_id == attempt.token)
    return int(database.rows(select(func.count()).select_from(rows).where(*of_attempt))[0][0])


def finish(database: Database, attempt: Attempt, state: State, cause: Cause | None = None, error: str = "") -> None:
    """Store a run's final state. Its slots stay occupied until its process has ended. Errors: StaleAttempt."""
    assert state.ended
    assert (cause is None) == (state != State.FAILED)
    with database.write() as connection:
        _change(connection, attempt, state=state, cause=cause, error=storable(error), ended_at=time.time())
        set_results(connection, attempt.run_id)


def mark_stopping(database: Database, attempt: Attempt) -> None:
    """Record that a cancelled attempt was asked to stop."""
    with database.write() as connection:
        unasked = (attempts.c.id == attempt.token, attempts.c.stop_at.is_(None))
        connection.execute(update(attempts).where(*unasked).values(stop_at=time.time()))
        change_run(connection, *_latest(attempt), runs.c.state.in_(ACTIVE), state=State.STOPPING)


def mark_vanished(database: Database, attempt: Attempt) -> None:
    """Mark a run whose heartbeat is overdue for an unknown reason."""
    with database.write() as connection:
        change_run(
            connection, *_latest(attempt), runs.c.state.in_((State.STARTING, State.RUNNING)), state=State.VANISHED
        )


def close(database: Database, attempt: Attempt, exit: Exit, cause: Cause, error: str) -> None:
    """Close an attempt whose process has ended: free its slots, and set the run's state unless the worker has set it.

    The run is cancelled if that was requested. It is queued again if it was killed from outside and has tries left.
    Otherwise it fails. The loss of a host uses up no try.
    """
    now = time.time()
    with database.write() as connection:
        unclosed = (attempts.c.id == attempt.token, attempts.c.closed_at.is_(None))
        closing = update(attempts).where(*unclosed).values(closed_at=now, exit=json.dumps(asdict(exit)))
        if connection.execute(closing).rowcount != 1:
            return
        connection.execute(delete(slots).where(slots.c.attempt_id == attempt.token))
        active = (*_latest(attempt), runs.c.state.in_(ACTIVE))
        never_begun = exists().where(attempts.c.id == attempt.token, attempts.c.begun_at.is_(None))
        tries_left = runs.c.tries_left + case((never_begun, 0), else_=int(exit.host_lost))  # `begin` took one away
        few_starts = ~(never_begun | literal(exit.host_lost)) | (runs.c.attempt < MOST_STARTS)
        if change_run(connection, *active, runs.c.cancel_requested, state=State.CANCELLED, ended_at=now):
            set_results(connection, attempt.run_id)
            return
        queued = UNSTARTED | {"state": State.QUEUED, "attempt_id": None, "tries_left": tries_left}
        if cause == Cause.KILLED and change_run(connection, *active, tries_left > 0, few_starts, **queued):
            return
        failed = {"state": State.FAILED, "cause": cause, "error": storable(error), "ended_at": now}
        if change_run(connection, *active, **failed):
            set_results(connection, attempt.run_id)


def warn(database: Database, attempt: Attempt, text: str) -> None:
    """Append a warning to the error of a run, if this is still its latest attempt."""
    with database.write() as connection:
        error = case((runs.c.error == "", storable(text)), else_=runs.c.error + f"; {storable(text)}")
        change_run(connection, *_latest(attempt), error=func.substr(error, 1, LONGEST_TEXT))


def _latest(attempt: Attempt) -> tuple[ColumnElement[bool], ...]:
    """Return conditions that select an attempt's run if the attempt is its latest one."""
    return runs.c.id == attempt.run_id, runs.c.attempt_id == attempt.token


def _change(connection: Connection, attempt: Attempt, **values: Any) -> None:
    if not change_run(connection, *_latest(attempt), runs.c.state.in_(ACTIVE), **values):
        raise _stale(attempt)


def _stale(attempt: Attempt) -> StaleAttempt:
    return StaleAttempt(f"attempt {attempt.number} of run {attempt.run_id} is over: nothing more is taken from it")


def insert_events(connection: Connection, run_id: int, token: int, events: Sequence[Event]) -> None:
    """Store events of an attempt, without checks. Rows keep their order."""
    of_run = {"run_id": run_id}
    if new_rows := [event for event in events if isinstance(event, Row)]:
        of_attempt = of_run | {"attempt_id": token}
        values = [
            of_attempt | {name: getattr(row, name) for name in PROMOTED} | {"payload": row.model_dump_json()}
            for row in new_rows
        ]
        connection.execute(insert(rows), values)
        insert_models(connection, run_id, {ModelName.of(row.library, row.model) for row in new_rows})
    for event in events:
        match event:
            case Progress() | Environment() | Row():
                pass  # the first two are columns of the run itself
            case Metric():
                _replace(connection, metrics, of_run | event.model_dump())
            case StoredArtifact():
                _replace(connection, artifacts, of_run | event.model_dump())
            case _:
                raise TypeError(f"{type(event).__name__} is not an event that is stored")


def _replace(connection: Connection, table: Any, values: dict[str, Any]) -> None:
    key = {column.name: values[column.name] for column in table.primary_key}
    connection.execute(delete(table).where(*(table.c[name] == value for name, value in key.items())))
    connection.execute(insert(table).values(values))
