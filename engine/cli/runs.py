"""runs, resume: what was asked for, how it stands, and what came of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from pydantic import BaseModel, Field
from pydantic_settings import CliApp, CliPositionalArg, CliSubCommand

from engine.cli.bulk import Delete, Note, Rows, Storage, Tag
from engine.cli.listing import List
from engine.cli.output import OutputFile, note, print_progress, printable
from engine.results import Row
from engine.settings import Settings
from engine.specs import Refused, Spec

if TYPE_CHECKING:
    from engine.store import Run, Store

R = TypeVar("R", bound=Row)


class EndedBadly(Exception):
    """The command did what was asked, and some of it failed: exit code 1."""


@contextmanager
def store_here() -> "Iterator[Store]":
    """The store that the environment names, closed afterwards."""
    from engine.store import open_store

    with closing(open_store(Settings())) as store:
        yield store


def run_here(store: "Store", spec: Spec, rows: type[R], *, name: str = "") -> tuple["Run", list[R]]:
    """Do a run here and now, telling how it goes: the run as it has ended, and its rows, which are of this class."""
    from engine.jobs import foreground

    run_id = foreground.run_here(store, Settings(), spec, on_event=print_progress, name=name)
    return store.run(run_id), cast(list[R], store.rows(run_id))


def tell_failures(run: "Run", rows: Sequence[R], name: Callable[[R], str]) -> None:
    """Say which rows have failed, and why. Errors: Refused where the run was; EndedBadly where anything failed."""
    from engine.store import Cause, State

    if run.cause == Cause.REFUSED:
        raise Refused(run.error)
    failed = [row for row in rows if row.status != "ok"]
    for row in failed:
        note(f"{name(row)} failed ({row.status}): {printable(row.error)}")
    if failed or run.state != State.FINISHED:
        told = f": {len(failed)} of {len(rows)} rows failed" if rows else ", without any row"
        raise EndedBadly(f"run {run.id} {run.state}{told}. {run.error}".strip())


def submit(spec: Spec, name: str) -> None:
    """Queue a run and say where it stands."""
    from engine import jobs

    with store_here() as store:
        run_id = jobs.submit(store, Settings(), spec, name=name)
        position = store.position(run_id)
    print(f"queued as run {run_id}" + (f", position {position}" if position else ""))


class OneRun(BaseModel):
    """A run, by its id."""

    run_id: CliPositionalArg[int] = Field(ge=1, lt=2**63, description="The id that `runs list` shows.")


class Show(OneRun):
    """State, request, environment and rows of one run."""

    def cli_cmd(self) -> None:
        with store_here() as store:
            run, rows = store.run(self.run_id), store.rows(self.run_id)
            position = store.position(self.run_id)
        print(f"run {run.id} ({run.kind}) is {run.state}" + (f": {run.cause}" if run.cause else ""))
        if run.error:
            print(printable(run.error))
        if position is not None:
            print(f"position in the queue: {position}")
        print(f"spec         {run.spec.model_dump_json()}")
        if run.environment:
            print(f"environment  {run.environment.model_dump_json()}")
        for row in rows:
            print(f"row          {row.model_dump_json(exclude_defaults=True, exclude={'operators'})}")


class Log(OneRun):
    """The end of a run's log."""

    lines: int = Field(100, ge=1, le=100_000, description="How many lines.")

    def cli_cmd(self) -> None:
        from engine.store.files import RunFiles

        with store_here() as store:
            store.run(self.run_id)  # a run that is not there is an error, one without a log is not
        for line in RunFiles(Settings().runs_dir, self.run_id).log_tail(self.lines).splitlines():
            print(printable(line))


class Cancel(OneRun):
    """Ask a run to stop; its rows and checkpoints are kept."""

    def cli_cmd(self) -> None:
        with store_here() as store:
            store.request_cancel(self.run_id)
            run = store.run(self.run_id)
        print(f"run {run.id} is {'asked to stop' if not run.state.ended else run.state}")


class Export(OneRun):
    """Write a run as a bundle (zip) that another machine can import."""

    output: OutputFile | None = Field(None, description="The file to write; run_ID.zip when left out.")

    def cli_cmd(self) -> None:
        from engine.store.bundle import export_bundle

        path = self.output or Path(f"run_{self.run_id}.zip")
        with store_here() as store:
            path.write_bytes(export_bundle(store, Settings(), self.run_id))
        print(path)


class Import(BaseModel):
    """Take in a bundle that `runs export` wrote."""

    bundle: CliPositionalArg[Path] = Field(description="A zip file.")

    def cli_cmd(self) -> None:
        from engine.store.bundle import import_bundle

        if not self.bundle.is_file():
            raise Refused(f"no bundle at {self.bundle}")
        with store_here() as store:
            print(f"imported as run {import_bundle(store, Settings(), self.bundle)}")


class Runs(BaseModel):
    """List, show, follow, tag, export and delete runs."""

    list: CliSubCommand[List]
    show: CliSubCommand[Show]
    log: CliSubCommand[Log]
    cancel: CliSubCommand[Cancel]
    tag: CliSubCommand[Tag]
    note: CliSubCommand[Note]
    rows: CliSubCommand[Rows]
    delete: CliSubCommand[Delete]
    storage: CliSubCommand[Storage]
    export: CliSubCommand[Export]
    import_: CliSubCommand[Import] = Field(alias="import")

    def cli_cmd(self) -> None:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            List.model_construct().cli_cmd()
        else:
            CliApp.run_subcommand(self)


class Resume(BaseModel):
    """Queue a failed or cancelled run again. A training goes on from its newest checkpoint, others begin anew."""

    what: CliPositionalArg[str] = Field(
        description="A run's number; or a checkpoint, or a training's folder, from which a new run goes on."
    )

    def cli_cmd(self) -> None:
        from engine import jobs
        from engine.jobs.references import continued

        if not self.what.isdecimal():
            submit(continued(Path(self.what)), "")
            return
        with store_here() as store:
            store.retry(int(self.what))
        jobs.ensure_scheduler(Settings())
        print(f"run {self.what} is queued again")
