"""Export a run as one zip file, and import it on another machine. `bundle_format` describes the file's members."""

import json
import zipfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter
from pydantic_core import from_json
from sqlalchemy import insert, select

from engine import archives, results, specs
from engine.names import refuse_code
from engine.results import Row, TrainRow
from engine.roots import file_within, open_within
from engine.settings import Settings
from engine.specs import Refused
from engine.store import mirror
from engine.store.access import Role
from engine.store.attempts import insert_event
from engine.store.bundle_format import (
    FORMAT,
    LIBRARY,
    VERSION,
    BundledArtifact,
    BundledMetric,
    Manifest,
    Member,
    RunRecord,
    is_plain,
)
from engine.store.database import Unavailable
from engine.store.files import RunFiles
from engine.store.listing import LONGEST_MODEL, set_results
from engine.store.model import Run, StoredArtifact
from engine.store.queue import insert_run
from engine.store.records import storable
from engine.store.store import Store
from engine.store.tables import run_tags, runs

ARTIFACT_BYTES = 50_000_000
"""At most this many bytes for all artifacts of a bundle. The others are left out."""
LIMITS = archives.Limits(files=10_000, total_bytes=500_000_000, file_bytes=ARTIFACT_BYTES)
TEXT_BYTES = 20_000_000
"""At most this many bytes for every other member: rows, metrics, log and so on."""
MOST_ROWS, MOST_METRICS = 10_000, 100_000
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every member. A fixed one makes two exports of one run identical files."""

OF_RUN = ("kind", "name", "state", "cause", "error", "done", "total", "note", "notes", "tags")
"""The fields that `run.json` copies from a run unchanged."""


def export_bundle(store: Store, settings: Settings, run_id: int) -> bytes:
    """Return the bundle of a run as zip bytes. Errors: LookupError; Refused when the run has not ended; Unreachable."""
    run = store.run(run_id)
    if not run.state.ended:
        raise Refused(f"run {run_id} is {run.state}: a bundle is made of a run that has ended")
    record = RunRecord(
        **{name: getattr(run, name) for name in OF_RUN},
        spec=run.spec.model_dump(mode="json"),
        **_moments(run),
        environment=run.environment,
    )
    files = RunFiles(settings.runs_dir, run_id)
    artifacts = store.artifacts(run_id)
    bundled = {artifact.name for artifact in artifacts if artifact.size <= ARTIFACT_BYTES}
    wanted = bundled | {f"{name}.json" for name in bundled}  # the manifests of checkpoints
    mirror.fetch(settings, run, lambda name: name in wanted or name.startswith("log"))
    contents = _contents(files.dir, artifacts)
    members = {
        "run.json": record.model_dump_json(exclude_defaults=True).encode(),
        "rows.jsonl": _lines(store.rows(run_id)),
        "metrics.jsonl": _lines(store.metrics(run_id)),
        "artifacts.json": json.dumps(_listed(artifacts, contents)).encode(),
        "log.txt": b"".join(path.read_bytes() for path in (files.older_log, files.log) if path.is_file()),
    }
    return _zip(members | {f"artifacts/{name}": data for name, data in contents.items()})


def import_bundle(store: Store, settings: Settings, path: Path) -> int:
    """Import a bundle and return the id of its run. A second import of the same bundle returns the first one's run.

    Errors: Refused when the user may not start runs, or the file is not a bundle, is damaged, or has contents that no
    run can have; Unreachable when its files could not be copied for other machines.
    """
    store.user.require(Role.RUNNER)
    try:
        with path.open("rb") as file:
            members = _read(file, path.stat().st_size)
    except Refused:
        raise
    except archives.DAMAGED as error:
        raise Refused(f"{path.name} is not a run bundle: {error}") from error
    try:
        run_id = _store_run(store, settings, _check_manifest(members))
        mirror.upload(settings, store.run(run_id))
        return run_id
    except (Refused, Unavailable):
        raise
    except (ValueError, LookupError, OverflowError, OSError) as error:
        raise Refused(f"{path.name} holds something no run has: {error}") from error


def _moments(run: Run) -> dict[str, float | None]:
    """Return when a run was created, started and ended. The times ascend even if the clock was set back meanwhile."""
    latest, moments = 0.0, {}
    for name in ("created_at", "started_at", "ended_at"):
        moment = getattr(run, name)
        latest = max(latest, moment.timestamp() if moment else 0.0)
        moments[name] = latest if moment else None
    return moments


def _lines(events: list[Any]) -> bytes:
    return "".join(f"{event.model_dump_json()}\n" for event in events).encode()


def _contents(run_dir: Path, artifacts: list[StoredArtifact]) -> dict[str, bytes]:
    """Return unchanged artifacts below the run's folder, smallest first, up to ARTIFACT_BYTES in total.

    The manifest of each checkpoint is added, because a checkpoint without its manifest is not complete.
    """
    roots = (run_dir.resolve(),)
    room = ARTIFACT_BYTES
    contents = {}
    for artifact in sorted(artifacts, key=lambda artifact: artifact.size):
        path = run_dir / artifact.name
        if artifact.size > room or not file_within(path, roots):
            continue
        with open_within(path, roots) as file:
            content = file.read()
        if sha256(content).hexdigest() == artifact.sha256:
            contents[artifact.name] = content
            room -= artifact.size
    for name in [name for name in contents if not mirror.is_light(name)]:
        manifest = f"{name}.json"
        if file_within(run_dir / manifest, roots):
            with open_within(run_dir / manifest, roots) as file:
                contents[manifest] = file.read()
    return contents


def _listed(artifacts: list[StoredArtifact], contents: dict[str, bytes]) -> list[dict[str, Any]]:
    """Return the entries of `artifacts.json`, sorted by name: one for each file in the bundle."""
    kinds = {artifact.name: artifact.kind for artifact in artifacts}
    return [
        StoredArtifact(
            name=name, kind=kinds.get(name, "manifest"), size=len(data), sha256=sha256(data).hexdigest()
        ).model_dump()
        for name, data in sorted(contents.items())
    ]


def _zip(members: dict[str, bytes]) -> bytes:
    target = BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in {"manifest.json": _manifest(members).model_dump_json().encode(), **members}.items():
            bundle.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
    return target.getvalue()


def _manifest(members: dict[str, bytes]) -> Manifest:
    files = {name: Member(size=len(data), sha256=sha256(data).hexdigest()) for name, data in members.items()}
    return Manifest(format=FORMAT, version=VERSION, files=files)


def _read(file: BinaryIO, packed_size: int) -> dict[str, bytes]:
    """Return all members, after checks of everything that is visible without unpacking them.

    Errors: ValueError when there is no manifest; Refused when a member is not allowed; archives.DAMAGED.
    """
    listed = list(archives.entries(file, "zip", packed_size, LIMITS))
    names = {entry.name for entry in listed}
    if "manifest.json" not in names:
        raise ValueError("it has no manifest.json")
    for entry in listed:
        if not is_plain(entry.name):
            raise Refused(f"the bundle holds {entry.name[:100]!r}, which is not a plain file of a run")
        if "/" not in entry.name and entry.size > TEXT_BYTES:
            raise Refused(f"{entry.name} has {entry.size:,} bytes, at most {TEXT_BYTES:,} are taken")
    if len(names) < len(listed):
        raise Refused("the bundle holds two files of one name")
    return {entry.name: entry.read() for entry in archives.entries(file, "zip", packed_size, LIMITS)}


def _check_manifest(members: dict[str, bytes]) -> dict[str, bytes]:
    """Return the members without their manifest. Errors: Refused when they differ from the manifest."""
    manifest = Manifest.model_validate_json(members.pop("manifest.json"))
    if (manifest.format, manifest.version) != (FORMAT, VERSION):
        raise Refused(f"the bundle is {manifest.format} {manifest.version}, and this version reads {FORMAT} {VERSION}")
    if manifest != _manifest(members):
        raise Refused("the bundle's contents are not those of its manifest: it is damaged")
    return members


def _split_lines(members: dict[str, bytes], name: str, most: int) -> list[bytes]:
    lines = members[name].splitlines()
    if len(lines) > most:
        raise Refused(f"{name} has {len(lines):,} lines, at most {most:,} are taken")
    return lines


def _row(kind: str, line: bytes) -> Row:
    # from_json raises ValueError for NaN and deep nesting. The json module accepts NaN, and
    # overflows its stack on deep nesting.
    row = results.load(kind, from_json(line, allow_inf_nan=False))
    if not LIBRARY.fullmatch(row.library):
        raise Refused(f"a row's library is {row.library[:60]!r}, which is not a plain name")
    for name, value in row:  # an evaluation may use weights of any place; its row names them without reading them
        is_file = name.endswith("_file") or (isinstance(row, TrainRow) and name == "checkpoint")
        if is_file and value and not is_plain(value):
            raise Refused(f"a row's {name} is {value[:100]!r}, which is not a file below the run's folder")
    if len(row.model) > LONGEST_MODEL or "\0" in row.model:
        raise Refused(
            f"a row's model is {row.model[:60]!r}, ..., which is not a name of up to {LONGEST_MODEL} characters"
        )
    return row


def _store_run(store: Store, settings: Settings, members: dict[str, bytes]) -> int:
    """Store the run and the files of a bundle; return its id, or that of the run from an earlier import."""
    record = RunRecord.model_validate_json(members["run.json"])
    spec = specs.load(record.kind, json.dumps(record.spec))
    refuse_code(spec)
    contents = {name.removeprefix("artifacts/"): data for name, data in members.items() if "/" in name}
    rows = [_row(record.kind, line) for line in _split_lines(members, "rows.jsonl", MOST_ROWS)]
    metrics = [BundledMetric.model_validate_json(line) for line in _split_lines(members, "metrics.jsonl", MOST_METRICS)]
    artifacts = TypeAdapter(list[BundledArtifact]).validate_json(members["artifacts.json"])
    if not set(contents) <= {artifact.name for artifact in artifacts}:
        raise Refused("the bundle holds files that its run does not name")
    for artifact in artifacts:
        data = contents.get(artifact.name)
        if data is not None and (len(data), sha256(data).hexdigest()) != (artifact.size, artifact.sha256):
            raise Refused(
                f"the bundle's file {artifact.name} is not the one that its run recorded: sizes or hashes differ"
            )
    # bundles of earlier versions also list files that are not in them
    artifacts = [artifact for artifact in artifacts if artifact.name in contents]
    columns = record.model_dump(exclude={"kind", "name", "spec", "environment", "tags"})
    columns |= {name: storable(columns[name]) for name in ("error", "note", "notes")}
    columns |= {"environment": record.environment.model_dump_json() if record.environment else None}
    # One attempt was made elsewhere. A retry gets the next number, so it keeps the imported files.
    columns |= {"attempt": 1, "tries_left": 0}
    columns |= {"owner": store.user.email}
    key = "bundle:" + sha256(b"\0".join(members[name] for name in sorted(members))).hexdigest()

    with store.database.write() as connection:
        if (earlier := connection.scalar(select(runs.c.id).where(runs.c.key == key))) is not None:
            return int(earlier)
        run_id = insert_run(connection, spec, record.name, key=key, **columns)
        if record.tags:
            connection.execute(insert(run_tags), [{"run_id": run_id, "tag": tag} for tag in dict.fromkeys(record.tags)])
        for event in (*rows, *metrics, *artifacts):
            insert_event(connection, run_id, 0, event)
        set_results(connection, run_id)
        # before the transaction ends, so that no reader sees the run without its files
        files = RunFiles(settings.runs_dir, run_id)
        files.prepare()
        files.log.write_bytes(members["log.txt"])
        for name, data in contents.items():
            target = files.dir / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return run_id
