"""Insert runs that were made on another machine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select

from engine.results import Environment, Metric, Row
from engine.specs import Spec
from engine.store.attempts import insert_event
from engine.store.database import Database
from engine.store.listing import insert_listing, set_results
from engine.store.model import StoredArtifact
from engine.store.records import mark_change, run_values
from engine.store.tables import changes, run_tags, runs


@dataclass(frozen=True)
class Imported:
    """A run that has ended, with all its results."""

    spec: Spec
    columns: dict[str, Any]
    """Values for the table `runs`: state, cause, error, progress and times."""
    name: str
    environment: Environment | None
    rows: list[Row]
    metrics: list[Metric]
    artifacts: list[StoredArtifact]
    notes: str = ""
    tags: tuple[str, ...] = ()


def insert_run(database: Database, imported: Imported, key: str, write_files: Callable[[int], None]) -> int:
    """Insert a run under a key and return its id; return the id of an earlier run with the same key instead.

    The files are written inside the transaction, before any reader can see the run.
    """
    with database.write() as connection:
        if (run_id_before := connection.scalar(select(runs.c.id).where(runs.c.key == key))) is not None:
            return int(run_id_before)
        values = run_values(imported.spec, imported.name, imported.columns["created_at"]) | imported.columns
        environment = imported.environment.model_dump_json() if imported.environment else None
        values |= {"key": key, "environment": environment, "notes": imported.notes}
        # One attempt was made elsewhere. A retry gets the next number, so it keeps the imported files.
        values |= {"attempt": 1, "tries_left": 0}
        values["revision"] = select(changes.c.revision + 1).scalar_subquery()
        run_id = int(connection.execute(insert(runs).values(values).returning(runs.c.id)).scalar_one())
        insert_listing(connection, run_id, imported.spec, imported.name, imported.notes)
        if imported.tags:
            connection.execute(insert(run_tags), [{"run_id": run_id, "tag": tag} for tag in imported.tags])
        mark_change(connection)
        for event in (*imported.rows, *imported.metrics, *imported.artifacts):
            insert_event(connection, run_id, 0, event)
        set_results(connection, run_id)
        write_files(run_id)
        return run_id
