"""Deletion of runs whose files are on several machines, each with a runs folder of its own and VITALS_ARTIFACTS_URL.

A deletion leaves an empty mark, URL/deleted/7-20261124T184512000000. Another machine deletes its folder of a run only
if the folder says that it holds a run with such a mark. So files of an earlier store or of another one always stay.
"""

from contextlib import suppress

from sqlalchemy import select

from engine.settings import Settings
from engine.store.copies.mirror import place_name
from engine.store.copies.remote import reaching
from engine.store.database import Database
from engine.store.files import held_by
from engine.store.model import Run
from engine.store.tables import runs

MARKS = "deleted"
"""The folder of marks below the URL."""


def delete_copies(settings: Settings, run: Run) -> None:
    """Delete the copies of a run's files, and leave a mark for machines that have its files. Errors: Unreachable."""
    if settings.artifacts_url:
        with reaching(settings.artifacts_url, name := place_name(run)) as (remote, folder):
            remote.pipe_file(f"{folder.removesuffix(name)}{MARKS}/{name}", b"")
            with suppress(FileNotFoundError):
                remote.rm(folder, recursive=True)


def deleted_elsewhere(settings: Settings, database: Database) -> list[int]:
    """Return the runs that were deleted on other machines and have a folder here, sorted. Errors: Unreachable."""
    if not settings.artifacts_url:
        return []
    names = {int(path.name): held_by(path) for path in settings.runs_dir.iterdir() if path.name.isdecimal()}
    existing = {run.id for run in database.rows(select(runs.c.id))}
    with reaching(settings.artifacts_url, MARKS) as (remote, marks):
        return sorted(
            run_id
            for run_id, name in names.items()
            if name and run_id not in existing and remote.exists(f"{marks}/{name}")
        )
