"""Runs that were made elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select

from engine.results import Environment, Metric, Row
from engine.specs import Spec
from engine.store.attempts import insert_event
from engine.store.database import Database
from engine.store.listing import insert_listing
from engine.store.model import StoredArtifact
from engine.store.records import mark_change, run_values
from engine.store.tables import changes, run_tags, runs


@dataclass(frozen=True)
class Imported:
    """A run that has ended, with all that came of it."""

    spec: Spec
    columns: dict[str, Any]
    """Of `runs`: state, cause, error and the moments."""
    name: str
    environment: Environment | None
    rows: list[Row]
    metrics: list[Metric]
    artifacts: list[StoredArtifact]
    notes: str = ""
    tags: tuple[str, ...] = ()


def insert_run(database: Database, imported: Imported, key: str, write_files: Callable[[int], None]) -> int:
    """Return the id of the run inserted under this key, now or before. Files are written before anybody can see the
    run."""
    with database.write() as connection:
        if (known := connection.scalar(select(runs.c.id).where(runs.c.key == key))) is not None:
            return int(known)
        values = run_values(imported.spec, imported.name, imported.columns["created_at"]) | imported.columns
        environment = imported.environment.model_dump_json() if imported.environment else None
        values |= {"key": key, "environment": environment, "notes": imported.notes}
        # It was tried elsewhere: a retry is a later attempt, which keeps the imported files.
        values |= {"attempt": 1, "tries_left": 0}
        values["revision"] = select(changes.c.revision + 1).scalar_subquery()
        run_id = int(connection.execute(insert(runs).values(values).returning(runs.c.id)).scalar_one())
        insert_listing(connection, run_id, imported.spec, imported.name, imported.notes)
        if imported.tags:
            connection.execute(insert(run_tags), [{"run_id": run_id, "tag": tag} for tag in imported.tags])
        mark_change(connection)
        for event in (*imported.rows, *imported.metrics, *imported.artifacts):
            insert_event(connection, run_id, 0, event)
        write_files(run_id)
        return run_id
