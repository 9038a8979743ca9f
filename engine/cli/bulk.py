"""The commands runs tag, note, rows, delete, prune, restore and storage, which work on existing runs."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from engine.cli.here import EndedBadly, OneRun, RunId, refuse_open, store_here
from engine.cli.listing import Words, run_filter
from engine.cli.output import OutputFile, note, printable
from engine.settings import Settings
from engine.specs import Refused
from engine.words import plural

if TYPE_CHECKING:
    from engine.store import Store


class Several(BaseModel):
    """One or more runs, given by their ids."""

    run_ids: CliPositionalArg[list[RunId]] = Field(min_length=1, description="The ids that `runs list` shows.")


class Tag(Several):
    """Add tags to runs, and remove tags."""

    add: Words = Field((), description="Tags to add, comma-separated.")
    remove: Words = Field((), description="Tags to remove, comma-separated.")

    def cli_cmd(self) -> None:
        with store_here() as store:
            if self.add or self.remove:
                store.change_tags(self.run_ids, add=self.add, remove=self.remove)
            for run_id in self.run_ids:
                print(f"run {run_id}: {', '.join(store.run(run_id).tags) or 'no tags'}")


class Note(OneRun):
    """Replace the notes of a run."""

    text: CliPositionalArg[str] = Field(description="The notes; '' removes them.")

    def cli_cmd(self) -> None:
        with store_here() as store:
            store.set_notes(self.run_id, self.text)
        print(f"run {self.run_id} has {'these notes' if self.text else 'no notes'}")


class Rows(Several):
    """Write the rows of runs to one table; runs of several kinds give a zip file with one table per kind."""

    output: OutputFile | None = Field(
        None, description="The file to write. Default: rows.csv, rows.json, rows.parquet or rows.zip."
    )
    format: Literal["csv", "json", "parquet"] = Field("csv", description="File format of the tables.")

    def cli_cmd(self) -> None:
        from engine.report.export import bulk
        from engine.report.export import tables as export_tables

        ending = self.output.suffix.removeprefix(".") if self.output else self.format
        if ending in export_tables.FORMATS and ending != self.format:
            raise Refused(f"{self.output} would be {self.format}: say --format {ending}, or name another file")
        with store_here() as store:
            tables = bulk.rows(store, self.run_ids)
        path = self.output or Path(f"rows.{self.format}" if len(tables) == 1 else "rows.zip")
        path.write_bytes(bulk.written(tables, self.format))
        print(path)


class Delete(Several):
    """Delete ended runs with all their files."""

    yes: bool = Field(False, description="Confirm. Without this, several runs are only counted, not deleted.")

    def cli_cmd(self) -> None:
        ids = list(dict.fromkeys(self.run_ids))
        with store_here() as store:
            if len(ids) == 1:
                from engine import jobs

                jobs.delete_run(store, Settings(), ids[0])
                print(f"run {ids[0]} is deleted")
            else:
                _delete(store, ids, yes=self.yes)


class Prune(BaseModel):
    """Delete ended runs that are older than some days, with all their files. Runs with tags or notes are kept."""

    days: float = Field(ge=0, le=36_500, description="Delete runs that ended longer than this many days ago.")
    kind: Words = Field((), description="Only these kinds: profile, train, ...; comma-separated.")
    state: Words = Field((), description="Only these states: finished, failed, cancelled; comma-separated.")
    yes: bool = Field(False, description="Confirm. Without this, the runs are only counted, not deleted.")

    def cli_cmd(self) -> None:
        before = time.time() - 86_400 * self.days
        wanted = run_filter(self.kind, self.state, ended_before=before, unmarked=True)
        with store_here() as store:
            if ids := store.ids(wanted):
                _delete(store, ids, yes=self.yes)
            else:
                print("no run is that old")


def _delete(store: "Store", ids: list[int], *, yes: bool) -> None:
    """Delete runs. Errors: Refused without `yes`; EndedBadly when some could not be deleted."""
    from engine import jobs
    from engine.store import storage

    settings = Settings()
    if not yes:
        size = storage.of_runs(settings, ids)
        message = f"{plural(len(ids), 'run')} with {plural(size.files, 'file')} of {size.bytes / 1e6:,.1f} MB"
        raise Refused(f"{message} would be deleted for good: say so with --yes")
    failures = 0
    for run_id in ids:
        try:
            jobs.delete_run(store, settings, run_id)
            print(f"run {run_id} is deleted")
        except (Refused, LookupError) as refusal:
            note(str(refusal))
            failures += 1
    if failures:
        raise EndedBadly(f"{failures} of {len(ids)} runs could not be deleted")


class Upload(Several):
    """Copy the files of ended runs of this machine to VITALS_ARTIFACTS_URL, where that failed or was not set yet."""

    def cli_cmd(self) -> None:
        from engine.store import mirror

        settings = Settings()
        if not settings.artifacts_url:
            raise Refused("VITALS_ARTIFACTS_URL is not set, so there is no place to copy files to")
        with store_here() as store:
            for run in map(store.run, self.run_ids):
                mirror.upload(settings, run)
                print(f"the files of run {run.id} are in {settings.artifacts_url}")


class Restore(BaseModel):
    """Rebuild a damaged store from its readable parts. The damaged file and the folders of runs are kept."""

    def cli_cmd(self) -> None:
        from engine.store import restore

        settings = Settings()
        restore.check_damage(settings)
        refuse_open(restore.store_file(settings))
        restored = restore.restore(settings)
        print(f"the damaged store is kept as {restored.aside}")
        for name in ("runs", "rows", "metrics", "artifacts"):
            kept, found = restored.kept[name], restored.found[name]
            lost = "an unknown number lost" if found is None else f"{max(found - kept, 0):,} lost"
            print(f"{name:10} {kept:>10,} brought over, {lost}")
        if not any(restored.kept.values()):
            note("nothing of it could be read: the store is empty now, and the folders of its runs are still there")


class Storage(BaseModel):
    """Show how much disk space runs use, and which runs use most."""

    def cli_cmd(self) -> None:
        from engine.store import storage

        settings = Settings()
        with store_here() as store:
            used, largest = storage.usage(store.database, settings), storage.largest(store.database)
        mine, others = storage.folders(settings)
        print(f"{'runs':10} {used.runs:>12,}")
        for name, taken in (("database", used.database), ("free", used.free)):
            print(f"{name:10} {taken / 1e6:>12,.1f} MB")
        for name, size in (("artifacts", used.artifacts), ("folders", mine), ("other", others)):
            print(f"{name:10} {size.bytes / 1e6:>12,.1f} MB in {size.files:,} files")
        if largest:
            note("largest by their artifacts:")
        for run in largest:
            print(f"run {run.run_id:>6} {run.artifacts.bytes / 1e6:>12,.1f} MB  {run.kind:10} {printable(run.what)}")
