"""Export a run as one zip file, and import it on another machine. `format.py` describes the file's members."""

import errno
import json
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from hashlib import sha256
from io import SEEK_END, BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from engine import archives, atomic, results, specs
from engine.names import refuse_code
from engine.results import BenchmarkRow, Row, TrainRow
from engine.settings import Settings
from engine.specs import Refused
from engine.store.access import Role
from engine.store.attempts import insert_events
from engine.store.bundles import files as bundle_files
from engine.store.bundles.format import (
    FORMAT,
    LIBRARY,
    LIMITS,
    METRICS,
    ROWS,
    VERSION,
    BundledMetric,
    Listed,
    Manifest,
    Member,
    RunRecord,
    check_members,
    check_numbers,
    is_plain,
    limited,
    measure,
)
from engine.store.copies import mirror
from engine.store.database import Unavailable
from engine.store.files import RunFiles
from engine.store.listing import LONGEST_MODEL, set_results
from engine.store.model import Run, StoredArtifact
from engine.store.queue import insert_run
from engine.store.records import storable
from engine.store.store import Store
from engine.store.tables import metrics, run_tags, runs

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every member. A fixed one makes two exports of one run identical files."""
PIECE_BYTES, AT_ONCE = 1_000_000, 5_000
"""Bytes of a member that are unpacked, and rows or metrics that are inserted, at a time."""
BAD_NAMES = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL)
"""Errors of the file system that are caused by names of files in a bundle, not by the disk."""


def export_bundle(
    store: Store, settings: Settings, run_id: int, on_left_out: Callable[[str], object] = lambda sentence: None
) -> bytes:
    """Return the bundle of a run as zip bytes.

    on_left_out: called with sentences about the artifacts that are not in the bundle.
    Errors: LookupError; Refused when the run has not ended, or has more than an import takes; Unreachable.
    """
    run = store.run(run_id)
    if not run.state.ended:
        raise Refused(f"run {run_id} is {run.state}: a bundle is made of a run that has ended")
    fields = {name: getattr(run, name) for name in RunRecord.model_fields}
    record = RunRecord(**fields | {"spec": run.spec.model_dump(mode="json")} | _moments(run))
    files = RunFiles(settings.runs_dir, run_id)
    artifacts = store.artifacts(run_id)
    chosen, left_out = bundle_files.choose(settings, run, artifacts)
    wanted = {name for artifact in chosen for name in (artifact.name, f"{artifact.name}.json")}  # files and manifests
    mirror.fetch(settings, run, lambda name: name in wanted or name.startswith("log"))
    contents = bundle_files.read(files.dir, chosen)
    left_out |= dict.fromkeys((artifact.name for artifact in chosen), bundle_files.CHANGED)
    for sentence in bundle_files.sentences({name: why for name, why in left_out.items() if name not in contents}):
        on_left_out(sentence)
    kinds = {artifact.name: artifact.kind for artifact in artifacts}
    listed = [{"name": name, "kind": kinds.get(name, "manifest")} for name in sorted(contents)]
    try:
        return _zip(
            {
                "run.json": [record.model_dump_json(exclude_defaults=True).encode()],
                ROWS: limited(ROWS, _lines(store.rows(run_id))),
                METRICS: limited(METRICS, _lines(store.metrics(run_id))),
                "artifacts.json": [json.dumps(listed).encode()],
                "log.txt": [bundle_files.log(files)],
                **{f"artifacts/{name}": [contents[name]] for name in sorted(contents)},
            }
        )
    except Refused as refusal:
        raise Refused(f"run {run_id} does not fit into a bundle: {refusal}") from refusal


def import_bundle(store: Store, settings: Settings, path: Path) -> int:
    """Import a bundle from a path. Errors: those of import_file."""
    with path.open("rb") as file:
        return import_file(store, settings, file, path.name)


def import_file(store: Store, settings: Settings, file: BinaryIO, name: str) -> int:
    """Import a bundle and return the id of its run. A second import of the same bundle returns the first one's run.

    name: names the file in errors.
    Errors: Refused when the user may not start runs, or the file is not a bundle, is damaged, or has contents that no
    run can have, or the disk is full; Unreachable when its files could not be copied for other machines.
    """
    store.user.require(Role.RUNNER)
    try:
        members, measured = _read(file, file.seek(0, SEEK_END))
    except Refused:
        raise
    except archives.DAMAGED as error:
        raise Refused(f"{name} is not a run bundle: {error}") from error
    try:
        run_id = _store_run(store, settings, members, measured, file)
        run = store.run(run_id)
        copied = mirror.look(settings, run)
        # an earlier import may have copied them, and a run that was queued again copies its own
        if run.state.ended and not (copied and copied.exit):
            mirror.upload(settings, run)
        return run_id
    except (Refused, Unavailable):
        raise
    except IntegrityError as error:
        raise Refused(f"{name} holds two values of one metric at one step") from error
    except (ValueError, LookupError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in BAD_NAMES:
            raise Refused(f"{name} cannot be imported: {atomic.why_failed(error)}") from error
        raise Refused(f"{name} holds something no run has: {error}") from error


def _moments(run: Run) -> dict[str, float | None]:
    """Return when a run was created, started and ended. The times ascend even if the clock was set back meanwhile."""
    latest, moments = 0.0, {}
    for name in ("created_at", "started_at", "ended_at"):
        moment = getattr(run, name)
        latest = max(latest, moment.timestamp() if moment else 0.0)
        moments[name] = latest if moment else None
    return moments


def _lines(events: Iterable[BaseModel]) -> Iterator[bytes]:
    for event in events:
        yield f"{event.model_dump_json()}\n".encode()


def _zip(members: Mapping[str, Iterable[bytes]]) -> bytes:
    """Return a zip of members that are given in pieces. Errors: Refused for more than an import takes."""
    target, files = BytesIO(), {}
    with zipfile.ZipFile(target, "w") as bundle:
        for name, pieces in members.items():
            with bundle.open(_header(name), "w") as file:
                files[name] = measure(pieces, file.write)
        manifest = Manifest(format=FORMAT, version=VERSION, files=files)
        bundle.writestr(_header("manifest.json"), manifest.model_dump_json())
    check_members(target, target.getbuffer().nbytes)
    return target.getvalue()


def _header(name: str) -> zipfile.ZipInfo:
    header = zipfile.ZipInfo(name, EPOCH)
    header.compress_type = zipfile.ZIP_DEFLATED
    return header


def _read(file: BinaryIO, packed_size: int) -> tuple[dict[str, bytes], dict[str, Member]]:
    """Return all members but the metrics, and size and hash of every member.

    Errors: those of `check_members`; Refused when the members differ from the manifest.
    """
    check_members(file, packed_size)
    listed = archives.entries(file, "zip", packed_size, LIMITS)
    members = {entry.name: entry.read() for entry in listed if entry.name != METRICS}
    manifest = Manifest.model_validate_json(members.pop("manifest.json"))
    if (manifest.format, manifest.version) != (FORMAT, VERSION):
        raise Refused(f"the bundle is {manifest.format} {manifest.version}, and this version reads {FORMAT} {VERSION}")
    measured = {name: measure([content]) for name, content in members.items()}
    measured[METRICS] = measure(_unpack(file, METRICS))
    if manifest.files != measured:
        raise Refused("the bundle's contents are not those of its manifest: it is damaged")
    return members, measured


def _unpack(file: BinaryIO, name: str, *, by_line: bool = False) -> Iterator[bytes]:
    """Yield a member in pieces. by_line: a line at a time; a very long one comes in parts, which cannot be parsed."""
    with zipfile.ZipFile(file) as archive, archive.open(name) as member:
        read = member.readline if by_line else member.read
        while piece := read(PIECE_BYTES):
            yield piece


def _row(kind: str, line: bytes) -> Row:
    # from_json raises ValueError for NaN and deep nesting. The json module accepts NaN, and
    # overflows its stack on deep nesting.
    content = from_json(line, allow_inf_nan=False)
    check_numbers(content)
    row = results.load(kind, content)
    if isinstance(row, BenchmarkRow) and row.date and datetime.fromisoformat(row.date).tzinfo is None:
        raise ValueError(f"a row's date is {row.date!r}, which has no time zone")
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


def _store_run(
    store: Store, settings: Settings, members: dict[str, bytes], measured: dict[str, Member], file: BinaryIO
) -> int:
    """Store the run and the files of a bundle; return its id, or that of the run from an earlier import.

    members, measured: as from `_read`. file: the bundle, from which the metrics are read.
    """
    record = RunRecord.model_validate_json(members["run.json"])
    spec = specs.load(record.kind, json.dumps(record.spec))
    refuse_code(spec)
    contents = {name.removeprefix("artifacts/"): data for name, data in members.items() if "/" in name}
    rows = (_row(record.kind, line) for line in limited(ROWS, BytesIO(members[ROWS])))
    points = map(BundledMetric.model_validate_json, limited(METRICS, _unpack(file, METRICS, by_line=True)))
    kinds = {listed.name: listed.kind for listed in TypeAdapter(list[Listed]).validate_json(members["artifacts.json"])}
    if not contents.keys() <= kinds.keys():
        raise Refused("the bundle holds files that its run does not list")
    # bundles of earlier versions also list files that are not in them
    artifacts = [
        StoredArtifact(name=name, kind=kinds[name], **dict(measured[f"artifacts/{name}"])) for name in contents
    ]
    hashes = json.dumps({name: measured[name].sha256 for name in sorted(measured)})
    key = f"bundle:{sha256(hashes.encode()).hexdigest()}"  # equal bundles have equal members
    columns = record.model_dump(exclude={"kind", "name", "spec", "environment", "tags"})
    columns |= {name: storable(columns[name]) for name in ("error", "note", "notes")}
    columns |= {"environment": record.environment.model_dump_json() if record.environment else None}
    # One attempt was made elsewhere. A retry gets the next number, so it keeps the imported files.
    columns |= {"attempt": 1, "tries_left": 0}
    columns |= {"owner": store.user.email}

    with ExitStack() as on_failure:
        with store.database.write() as connection:
            if (earlier := connection.scalar(select(runs.c.id).where(runs.c.key == key))) is not None:
                return int(earlier)
            run_id = insert_run(connection, spec, record.name, key=key, **columns)
            if record.tags:
                tags = [{"run_id": run_id, "tag": tag} for tag in dict.fromkeys(record.tags)]
                connection.execute(insert(run_tags), tags)
            events = chain(rows, artifacts)
            while batch := list(islice(events, AT_ONCE)):
                insert_events(connection, run_id, 0, batch)
            while batch := list(islice(points, AT_ONCE)):
                connection.execute(insert(metrics), [{"run_id": run_id} | point.model_dump() for point in batch])
            set_results(connection, run_id)
            # before the transaction ends, so that no reader sees the run without its files
            files = RunFiles(settings.runs_dir, run_id)
            files.prepare()
            on_failure.callback(shutil.rmtree, files.dir, ignore_errors=True)
            files.log.write_bytes(members["log.txt"])
            for name, data in contents.items():
                target = files.dir / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        on_failure.pop_all()
        return run_id
