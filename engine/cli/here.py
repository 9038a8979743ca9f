"""Shared by commands: the store of these settings, requests from flags, foreground runs, run ids as arguments."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field
from pydantic_settings import CliApp, CliPositionalArg, CliSubCommand, ForceDecode

from engine.cli.output import (
    SHOWN,
    TableFile,
    brief,
    clear_progress,
    describe_row,
    note,
    print_progress,
    printable,
    show_table,
)
from engine.names import ModelNotFound, expand_files, select
from engine.results import Event, Row
from engine.results.checkpoints import mark_lost
from engine.settings import Settings
from engine.shipped import families
from engine.specs import BenchmarkSpec, RecurrentSpec, Refused, Spec
from engine.words import plural, sentence

if TYPE_CHECKING:
    import pandas as pd

    from engine.store import Run, Store

MOST_NOTES = 5
"""Print at most this many different notes of rows."""
RunId = Annotated[int, Field(ge=1, lt=2**63)]
RunName = Annotated[str, Field(description="A name that lists of runs show.")]


class Group(BaseModel):
    """A command with commands below it."""

    def cli_cmd(self) -> None:
        CliApp.run_subcommand(self)


def subcommands(*commands: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Return the fields of a Group: a command for each class, listed with the first line of its docstring.

    A command has the name of its class in lower case, without the prefix: `catalog_build` for CatalogBuild.
    """
    fields: dict[str, Any] = {}
    subcommand: Any = CliSubCommand
    for command in commands:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", command.__name__.removeprefix(prefix)).lower()
        help_text = (command.__doc__ or "").strip().partition("\n")[0]
        key = f"{name}_" if hasattr(BaseModel, name) else name  # such as `copy`
        # decoded, because a command without flags arrives as JSON, `{}`
        fields[key] = Annotated[subcommand[command], ForceDecode], Field(alias=name, description=help_text)
    return fields


class EndedBadly(Exception):
    """Raised when the command ran and a part of its work failed; leads to exit code 1."""


@contextmanager
def store_here() -> "Iterator[Store]":
    """Open the store of the environment's settings, and close it afterwards."""
    from engine.store import open_store

    with closing(open_store(Settings())) as store:
        yield store


def refuse_open(path: Path) -> None:
    """Check that no process of this host has the file of a SQLite store open. Errors: Refused."""
    from engine.jobs.lifecycle import processes_with

    if users := processes_with(path):
        listed = ", ".join(f"{pid} ({printable(command)})" for pid, command in users.items())
        raise Refused(
            f"the store {path} is open in process {listed}. Stop the app, run `python -m engine stop`, let active runs "
            "end, and only then end what is left with `kill` and the process's number"
        )


def run_here(
    store: "Store", spec: Spec, *, name: str = "", on_event: Callable[[Event], None] = print_progress
) -> tuple["Run", list[Any]]:
    """Do a run in this process, print its progress, and return the ended run and its rows.

    on_event: prints an event as soon as it comes. Before the first one of a timing, its expected duration is printed.
    Errors: Refused when the run was refused before its first row; EndedBadly when it failed or was cancelled before, so
    that no file of rows is replaced by an empty one.
    """
    from engine.jobs import foreground
    from engine.store import Cause, State

    started = False

    def report(event: Event) -> None:
        nonlocal started
        if not started:
            _note_duration(store, spec)
        started = True
        on_event(event)

    run_id = foreground.run_here(store, Settings(), spec, on_event=report, name=name)
    clear_progress()
    run, rows = store.run(run_id), store.rows(run_id)
    if run.cause == Cause.REFUSED and not rows:
        raise Refused(run.error)
    if run.state != State.FINISHED and not rows:
        conclude(run, rows)
    return run, rows


def show_rows(run: "Run", rows: Sequence[Row], output: Path | None) -> None:
    """Print the main columns of a run's rows, or write all columns to a file if `output` is given."""
    from engine.report.export import bulk

    with store_here() as store:
        frame = bulk.of_run(store, run, rows)
    show_table(frame, main_columns(run, frame), output)


