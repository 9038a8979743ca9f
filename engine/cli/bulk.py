"""The commands runs list, tag, note, rows, delete, prune, upload, restore and storage, which work on many runs."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field
from pydantic_settings import CliPositionalArg, ForceDecode
from typing_extensions import TypeAliasType

from engine import atomic
from engine.cli.here import EndedBadly, OneRun, RunId, refuse_open, store_here
from engine.cli.output import STDOUT, TableFile, note, printable, save_table, table_format, writable
from engine.results import kinds
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.base import unique
from engine.specs.fields.timed import split_words
from engine.words import numbered_runs, plural

if TYPE_CHECKING:
    from engine.store import Filter, Store

ORDER = Literal["newest", "oldest", "loss", "held_out_loss", "accuracy", "latency"]
WORDS = TypeAliasType("WORDS", Annotated[tuple[str, ...], split_words])


class List(BaseModel, str_strip_whitespace=True):
    """List the runs that match all of these filters, newest first unless --order says otherwise."""

    kind: WORDS = Field((), description="profile, train, ...; comma-separated.")
    state: WORDS = Field((), description="queued, running, finished, failed, ...; comma-separated.")
    model: str = Field("", description="Part of a model's name, or a full name with * or ?; timm:NAME for one library.")
    device: str = Field("", description="cpu, cuda:0, ...")
    tag: WORDS = Field((), description="Only runs with all of these tags, comma-separated.")
    text: str = Field("", description="Words in the name, summary, notes or error.")
    order: ORDER = Field("newest", description="Order over all pages. Runs without the value come last.")
    limit: int = Field(30, ge=1, le=10_000, description="Runs per page.")
    page: int = Field(1, ge=1, le=10_000_000, description="Number of the page.")
    output: TableFile | None = Field(
        None, description="Write the runs of all pages to this .csv, .json or .parquet file instead; - prints CSV."
    )

    def cli_cmd(self) -> None:
        same = self.model_dump(include={"model", "device", "text", "order"})
        wanted = run_filter(self.kind, self.state, tags=self.tag, **same)
        from engine.store import Filter

        with store_here() as store:
            if self.output:
                from engine.report.export import bulk  # imports pandas

                save_table(bulk.runs(store, wanted), self.output, "run")
                return
            runs = store.find(wanted, limit=self.limit, offset=(self.page - 1) * self.limit)
            total = store.count(wanted)
        if not total:
            note("no run matches" if wanted != Filter(order=self.order) else "no runs yet")
            return
        print(f"{'id':>5}  {'kind':10} {'state':20} {'done':>9}  {'created (UTC)':17} what")
        for run in runs:
            done = f"{run.done}/{run.total}" if run.total else ""
            what = printable(run.name or run.spec.summary) + "".join(f"  #{tag}" for tag in run.tags)
            created = f"{run.created_at:%Y-%m-%d %H:%M}"
            print(f"{run.id:>5}  {run.kind:10} {run.outcome:20} {done:>9}  {created:17} {what}")
        if total > len(runs):
            note(f"{len(runs)} of {plural(total, 'run')}; --page and --limit show others, --output writes all of them")


def run_filter(kind: tuple[str, ...], state: tuple[str, ...], **others: Any) -> "Filter":
    """Return a filter of the store. others: its other fields. Errors: Refused for an unknown kind or state."""
    from engine.store.find import OUTCOMES, Filter

    for name, given, known in (("kind", kind, sorted(kinds())), ("state", state, OUTCOMES)):
        if unknown := [word for word in given if word not in known]:
            raise Refused(f"{name} {unknown[0]!r} is not one of {', '.join(known)}")
    return Filter(kinds=kind, outcomes=state, **others)


class Several(BaseModel):
    """One or more runs, given by their ids."""

    run_ids: Annotated[CliPositionalArg[tuple[RunId, ...]], ForceDecode, unique] = Field(
        description="The ids that `runs list` shows."
    )


class Tag(Several):
    """Add tags to runs, and remove tags."""

    add: WORDS = Field((), description="Tags to add, comma-separated.")
    remove: WORDS = Field((), description="Tags to remove, comma-separated.")

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
    """Write the rows of runs to one table; runs of several kinds need a zip file, which has one table per kind."""

    output: Annotated[Path, AfterValidator(lambda path: path if path == STDOUT else writable(path))] | None = Field(
        None,
        description="The file to write; - prints the table. Default: rows.csv, rows.json, rows.parquet or rows.zip.",
    )
    format: Literal["csv", "json", "parquet"] | None = Field(
        None, description="File format of the tables. Default: that of --output, or csv."
    )

    def cli_cmd(self) -> None:
        from engine.report.export import bulk

        ending = self.output.suffix.removeprefix(".") if self.output else ""
        format = table_format(self.output, self.format) or "csv"
        if not self.format and ending not in ("", "zip", format):
            raise Refused(f"{self.output} is no .csv, .json, .parquet or .zip file. Rename it, or give --format.")
        if (self.output, format) == (STDOUT, "parquet"):
            raise Refused("parquet is not for a terminal: give --output FILE instead of -")
        with store_here() as store:
            run_kinds = dict.fromkeys(store.run(run_id).kind for run_id in self.run_ids)
            path = self.output or Path(f"rows.{format}" if len(run_kinds) == 1 else "rows.zip")
            zipped = path.suffix == ".zip"
            if len(run_kinds) > 1 and not zipped:
                raise Refused(
                    f"these runs are of {len(run_kinds)} kinds ({', '.join(run_kinds)}), and {path.name} takes one "
                    f"table. Give --output FILE.zip --format {format}, or runs of one kind."
                )
            tables = bulk.rows(store, self.run_ids)
        content = bulk.written(tables, format, zipped=zipped)
        if path == STDOUT:
            print(content.decode().rstrip("\n"))
            return
        atomic.export(path, content)
        print(path)


class Delete(Several):
    """Delete ended runs with all their files."""

    yes: bool = Field(False, description="Confirm the deletion of several runs, or of a run from which others began.")

    def cli_cmd(self) -> None:
        from engine.store import Filter

        with store_here() as store:
            existing = set(store.ids(Filter()))  # also damaged runs, which can only be deleted
            if missing := [run_id for run_id in self.run_ids if run_id not in existing]:
                raise LookupError(f"there is no run {missing[0]}")
            _delete(store, self.run_ids, yes=self.yes, alone=len(self.run_ids) == 1)


class Prune(BaseModel):
    """Delete ended runs that are older than some days, with all their files. Runs with tags or notes are kept.

    With VITALS_ARTIFACTS_URL, also delete this machine's files of runs that were deleted on other machines.
    """

    days: float = Field(ge=0, le=36_500, description="Delete runs that ended longer than this many days ago.")
    kind: WORDS = Field((), description="Only these kinds: profile, train, ...; comma-separated.")
    state: WORDS = Field((), description="Only these states: finished, failed, cancelled; comma-separated.")
    yes: bool = Field(False, description="Confirm. Without this, the runs are only counted, not deleted.")

    def cli_cmd(self) -> None:
        from engine.store.copies import deletions
        from engine.store.files import RunFiles

        settings, before = Settings(), time.time() - 86_400 * self.days
        wanted = run_filter(self.kind, self.state, ended_before=before, unmarked=True)
        with store_here() as store:
            for run_id in deletions.deleted_elsewhere(settings, store.database):
                if self.yes:
                    RunFiles(settings.runs_dir, run_id).remove()
                verb = "is deleted" if self.yes else "would be deleted too"
                print(f"run {run_id} was deleted on another machine, and its folder here {verb}")
            if not (ids := store.ids(wanted)):
                print("no run matches")
            elif self.yes:
                _delete(store, ids, yes=True)
            else:
                what, warning = _preview(store, ids)
                print(f"{what} would be deleted permanently. {warning}Add --yes to delete.")


def _preview(store: "Store", ids: Sequence[int]) -> tuple[str, str]:
    """Return what a deletion of runs deletes, and a warning with a space at its end; empty without one."""
    from engine.jobs import named_files
    from engine.store import storage

    settings = Settings()
    size, warning = storage.of_runs(settings, ids), named_files.deletion_warning(store, settings, ids)
    what = f"{plural(len(ids), 'run')} with {plural(size.files, 'file')} of {size.bytes / 1e6:,.1f} MB"
    return what, f"{warning} " if warning else ""


def _delete(store: "Store", ids: Sequence[int], *, yes: bool, alone: bool = False) -> None:
    """Delete runs. Errors: Refused without `yes`; EndedBadly when some could not be deleted.

    alone: a single run that the user named, which needs no `yes` unless others began from it.
    """
    from engine import jobs

    settings = Settings()
    if not yes:
        what, warning = _preview(store, ids)
        if warning or not alone:
            raise Refused(f"This deletes {what} permanently. {warning}Add --yes to confirm.")
    failures = 0
    for run_id in ids:
        try:
            jobs.delete_run(store, settings, run_id)
            print(f"run {run_id} is deleted")
        except (Refused, LookupError) as refusal:
            if alone:
                raise
            note(str(refusal))
            failures += 1
    if failures:
        raise EndedBadly(f"{failures} of {plural(len(ids), 'run')} could not be deleted")


class Upload(Several):
    """Copy the files of runs of this machine to VITALS_ARTIFACTS_URL, if they were not copied when the runs ended."""

    def cli_cmd(self) -> None:
        from engine.store.copies import mirror

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
        from engine.store.backup import restore

        settings = Settings()
        restore.check_damage(settings)
        refuse_open(restore.store_file(settings))
        aside, kept, found = restore.restore(settings)
        print(f"the damaged store is kept as {aside}")
        for name in ("runs", "rows", "metrics", "artifacts"):
            rows = found[name]
            lost = "an unknown number lost" if rows is None else f"{max(rows - kept[name], 0):,} lost"
            print(f"{name:10} {kept[name]:>10,} brought over, {lost}")
        if not any(kept.values()):
            note("No part of the damaged store could be read. The new store is empty. The run folders are unchanged.")


class Storage(BaseModel):
    """Show how much disk space runs use, and which runs use most."""

    def cli_cmd(self) -> None:
        from engine.store import storage
        from engine.store.copies import deletions, remote

        settings = Settings()
        with store_here() as store:
            folders, other_files = storage.folders(settings)
            used, largest = storage.usage(store.database, settings), storage.largest(store.database, folders)
            try:
                deleted = deletions.deleted_elsewhere(settings, store.database)
            except remote.Unreachable as error:
                note(f"Folders of runs that other machines have deleted are not listed: {error}")
                deleted = []
        run_folders = storage.total(folders.values())
        print(f"{'runs':10} {used.runs:>12,}")
        for name, taken in (("database", used.database), ("free", used.free)):
            print(f"{name:10} {taken / 1e6:>12,.1f} MB")
        for name, size in (("artifacts", used.artifacts), ("folders", run_folders), ("other", other_files)):
            print(f"{name:10} {size.bytes / 1e6:>12,.1f} MB in {plural(size.files, 'file')}")
        if deleted:
            size = storage.of_runs(settings, deleted)
            note(
                f"{size.bytes / 1e6:,.1f} MB of the folders belong to {numbered_runs(deleted)}, deleted on another "
                "machine: `runs prune` deletes them here"
            )
        if largest:
            note("largest:")
        for run in largest:
            print(f"run {run.run_id:>6} {run.files.bytes / 1e6:>12,.1f} MB  {run.kind:10} {printable(run.what)}")
