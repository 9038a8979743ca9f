"""The commands store copy, backup and restore, and health: what an operator needs."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, Field, create_model
from pydantic_settings import CliPositionalArg

from engine.cli.here import EndedBadly, Group, refuse_open, store_here, subcommands
from engine.cli.output import note
from engine.settings import Settings
from engine.words import plural, shortened

MOST_NAMED = 20
"""Name at most this many waiting runs."""


class Copy(BaseModel):
    """Copy the store to another, empty database, such as from SQLite to PostgreSQL, and compare every table."""

    to: str = Field(
        description="postgresql://USER@HOST:PORT/DATABASE or sqlite:////FOLDER/vitals.sqlite. Give a password in "
        "PGPASSWORD or ~/.pgpass, because other users can see the arguments of commands."
    )

    def cli_cmd(self) -> None:
        from engine.store.backup import transfer
        from engine.store.database import Database

        settings = Settings()
        source = Database(settings.store_url)
        if source.sqlite:
            refuse_open(Path(source.place))  # runs that a server adds later would be missing in the copy
        _show(transfer.move(settings, self.to))
        note(
            "Name the new store in VITALS_DATABASE_URL before you start the app again. The folders of runs stay in "
            f"{settings.runs_dir}"
        )


class Backup(BaseModel):
    """Write a copy of the store to a new SQLite file, while runs go on. It holds no files of runs."""

    file: CliPositionalArg[Path] = Field(description="A file that does not exist yet.")

    def cli_cmd(self) -> None:
        from engine.store import storage
        from engine.store.backup import transfer

        settings = Settings()
        _show(transfer.back_up(settings, self.file))
        run_folders, other_files = storage.folders(settings)
        files = storage.total([*run_folders.values(), other_files])
        note(
            f"{self.file} holds the database only. Back up {settings.runs_dir} too: logs, checkpoints and uploads, "
            f"{plural(files.files, 'file')} with {files.bytes / 1e6:,.1f} MB"
        )
        if settings.artifacts_url:
            note(f"Also back up {settings.artifacts_url}, with files of other machines' runs")


class Restore(BaseModel):
    """Copy a backup into the store of these settings, which must be empty."""

    file: CliPositionalArg[Path] = Field(description="A file that `store backup` wrote.")

    def cli_cmd(self) -> None:
        from engine.store.backup import transfer

        _show(transfer.restore_backup(Settings(), self.file))
        with store_here() as store:
            waiting = store.queue_order()
        if waiting:
            note(
                f"{plural(len(waiting), 'run')} will start with the app or the next submission: "
                f"{shortened([str(run_id) for run_id in waiting], MOST_NAMED)}. If the original store is still in use, "
                "both do them, at the same time. `python -m engine runs cancel ID` cancels a run in this store only"
            )


Store = create_model(
    "Store", __base__=Group, __doc__="Move, back up and restore the store.", **subcommands(Copy, Backup, Restore)
)


def _show(counts: Mapping[str, int]) -> None:
    print(f"{'table':12} {'rows':>12}  copy")
    for name, count in counts.items():
        print(f"{name:12} {count:>12,}  equal")


class Health(BaseModel):
    """Check store, scheduler, queue, disk and devices, as /health does; exit code 1 when something is wrong."""

    json_: bool = Field(False, alias="json", description="Print one JSON object instead.")

    def cli_cmd(self) -> None:
        from engine.jobs.lifecycle import look_at_health

        health = look_at_health(Settings())
        values = asdict(health)
        if self.json_:
            print(json.dumps(values))
        else:
            for name, value in values.items():
                if value not in (None, ()):
                    text = ", ".join(value) if isinstance(value, tuple) else value
                    print(f"{name:14} {text:.1f}" if isinstance(value, float) else f"{name:14} {text}")
        if health.status != "ok":
            raise EndedBadly("something is wrong, see above")
