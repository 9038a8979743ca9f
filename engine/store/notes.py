"""Tags and notes that people add to runs."""

from collections.abc import Iterable

from sqlalchemy import Connection, delete, func, insert, select

from engine.specs import Refused
from engine.store.database import Database
from engine.store.listing import searchable, set_text
from engine.store.records import change_run, storable
from engine.store.tables import run_tags, runs

LONGEST_TAG, MOST_TAGS, LONGEST_NOTES = 40, 20, 10_000


def tag(text: str) -> str:
    """Return a tag in its stored form, with single spaces. Errors: Refused."""
    stored = " ".join(text.split())
    if not stored or len(stored) > LONGEST_TAG or "," in stored or not stored.isprintable():
        raise Refused(f"a tag has 1 to {LONGEST_TAG} characters and no comma, unlike {text[: 2 * LONGEST_TAG]!r}")
    return stored


def tags(database: Database) -> dict[str, int]:
    """Return the number of runs of every tag."""
    counted = select(run_tags.c.tag, func.count()).group_by(run_tags.c.tag).order_by(run_tags.c.tag)
    with database.read() as connection:
        return {name: number for name, number in connection.execute(counted)}


def set_tags(database: Database, run_id: int, wanted: Iterable[str]) -> None:
    """Replace the tags of a run. Errors: LookupError, Refused."""
    stored = [tag(text) for text in wanted]
    with database.write() as connection:
        _replace(connection, run_id, stored)


def change_tags(
    database: Database, run_ids: Iterable[int], add: Iterable[str] = (), remove: Iterable[str] = ()
) -> None:
    """Add and remove tags of several runs, all or none. Errors: LookupError, Refused."""
    added, removed = [tag(text) for text in add], {tag(text) for text in remove}
    with database.write() as connection:
        for run_id in run_ids:
            current = connection.scalars(select(run_tags.c.tag).where(run_tags.c.run_id == run_id))
            _replace(connection, run_id, [name for name in (*current, *added) if name not in removed])


def set_notes(database: Database, run_id: int, notes: str) -> None:
    """Replace the notes of a run. Errors: LookupError, Refused."""
    if len(notes) > LONGEST_NOTES:
        raise Refused(f"notes have at most {LONGEST_NOTES:,} characters, these {len(notes):,}")
    stored = storable(notes)
    with database.write() as connection:
        _change(connection, run_id, notes=stored)
        row = connection.execute(select(runs.c.name, runs.c.summary).where(runs.c.id == run_id)).one()
        set_text(connection, run_id, searchable(row.name, row.summary, stored))


def _replace(connection: Connection, run_id: int, wanted: list[str]) -> None:
    unique_tags = list(dict.fromkeys(wanted))
    if len(unique_tags) > MOST_TAGS:
        raise Refused(f"a run has at most {MOST_TAGS} tags, and run {run_id} would have {len(unique_tags)}")
    _change(connection, run_id)
    connection.execute(delete(run_tags).where(run_tags.c.run_id == run_id))
    if unique_tags:
        connection.execute(insert(run_tags), [{"run_id": run_id, "tag": name} for name in unique_tags])


def _change(connection: Connection, run_id: int, **values: str) -> None:
    if not change_run(connection, runs.c.id == run_id, **values):
        raise LookupError(f"there is no run {run_id}")
