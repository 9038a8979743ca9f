"""The commands runs and resume: list, show and change runs."""

import json
import time
from importlib import import_module
from pathlib import Path

from pydantic import BaseModel, Field, TypeAdapter, create_model
from pydantic_settings import CliPositionalArg

from engine import atomic
from engine.cli.bulk import Delete, List, Note, Prune, Restore, Rows, Several, Storage, Tag, Upload
from engine.cli.compare import Compare
from engine.cli.here import EndedBadly, Group, OneRun, main_columns, note_failed, store_here, subcommands, submit
from engine.cli.output import OutputFile, clear_progress, note, printable, show_progress, show_table
from engine.settings import Settings
from engine.specs import Refused
from engine.words import numbered_runs, plural, shortened

POLL_S = 1.0
"""Seconds between two looks at runs that a command waits for."""


class Show(OneRun):
    """Show state, settings, environment and rows of one run as tables, or all of it as JSON."""

    json_: bool = Field(False, alias="json", description="Print one JSON object with every value instead.")

    def cli_cmd(self) -> None:
        from engine.jobs import disk

        with store_here() as store:
            run, rows = store.run(self.run_id), store.rows(self.run_id)
            position = store.position(self.run_id)
        if self.json_:
            from engine.store import Run

            facts = TypeAdapter(Run).dump_python(run, mode="json") | {"spec": run.spec.model_dump(mode="json")}
            facts |= {"outcome": run.outcome, "rows": [row.model_dump(mode="json") for row in rows]}
            print(json.dumps(facts))
            return
        print(f"run {run.id} ({run.kind}) is {run.outcome}" + (f": {run.cause}" if run.cause else ""))
        if run.error:
            print(printable(run.error))
        if position is not None:
            print(f"position in the queue: {position}")
            if problem := disk.shortage(Settings(), run.spec.devices[0]):
                print(printable(f"starts when there is disk space: {problem}"))
        environment = run.environment.model_dump(exclude={"versions", "gpu", "settings"}) if run.environment else {}
        used = run.environment.settings if run.environment else {}
        parts = {
            "settings": run.spec.model_dump(mode="json", exclude_defaults=True),
            "used": used,
            "environment": environment,
        }
        for title, facts in parts.items():
            for name, value in facts.items():
                text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                print(f"{title:12} {name:24} {printable(text)}")
                title = ""
        if rows:
            from engine.report import frames  # imports pandas

            frame = getattr(frames, run.kind)(rows)
            print()
            show_table(frame, main_columns(run, frame), None)
            note_failed(rows)


class Log(OneRun):
    """Print the last lines of a run's log."""

    lines: int = Field(100, ge=1, le=100_000, description="Number of lines to print.")

    def cli_cmd(self) -> None:
        from engine.jobs.log import why_no_log
        from engine.store.copies import mirror, remote
        from engine.store.files import RunFiles

        with store_here() as store:
            run = store.run(self.run_id)  # raises for a run that does not exist; a missing log is no error
        try:
            mirror.fetch(Settings(), run, lambda name: name.startswith("log"))
        except remote.Unreachable as problem:
            note(str(problem))
        files = RunFiles(Settings().runs_dir, self.run_id)
        lines = files.log_tail(self.lines).splitlines()
        for line in lines:
            print(printable(line))
        if not lines:
            note(f"run {self.run_id} {why_no_log(run, files)}")


class Cancel(Several):
    """Ask runs to stop; their rows and checkpoints are kept."""

    def cli_cmd(self) -> None:
        from engine import jobs

        with store_here() as store:
            for run_id in self.run_ids:
                store.run(run_id)  # raises before any is cancelled
            for run_id in self.run_ids:
                store.request_cancel(run_id)
            runs = [store.run(run_id) for run_id in self.run_ids]
        if not all(run.state.ended for run in runs):
            jobs.ensure_scheduler(Settings())  # their scheduler may have exited, or their host may be gone
        for run in runs:
            print(f"run {run.id} is {run.state if run.state.ended else 'asked to stop'}")


class Wait(Several):
    """Wait until runs have ended. The exit code is 1 if one of them did not finish or has failed rows."""

    def cli_cmd(self) -> None:
        from engine import jobs

        with store_here() as store:
            waiting, failed = list(self.run_ids), 0
            while waiting:
                runs = [store.run(run_id) for run_id in waiting]
                for run in (run for run in runs if run.state.ended):
                    waiting.remove(run.id)
                    failed += run.outcome != "finished"
                    clear_progress()
                    print(
                        f"run {run.id} is {run.outcome}" + (f": {printable(run.error)}" if run.error else ""),
                        flush=True,
                    )
                if waiting:
                    jobs.ensure_scheduler(Settings(), store)  # it may have been killed
                    states = [
                        f"{run.id} ({run.outcome}{f', {run.done}/{run.total}' if run.total else ''})"
                        for run in runs
                        if run.id in waiting
                    ]
                    show_progress(f"waiting for {shortened(states)}")
                    time.sleep(POLL_S)
        if failed:
            raise EndedBadly(f"{failed} of {plural(len(self.run_ids), 'run')} did not finish or have failed rows")


