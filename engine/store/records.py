"""Convert database rows to the store's objects, and change a run's row in the one allowed way."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, select, update

from engine import specs
from engine.results import Environment
from engine.specs import Refused
from engine.store.model import Attempt, Cause, Results, Run, State
from engine.store.tables import attempts, changes, run_results, run_tags, runs

log = logging.getLogger(__name__)

LONGEST_TEXT = 20_000
LONGEST_NAME = 200
"""Characters of a run's name, which is shown in one line of a list."""
UNREADABLE = (LookupError, ValueError, TypeError, OverflowError)
"""Exceptions that damaged values, or values of another version of this program, can raise."""

UNSTARTED: dict[str, Any] = {"started_at": None, "done": 0, "total": None, "note": "", "seconds_left": None}
"""The progress columns of a run while no attempt has begun."""

_TAGS = select(func.aggregate_strings(run_tags.c.tag, "\n")).where(run_tags.c.run_id == runs.c.id).scalar_subquery()
_EARLIER = (
    select(func.sum(attempts.c.closed_at - attempts.c.begun_at))
    .where(attempts.c.run_id == runs.c.id, attempts.c.id < runs.c.attempt_id)
    .scalar_subquery()
)
RUNS: Select[Any] = select(
    runs,
    _TAGS.label("tags"),
    _EARLIER.label("earlier_s"),
    *(column.label(f"results_{column.name}") for column in run_results.c),
).join_from(runs, run_results, isouter=True)
"""Query for runs with their tags, joined by newlines, the seconds of their earlier attempts, and a summary of their
rows. `to_run` reads its rows.
"""

ATTEMPTS: Select[Any] = select(attempts, runs.c.cancel_requested).join_from(attempts, runs)
"""Query for attempts with the cancel request of their run. `to_attempt` reads its rows."""


def change_run(connection: Connection, *where: ColumnElement[bool], **values: Any) -> bool:
    """Change the run that meets all conditions of `where`, in one statement; return whether there was one.

    The revisions increase only then.
    """
    following = select(changes.c.revision + 1).scalar_subquery()
    done = connection.execute(update(runs).where(*where).values(revision=following, **values)).rowcount == 1
    if done:
        mark_change(connection)
    return done


def mark_change(connection: Connection) -> None:
    """Increase the revision that readers poll."""
    connection.execute(update(changes).values(revision=changes.c.revision + 1))


def to_run(row: Row[Any]) -> Run:
    """Return the run in a row of RUNS. Errors: those of UNREADABLE."""
    return Run(
        id=row.id,
        kind=row.kind,
        name=row.name,
        spec=specs.load(row.kind, row.spec),
        state=State(row.state),
        cause=Cause(row.cause) if row.cause else None,
        error=row.error,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
        started_at=_moment(row.started_at),
        ended_at=_moment(row.ended_at),
        cancel_requested=row.cancel_requested,
        attempt=row.attempt,
        done=row.done,
        total=row.total,
        note=row.note,
        estimated_s_left=row.seconds_left,
        earlier_s=row.earlier_s or 0.0,
        results=_results(row),
        environment=Environment.model_validate_json(row.environment) if row.environment else None,
        revision=row.revision,
        notes=row.notes,
        tags=tuple(sorted(row.tags.split("\n"))) if row.tags else (),
    )


def _results(row: Row[Any]) -> Results:
    if row.results_run_id is None:
        return Results()
    flags = tuple(row.results_flags.split("; ")) if row.results_flags else ()
    numbers = {name: getattr(row, f"results_{name}") for name in ("rows", "failed", "loss", "accuracy", "latency_ms")}
    return Results(**numbers, flags=flags)


def readable_run(row: Row[Any]) -> Run | None:
    """Return the run in a row of RUNS; None if this version cannot read it, for example because it is damaged."""
    try:
        return to_run(row)
    except UNREADABLE as error:
        log.warning("run %d is left out, this version cannot read it: %s", row.id, error)
        return None


def devices_of(text: str) -> list[str]:
    """Return the devices in a run's `devices` column; an empty list if it is damaged."""
    try:
        return [str(device) for device in json.loads(text)]
    except UNREADABLE:
        return []


def to_attempt(row: Row[Any]) -> Attempt:
    """Return the attempt in a row of ATTEMPTS."""
    return Attempt(
        token=row.id,
        run_id=row.run_id,
        number=row.number,
        host=row.host,
        created_at=row.created_at,
        begun_at=row.begun_at,
        heartbeat_at=row.heartbeat_at,
        stop_at=row.stop_at,
        cancel_requested=row.cancel_requested,
    )


def run_values(spec: specs.Spec, name: str, now: float) -> dict[str, Any]:
    """Return the columns of a new run except its state. Errors: Refused if the name is too long."""
    if len(name) > LONGEST_NAME:
        raise Refused(f"a run's name has at most {LONGEST_NAME} characters, this one {len(name):,}")
    return {
        "kind": spec.kind,
        "name": storable(name),
        "spec": spec.model_dump_json(),
        "summary": storable(spec.summary),
        "devices": json.dumps(sorted(set(spec.devices))),
        "exclusive": spec.exclusive,
        "error": "",
        "created_at": now,
        "cancel_requested": False,
        "attempt": 0,
        "tries_left": spec.attempts,
        "done": 0,
        "note": "",
        "revision": 0,
    }


def storable(text: str) -> str:
    """Return text that every database accepts: at most LONGEST_TEXT characters, without NUL and lone surrogates."""
    return text[:LONGEST_TEXT].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
