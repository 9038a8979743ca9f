"""Convert database rows to the store's objects, and change a run's row in the one allowed way."""

import json
import logging
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, select, update

from engine import specs
from engine.results import Environment
from engine.specs import Refused, error_message
from engine.store.model import Results, Run
from engine.store.tables import attempts, changes, run_results, run_tags, runs

log = logging.getLogger(__name__)

LONGEST_TEXT = 20_000
"""Characters of an error, a note or another text of a run; `storable` cuts longer ones."""
LONGEST_NAME = 200
"""Characters of a run's name, which is shown in one line of a list."""
UNREADABLE = (LookupError, ValueError, TypeError, OverflowError)
"""Exceptions that damaged values, or values of another version of this program, can raise."""

UNSTARTED: dict[str, Any] = {
    **{"started_at": None, "done": 0, "total": None, "note": ""},
    **{"seconds_left": None, "progressed_at": None},
}
"""The progress columns of a run while no attempt has begun."""

TAGS = select(func.aggregate_strings(run_tags.c.tag, "\n")).where(run_tags.c.run_id == runs.c.id).scalar_subquery()
_EARLIER = select(func.sum(attempts.c.closed_at - attempts.c.begun_at))
EARLIER_S = func.coalesce(
    _EARLIER.where(attempts.c.run_id == runs.c.id, attempts.c.id < runs.c.attempt_id).scalar_subquery(), 0.0
)
"""Seconds of the attempts of a run before its latest one."""
RUNS: Select[Any] = select(
    runs,
    TAGS.label("tags"),
    runs.c.seconds_left.label("estimated_s_left"),
    EARLIER_S.label("earlier_s"),
    *(column.label(f"results_{column.name}") for column in run_results.c),
).join_from(runs, run_results, isouter=True)
"""Query for runs with their tags, joined by newlines, the seconds of their earlier attempts, and a summary of their
rows. `to_run` reads its rows."""

ATTEMPTS: Select[Any] = select(
    attempts.c.id.label("token"),
    *(attempts.c[name] for name in "run_id number host created_at begun_at heartbeat_at stop_at".split()),
    runs.c.cancel_requested,
).join_from(attempts, runs)
"""Query for the fields of an Attempt."""


def change_run(connection: Connection, *where: ColumnElement[bool], **values: Any) -> bool:
    """Change the run that meets all conditions, and with it the revisions. Return whether there was one."""
    next_revision = select(changes.c.revision + 1).scalar_subquery()
    done = connection.execute(update(runs).where(*where).values(revision=next_revision, **values)).rowcount == 1
    if done:
        mark_change(connection)
    return done


def mark_change(connection: Connection) -> None:
    """Increase the revision that readers poll."""
    connection.execute(update(changes).values(revision=changes.c.revision + 1))


def to_run(row: Row[Any]) -> Run:
    """Return the run in a row of RUNS. Errors: those of UNREADABLE."""
    values: dict[str, Any] = {field.name: getattr(row, field.name) for field in fields(Run) if field.name != "results"}
    values["spec"] = specs.load(row.kind, row.spec)
    values["environment"] = Environment.model_validate_json(row.environment) if row.environment else None
    values["tags"] = tuple(sorted(row.tags.split("\n"))) if row.tags else ()
    results = {field.name: getattr(row, f"results_{field.name}") for field in fields(Results)}
    results["flags"] = tuple(row.results_flags.split("; ")) if row.results_flags else ()
    return Run(**values, results=Results() if row.results_run_id is None else Results(**results))


def readable_run(row: Row[Any]) -> Run | None:
    """Return the run in a row of RUNS; None if this version cannot read it, for example because it is damaged."""
    try:
        return to_run(row)
    except UNREADABLE as error:
        log.warning("run %d is left out, this version cannot read it: %s", row.id, error_message(error))
        return None


def devices_of(text: str) -> list[str]:
    """Return the devices in a run's `devices` column; an empty list if it is damaged."""
    try:
        return [str(device) for device in json.loads(text)]
    except UNREADABLE:
        return []


def run_values(spec: specs.Spec, name: str, now: float) -> dict[str, Any]:
    """Return the columns of a new run except its state. Errors: Refused if the name is too long."""
    if len(name) > LONGEST_NAME:
        raise Refused(f"a run's name has at most {LONGEST_NAME} characters, this one {len(name):,}")
    return {
        "kind": spec.kind,
        "name": storable(name),
        "spec": spec.model_dump_json(),
        "summary": storable(spec.summary),
        "devices": json.dumps(sorted(spec.devices)),
        "exclusive": spec.exclusive,
        "created_at": now,
        "tries_left": spec.attempts,
    }


def storable(text: str) -> str:
    """Return text that every database accepts: at most LONGEST_TEXT characters, without NUL and lone surrogates."""
    return text[:LONGEST_TEXT].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