def main_columns(run: "Run", frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return the columns of a run's rows that a terminal shows.

    A training also shows the metric that decides its best checkpoint. Checkpoints that are gone have a mark.
    """
    from engine.jobs import checkpoints
    from engine.store.copies import remote

    deciding = frame["best_metric"] if run.kind == "train" else ()
    short = brief(frame, list(dict.fromkeys([*SHOWN[run.kind], *deciding])))
    if run.kind == "train" and "checkpoint" in short:
        with suppress(remote.Unreachable):  # then nobody knows which are left
            names = {path.name for path in checkpoints.versions(Settings(), run)}
            short = short.assign(checkpoint=mark_lost(list(short["checkpoint"]), names))
    return short


def conclude(run: "Run", rows: Sequence[Row]) -> None:
    """Print notes and errors of rows, and the folder of a finished run. Errors: EndedBadly when anything failed."""
    from engine.store import State
    from engine.store.files import RunFiles

    notes = Counter(text for row in rows for text in getattr(row, "notes", ()))
    for text, count in notes.most_common(MOST_NOTES):
        note(f"note on {plural(count, 'row')}: {printable(text)}")
    if len(notes) > MOST_NOTES:
        note(f"{plural(len(notes) - MOST_NOTES, 'other note')}: see the column notes of `runs rows {run.id}`")
    if (failed := note_failed(rows)) or run.state != State.FINISHED:
        ending = "" if rows else ", without a row"
        if failed:
            ending = f": {failed} of {plural(len(rows), 'row')} failed"
        parts = [f"run {run.id} {run.state}{ending}", printable(run.error), _how_to_resume(run)]
        raise EndedBadly(" ".join(sentence(part) for part in parts if part))
    note(f"run {run.id} finished; its files are in {RunFiles(Settings().runs_dir, run.id).dir}")


def note_failed(rows: Sequence[Row]) -> int:
    """Print the error of each failed row, and return their number."""
    failed = [row for row in rows if row.status != "ok"]
    for row in failed:
        note(f"{describe_row(row)} failed ({row.status}): {printable(row.error)}")
    return len(failed)


def _how_to_resume(run: "Run") -> str:
    """Return the command that queues an ended run again; empty if it would be refused."""
    from engine.jobs import checkpoints
    from engine.store import RETRYABLE

    if run.state not in RETRYABLE:
        return ""
    with store_here() as store:
        try:
            checkpoints.check_resumable(store, Settings(), run)
        except Refused:
            return ""
    return f"`python -m engine resume {run.id}` queues it again."


def submit(spec: Spec, name: str) -> None:
    """Queue a run and print its id, its position in the queue and, if it is a timing, its expected duration."""
    from engine import jobs

    with store_here() as store:
        run_id = jobs.submit(store, Settings(), spec, name=name)
        position = store.position(run_id)
        print(f"queued as run {run_id}" + (f", position {position}" if position else ""))
        _note_duration(store, spec)


def _note_duration(store: "Store", spec: Spec) -> None:
    """Print how long a run is likely to take, if it is a timing."""
    if not isinstance(spec, BenchmarkSpec | RecurrentSpec):
        return
    from engine.report.catalog import catalog
    from engine.report.timings.durations import Durations
    from engine.store import Unavailable

    folder = Settings().catalog_dir
    try:
        models = select(spec, families(folder), allow_code=True)
        note(f"expected duration: {Durations(store).timing(spec, models, catalog.read(folder))}")
    except (ModelNotFound, Refused):  # the installed libraries may have models that the catalogue lacks
        pass
    except Unavailable as error:  # a damaged row of an earlier run, or a lost connection, must not end this one
        note(f"no expected duration: {error}")


class Flags(BaseModel):
    """A command with the fields of a spec as flags. A subclass inherits the spec too."""

    def given(self) -> dict[str, Any]:
        """Return the fields of the spec that the user gave. Files with models are read. Errors: Refused."""
        fields = self.model_dump(include=set(self._spec_type().model_fields), exclude_unset=True)
        if "models" in fields:
            fields["models"], configs = expand_files(fields["models"])
            fields["configs"] = fields.get("configs", {}) | configs
        return fields

    def spec(self) -> Spec:
        """Return the spec of these flags, and say which given ones have no effect. Errors: those of `given`."""
        spec = self._spec_type().model_validate(self.given())
        for given, reason in spec.unused.items():
            name, space, value = given.partition(" ")
            if name in self.model_fields_set:
                note(f"--{name.replace('_', '-')}{space}{value} has no effect: {reason}")
        return spec

    def _spec_type(self) -> type[Spec]:
        return next(base for base in type(self).__mro__ if issubclass(base, Spec) and "kind" in vars(base))


class RunHere(Flags):
    """A command that does the run of its flags in this process."""

    output: TableFile | None = Field(
        None, description="Write the rows to this .csv, .json or .parquet file; - prints CSV."
    )

    def cli_cmd(self) -> None:
        with store_here() as store:
            run, rows = run_here(store, self.spec())
        show_rows(run, rows, self.output)
        conclude(run, rows)


class Queued(Flags):
    """A command that queues the run of its flags."""

    name: RunName = ""

    def cli_cmd(self) -> None:
        submit(self.spec(), self.name)


class OneRun(BaseModel):
    """One run, given by its id."""

    run_id: CliPositionalArg[RunId] = Field(description="The id that `runs list` shows.")