class Hosts(BaseModel):
    """List the hosts with open runs, or declare a host gone that will not come back."""

    gone: str = Field("", description="A host that will not come back. Its runs are queued again, cancelled or failed.")

    def cli_cmd(self) -> None:
        from engine import jobs
        from engine.jobs import hosts

        with store_here() as store:
            if self.gone:
                lost = hosts.declare_gone(store, Settings(), self.gone)
                for run in map(store.run, lost.run_ids):
                    print(f"run {run.id} is {run.state}")
            else:
                for host in (listed := hosts.open_hosts(store)):
                    mark = " (this host)" if host.is_this else ""
                    heartbeat = f"last heartbeat {abs(host.silent_s):.0f} s ago"
                    print(f"{printable(host.id)}{mark}: {heartbeat}, {numbered_runs(host.run_ids)}")
                if not listed:
                    note("no host has open runs")
        if self.gone:
            jobs.ensure_scheduler(Settings())


class Export(OneRun):
    """Write a run as a bundle (zip) that another machine can import.

    It has up to 50 MB of the run's files: first the best checkpoint, then the latest one, then the smallest of the
    others. Files that are left out are named.
    """

    output: OutputFile | None = Field(None, description="The file to write. Default: run_ID.zip.")

    def cli_cmd(self) -> None:
        from engine.store.bundles.bundle import export_bundle

        path = self.output or Path(f"run_{self.run_id}.zip")
        with store_here() as store:
            content = export_bundle(store, Settings(), self.run_id, lambda sentence: note(printable(sentence)))
        atomic.export(path, content)
        print(path)


class ExportModel(OneRun):
    """Write the model of a training as a folder that `open_clip.create_model("local-dir:FOLDER")` loads."""

    folder: CliPositionalArg[Path] = Field(description="A folder that does not exist yet or is empty.")
    checkpoint: str = Field("", max_length=200, description="Name of the checkpoint. Default: the best one.")

    def cli_cmd(self) -> None:
        from engine.jobs import checkpoints
        from engine.report.export import model_card

        with store_here() as store:
            run, rows = store.run(self.run_id), store.rows(self.run_id)
        path, step = checkpoints.named(Settings(), run, self.checkpoint)
        checkpoints.fetch(Settings(), run, path.name)
        question = model_card.export(run, rows, path, step, self.folder)
        exported = import_module("engine.training.answers.export").answer(question)
        for name, size in exported.files.items():
            print(f"{exported.folder}/{name}  {size:,} bytes")


class Import(BaseModel):
    """Import a bundle that `runs export` wrote."""

    bundle: CliPositionalArg[Path] = Field(description="A zip file.")

    def cli_cmd(self) -> None:
        from engine import jobs
        from engine.store.bundles.bundle import import_bundle

        if not self.bundle.is_file():
            raise Refused(f"no bundle at {self.bundle}")
        with store_here() as store:
            run_id = import_bundle(store, Settings(), self.bundle)
            print(f"imported as run {run_id}")
            if problem := jobs.why_not_again(store, Settings(), run_id):
                note(f"run {run_id} cannot be repeated on this machine: {printable(problem)}")


class _Runs(Group):
    """List, show, cancel, tag, export and delete runs. Without a command, list the newest ones."""

    def cli_cmd(self) -> None:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            List.model_construct().cli_cmd()
        else:
            super().cli_cmd()


COMMANDS = subcommands(
    *(List, Show, Log, Wait, Cancel, Hosts, Tag, Note, Rows, Compare, Delete, Prune, Storage, Restore, Upload),
    *(Export, ExportModel, Import),
)
Runs = create_model("Runs", __base__=_Runs, __doc__=_Runs.__doc__, **COMMANDS)


class Resume(BaseModel):
    """Queue a failed or cancelled run again. A training resumes, a timing keeps finished models, others start again."""

    what: CliPositionalArg[str] = Field(
        description="The id of a run; or a checkpoint or a training's folder, from which a new run continues."
    )

    def cli_cmd(self) -> None:
        from engine import jobs
        from engine.jobs.checkpoints import continued

        if not self.what.isdecimal():
            submit(continued(Path(self.what)), "")
            return
        with store_here() as store:
            jobs.retry(store, Settings(), int(self.what))
        print(f"run {self.what} is queued again")
