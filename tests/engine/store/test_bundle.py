"""Export and import of a run as a zip file: an imported run equals the original, and invalid files are refused."""

import dataclasses
import json
import os
import re
import resource
import stat
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest
from sqlalchemy import insert, update

from engine.jobs import checkpoints
from engine.jobs.executors.local import Executor
from engine.results import Environment, Metric, ProfileRow, Progress
from engine.settings import Settings
from engine.specs import ProfileSpec, Refused
from engine.store import Attempt, Cause, Exit, Filter, Run, State, Store, StoredArtifact, attempts, open_store, queue
from engine.store.bundles import bundle, format
from engine.store.bundles import files as bundle_files
from engine.store.database import Unavailable
from engine.store.files import RunFiles
from engine.store.records import ATTEMPTS, LONGEST_TEXT
from engine.store.storage import Size, usage
from engine.store.tables import metrics, rows, runs
from tests.support.clip import evaluate_row, queue_evaluate, queue_train, record, train_row, write_checkpoints
from tests.support.page import benchmark_row, finish, queue_benchmark

DETAIL = b'[{"path": ""}]'


@pytest.fixture
def run_id(settings: Settings, store: Store) -> int:
    """Return the id of a finished run with a row, a metric, an artifact, a log and an environment."""
    run_id = store.enqueue(ProfileSpec(models=("timm:a",)), name="<b>mine</b>\n")
    attempt = queue.claim(store.database, "a host")
    assert attempt is not None
    files = RunFiles(settings.runs_dir, run_id)
    (files.dir / "detail").mkdir(parents=True)
    (files.dir / "detail" / "a.json").write_bytes(DETAIL)
    files.log.write_bytes(b"\xff one\ntwo\n")
    row = ProfileRow(library="timm", model="a", counter="torch", device="meta", batch_size=1, precision="float32")
    environment = Environment(
        host="h", platform="p", python="3", cpu="c", threads=2, memory_gb=1, device="d", device_name="n", date="now"
    )
    artifact = StoredArtifact(name="detail/a.json", kind="detail", size=len(DETAIL), sha256=sha256(DETAIL).hexdigest())
    attempts.begin(store.database, attempt)
    events = [environment, row, Metric(step=1, name="loss", value=0.1), artifact, Progress(done=1, total=1)]
    attempts.record(store.database, attempt, events)
    attempts.finish(store.database, attempt, State.FINISHED)
    attempts.close(store.database, attempt, Exit(0), Cause.ERROR, "")
    return run_id


@pytest.fixture
def exported(settings: Settings, store: Store, run_id: int, tmp_path: Path) -> Path:
    path = tmp_path / "run.zip"
    path.write_bytes(bundle.export_bundle(store, settings, run_id))
    return path


def rewrite(
    path: Path,
    change: Callable[[dict[str, bytes]], None],
    *,
    honest: bool = True,
    compression: int = zipfile.ZIP_DEFLATED,
) -> None:
    """Apply `change` to the members of a bundle. honest: also update the manifest."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    change(members)
    if honest:
        manifest["files"] = {
            name: {"size": len(data), "sha256": sha256(data).hexdigest()} for name, data in members.items()
        }
    with zipfile.ZipFile(path, "w", compression) as new:
        for name, data in {"manifest.json": json.dumps(manifest).encode(), **members}.items():
            new.writestr(zipfile.ZipInfo(name), data, compression)


def test_import_gives_an_equal_run_with_a_new_id(
    settings: Settings, store: Store, run_id: int, exported: Path, tmp_path: Path
) -> None:
    elsewhere = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere"})
    other_store = open_store(elsewhere)
    other_store.enqueue(ProfileSpec(models=("b",)))
    new_id = bundle.import_bundle(other_store, elsewhere, exported)
    assert new_id != run_id
    old, new = store.run(run_id), other_store.run(new_id)
    for field in ("kind", "name", "spec", "state", "environment", "created_at", "started_at", "ended_at", "done"):
        assert getattr(new, field) == getattr(old, field), field
    assert other_store.rows(new_id) == store.rows(run_id)
    assert list(other_store.metrics(new_id)) == list(store.metrics(run_id))
    assert other_store.artifacts(new_id) == store.artifacts(run_id)
    files = RunFiles(elsewhere.runs_dir, new_id)
    assert (files.dir / "detail" / "a.json").read_bytes() == DETAIL
    assert files.log_tail(2) == "\ufffd one\ntwo\n"
    assert bundle.export_bundle(other_store, elsewhere, new_id) == exported.read_bytes(), (
        "a second export gives the same file"
    )
    other_store.close()


def test_bundle_has_every_field_of_a_run() -> None:
    own = {"id", "owner", "cancel_requested", "attempt", "revision"}  # of the store that has the run
    derived = {"results", "earlier_s"}  # from rows and attempts
    active = {"estimated_s_left", "progressed_at"}  # only of runs that have not ended
    missing = (
        {field.name for field in dataclasses.fields(Run)} - {*format.RunRecord.model_fields} - own - derived - active
    )
    assert not missing, "add these to RunRecord in engine/store/bundles/format.py, or to the fields above"


def test_tags_and_notes_are_in_the_bundle_only_if_there_are_any(
    settings: Settings, store: Store, run_id: int, exported: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(exported) as old:
        assert not {"notes", "tags"} & set(json.loads(old.read("run.json"))), "older versions refuse unknown fields"
    store.change_tags([run_id], add=["b", "a"])
    store.set_notes(run_id, "As the paper has it.")
    exported.write_bytes(bundle.export_bundle(store, settings, run_id))
    elsewhere = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere"})
    other_store = open_store(elsewhere)
    new = other_store.run(bundle.import_bundle(other_store, elsewhere, exported))
    assert (new.tags, new.notes) == (("a", "b"), "As the paper has it.")
    criteria = Filter(tags=("a",), model=store.rows(run_id)[0].model, text="PAPER")
    assert [run.id for run in other_store.find(criteria, limit=9)] == [new.id]
    other_store.close()
    rewrite(exported, lambda members: members.update({"run.json": members["run.json"].replace(b'"b"', b'"b,c"')}))
    with pytest.raises(Refused, match="no comma"):
        bundle.import_bundle(store, settings, exported)


def test_warning_of_a_finished_run_is_in_its_bundle(
    settings: Settings, store: Store, run_id: int, exported: Path, tmp_path: Path
) -> None:
    attempt = Attempt(**store.database.rows(ATTEMPTS)[0]._mapping)
    attempts.warn(store.database, attempt, "its files are only there")
    exported.write_bytes(bundle.export_bundle(store, settings, run_id))
    elsewhere = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere"})
    with closing(open_store(elsewhere)) as other_store:
        new = other_store.run(bundle.import_bundle(other_store, elsewhere, exported))
    assert (new.state, new.error) == (State.FINISHED, "its files are only there")
    attempts.warn(store.database, attempt, "x" * LONGEST_TEXT)
    assert store.run(run_id).error == f"its files are only there; {'x' * LONGEST_TEXT}"[:LONGEST_TEXT]
    bundle.export_bundle(store, settings, run_id)


def test_second_import_returns_the_existing_run(settings: Settings, store: Store, exported: Path) -> None:
    first = bundle.import_bundle(store, settings, exported)
    assert bundle.import_bundle(store, settings, exported) == first
    store.delete(first)
    second = bundle.import_bundle(store, settings, exported)
    assert second > first
    rewrite(exported, lambda members: members.update({"metrics.jsonl": b""}))
    assert bundle.import_bundle(store, settings, exported) > second, "it differs in one member"


def test_only_an_ended_run_is_exported(settings: Settings, store: Store) -> None:
    with pytest.raises(Refused, match="is queued: a bundle is made of a run that has ended"):
        bundle.export_bundle(store, settings, store.enqueue(ProfileSpec(models=("a",))))


def test_large_and_changed_artifacts_are_not_exported(
    settings: Settings, store: Store, run_id: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def names() -> list[str]:
        path = tmp_path / "names.zip"
        path.write_bytes(bundle.export_bundle(store, settings, run_id))
        return [name for name in zipfile.ZipFile(path).namelist() if name.startswith("artifacts/")]

    assert names() == ["artifacts/detail/a.json"]
    (RunFiles(settings.runs_dir, run_id).dir / "detail" / "a.json").write_bytes(b"other")
    assert names() == []
    monkeypatch.setattr(bundle_files, "ARTIFACT_BYTES", len(DETAIL) - 1)
    (RunFiles(settings.runs_dir, run_id).dir / "detail" / "a.json").write_bytes(DETAIL)
    assert names() == []


def finished_training(settings: Settings, store: Store) -> int:
    """Return a finished training with two checkpoints, of which only the smaller one fits into a small bundle."""
    run_id = queue_train(store)
    folder = RunFiles(settings.runs_dir, run_id).dir
    write_checkpoints(folder, "best.pt", "latest.pt")
    (folder / "checkpoints" / "latest.pt").write_bytes(b"larger weights")
    contents = {name: (folder / name).read_bytes() for name in ("checkpoints/best.pt", "checkpoints/latest.pt")}
    recorded = [
        StoredArtifact(name=name, kind="checkpoint", size=len(data), sha256=sha256(data).hexdigest())
        for name, data in contents.items()
    ]
    record(store, run_id, [train_row(1), *recorded])
    return run_id


def test_bundle_has_checkpoint_manifests_and_lists_only_its_files(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_id, path = finished_training(settings, store), tmp_path / "run.zip"
    monkeypatch.setattr(bundle_files, "ARTIFACT_BYTES", len(b"weights"))
    path.write_bytes(bundle.export_bundle(store, settings, run_id))
    elsewhere = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere"})
    other_store = open_store(elsewhere)
    new = other_store.run(bundle.import_bundle(other_store, elsewhere, path))
    best = RunFiles(elsewhere.runs_dir, new.id).dir / "checkpoints" / "best.pt"
    assert checkpoints.complete(elsewhere, new) == {best: len(b"weights")}
    assert checkpoints.named(elsewhere, new, "") == (best, 1), "the step is that of the manifest"
    manifest = best.with_name("best.pt.json")
    files = {f"checkpoints/{file.name}": file.stat().st_size for file in (best, manifest)}
    assert {artifact.name: artifact.size for artifact in other_store.artifacts(new.id)} == files
    assert usage(other_store.database, elsewhere).artifacts == Size(2, sum(files.values()))
    assert bundle.export_bundle(other_store, elsewhere, new.id) == path.read_bytes(), (
        "a second export gives the same file"
    )
    other_store.close()


def test_bundle_of_an_earlier_version_without_manifests_is_imported(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    """Such a bundle also lists files of the run that it does not have."""
    run_id, path = finished_training(settings, store), tmp_path / "run.zip"
    path.write_bytes(bundle.export_bundle(store, settings, run_id))

    def change(members: dict[str, bytes]) -> None:
        for name in ("best.pt.json", "latest.pt.json", "latest.pt"):
            del members[f"artifacts/checkpoints/{name}"]
        listed = [artifact.model_dump() for artifact in store.artifacts(run_id)]
        members["artifacts.json"] = json.dumps(listed).encode()

    rewrite(path, change)
    new = store.run(bundle.import_bundle(store, settings, path))
    assert [artifact.name for artifact in store.artifacts(new.id)] == ["checkpoints/best.pt"]
    assert not checkpoints.complete(settings, new)


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "artifacts/../../evil",
        "/etc/evil",
        "artifacts//evil",
        "a\\..\\evil",
        "C:evil",
        "./evil",
        "a\nb",
        "d/",
    ],
)
def test_file_names_outside_the_run_folder_are_refused(
    settings: Settings, store: Store, exported: Path, name: str
) -> None:
    rewrite(exported, lambda members: members.update({name: b"evil"}))
    before = sorted(settings.runs_dir.parent.rglob("*"))
    with pytest.raises(Refused, match=r"not a plain file of a run|not those of its manifest"):
        bundle.import_bundle(store, settings, exported)
    assert sorted(settings.runs_dir.parent.rglob("*")) == before
    assert len(store.runs()) == 1


def test_links_are_refused(settings: Settings, store: Store, exported: Path) -> None:
    link = zipfile.ZipInfo("artifacts/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(exported, "a") as changed:
        changed.writestr(link, "/etc/passwd")
    with pytest.raises(Refused, match="is a link or a device, not a file"):
        bundle.import_bundle(store, settings, exported)


@pytest.mark.slow
def test_zip_bombs_are_refused_before_unpacking(settings: Settings, store: Store, exported: Path) -> None:
    rewrite(exported, lambda members: members.update({"artifacts/zeros": bytes(60_000_000)}))
    assert exported.stat().st_size < 200_000
    with pytest.raises(Refused, match="it would unpack to"):
        bundle.import_bundle(store, settings, exported)
    rewrite(exported, lambda members: members.clear())
    with zipfile.ZipFile(exported, "a") as changed:
        for number in range(format.LIMITS.files + 1):
            changed.writestr(f"artifacts/{number}", b"")
    with pytest.raises(Refused, match="at most 10,000 are taken"):
        bundle.import_bundle(store, settings, exported)


def replace_in_member(members: dict[str, bytes], name: str, old: bytes, new: bytes) -> None:
    assert old in members[name]
    members[name] = members[name].replace(old, new)


@pytest.mark.parametrize(
    "change",
    [
        lambda members: members.pop("run.json"),
        lambda members: members.pop("rows.jsonl"),
        lambda members: replace_in_member(members, "run.json", b'"finished"', b'"running"'),
        lambda members: replace_in_member(members, "run.json", b'"profile"', b'"dance"'),
        lambda members: replace_in_member(members, "run.json", b'"batch_size":[1]', b'"batch_size":[1000000000]'),
        lambda members: replace_in_member(members, "rows.jsonl", b'"library":"timm"', b'"library":7'),
        lambda members: replace_in_member(members, "metrics.jsonl", b"0.1", b"{"),
        lambda members: members.update({"artifacts/unnamed": b"?"}),
        lambda members: members.update({"rows.jsonl": b"\xff\n"}),
    ],
)
def test_invalid_contents_are_refused(
    settings: Settings, store: Store, exported: Path, change: Callable[[dict[str, bytes]], None]
) -> None:
    rewrite(exported, change)
    with pytest.raises(Refused):
        bundle.import_bundle(store, settings, exported)
    assert len(store.runs()) == 1


def change_record(members: dict[str, bytes], **fields: object) -> None:
    members["run.json"] = json.dumps(json.loads(members["run.json"]) | fields).encode()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "x" * 1_000_000}, "a run's name has at most 200 characters, this one 1,000,000"),
        ({"kind": "x" * 1_000_000}, "kind"),
        ({"state": "failed", "cause": "error", "error": "x" * 20_001}, "error"),
        ({"note": "x" * 20_001}, "note"),
        ({"notes": "x" * 10_001}, "notes"),
        ({"cause": "error"}, "the run is finished with error; a failed run has a cause, and no other run has one"),
        ({"state": "cancelled", "cause": "killed"}, "the run is cancelled with killed"),
        ({"state": "failed"}, "the run is failed with no cause"),
        ({"state": "queued"}, "the run is queued; only a run that has ended can be imported"),
        ({"done": 2, "total": 1}, "done is 2, which is more than the total of 1"),
        ({"created_at": 3e9}, "not in this order"),
        ({"started_at": 3e9}, "not in this order"),
        ({"ended_at": 1.0}, "not in this order"),
        ({"state": "cancelled", "started_at": None, "ended_at": 1.0}, "not in this order"),
        ({"started_at": None}, "finished without started_at"),
        ({"ended_at": None}, "ended_at"),
        ({"kind": "device"}, "models"),
    ],
)
def test_impossible_run_record_is_refused_with_a_short_message(
    settings: Settings, store: Store, exported: Path, fields: dict[str, object], message: str
) -> None:
    rewrite(exported, lambda members: change_record(members, **fields))
    with pytest.raises(Refused, match=message) as refusal:
        bundle.import_bundle(store, settings, exported)
    assert len(str(refusal.value)) < 5000
    assert len(store.runs()) == 1


def test_too_long_environment_is_refused(settings: Settings, store: Store, exported: Path) -> None:
    def change(members: dict[str, bytes]) -> None:
        environment = json.loads(members["run.json"])["environment"]
        change_record(members, environment=environment | {"host": "x" * 1_000_000})

    rewrite(exported, change)
    with pytest.raises(Refused, match="at most 20,000 characters are allowed"):
        bundle.import_bundle(store, settings, exported)


def test_nul_characters_in_texts_are_replaced(settings: Settings, store: Store, exported: Path) -> None:
    """PostgreSQL does not accept NUL characters in text."""
    fields = {"name": "a\0b", "state": "failed", "cause": "error", "error": "c\0d", "note": "e\0f"}
    rewrite(exported, lambda members: change_record(members, **fields))
    run = store.run(bundle.import_bundle(store, settings, exported))
    assert (run.name, run.error, run.note) == ("a\ufffdb", "c\ufffdd", "e\ufffdf")


def test_times_are_exported_in_order_after_a_clock_was_set_back(
    settings: Settings, store: Store, run_id: int, exported: Path
) -> None:
    with store.database.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run_id).values(created_at=2e9, started_at=1e9, ended_at=3e9))
    exported.write_bytes(bundle.export_bundle(store, settings, run_id))
    run = store.run(bundle.import_bundle(store, settings, exported))
    assert [moment and moment.timestamp() for moment in (run.created_at, run.started_at, run.ended_at)] == [
        *(2e9, 2e9, 3e9)
    ]


@pytest.mark.slow
def test_retry_of_an_imported_run_keeps_its_files(settings: Settings, store: Store, exported: Path) -> None:
    rewrite(exported, lambda members: change_record(members, state="cancelled"))
    run_id = bundle.import_bundle(store, settings, exported)
    store.retry(run_id)
    attempt = queue.claim(store.database, "a host", run_id)
    assert attempt is not None
    attempts.close(store.database, attempt, Exit(0), Cause.ERROR, "")  # makes the worker exit at once
    executor = Executor(settings.model_copy(update={"preload": ""}))
    executor.start(attempt)
    while executor.alive(attempt):
        time.sleep(0.05)
    assert (RunFiles(settings.runs_dir, run_id).dir / "detail" / "a.json").read_bytes() == DETAIL
    assert not list(settings.runs_dir.glob("*.before-*"))


@pytest.mark.parametrize("field", ["created_at", "started_at", "ended_at", "done", "total"])
@pytest.mark.parametrize("value", ["1e20", "-1", "NaN", "Infinity"])
def test_impossible_times_and_progress_are_refused(
    settings: Settings, store: Store, exported: Path, field: str, value: str
) -> None:
    def change(members: dict[str, bytes]) -> None:
        record = json.loads(members["run.json"]) | {field: float(value)}
        members["run.json"] = json.dumps(record).encode()

    rewrite(exported, change)
    with pytest.raises(Refused, match=field):
        bundle.import_bundle(store, settings, exported)
    assert len(store.runs()) == 1


def test_damaged_bundles_and_other_files_are_refused(
    settings: Settings, store: Store, exported: Path, tmp_path: Path
) -> None:
    valid = exported.read_bytes()
    rewrite(exported, lambda members: replace_in_member(members, "rows.jsonl", b"timm", b"tomm"), honest=False)
    with pytest.raises(Refused, match="not those of its manifest: it is damaged"):
        bundle.import_bundle(store, settings, exported)
    other_file = tmp_path / "other.zip"
    for content in (b"", b"a picture, say", valid[: len(valid) // 2], valid[:-200] + bytes(200)):
        other_file.write_bytes(content)
        with pytest.raises(Refused, match="is not a run bundle"):
            bundle.import_bundle(store, settings, other_file)
    with zipfile.ZipFile(other_file, "w") as archive:
        archive.writestr("pairs.csv", "filepath,title\n")
        archive.writestr("images/", "")
        archive.writestr("images/a: b.png", "a picture, say")
    with pytest.raises(Refused, match=r"^other\.zip is not a run bundle: it has no manifest\.json$"):
        bundle.import_bundle(store, settings, other_file)
    other_file.write_bytes(valid)
    rewrite(other_file, lambda members: members.pop("metrics.jsonl"))
    with pytest.raises(Refused, match=r"^other\.zip is not a run bundle: it has no metrics\.jsonl$"):
        bundle.import_bundle(store, settings, other_file)


def test_member_larger_than_its_stated_size_is_refused_early(settings: Settings, store: Store, exported: Path) -> None:
    with zipfile.ZipFile(exported, "a", zipfile.ZIP_DEFLATED) as changed:
        changed.writestr("artifacts/zeros", bytes(50_000_000))
        changed.getinfo("artifacts/zeros").file_size = 10
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="Bad CRC-32"):
            bundle.import_bundle(store, settings, exported)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_member_shorter_than_its_stated_size_is_refused(settings: Settings, store: Store, exported: Path) -> None:
    with zipfile.ZipFile(exported, "a") as changed:
        changed.writestr("artifacts/short", b"short")
        changed.getinfo("artifacts/short").file_size = 10
    with pytest.raises(Refused, match="does not have the 10 bytes it should"):
        bundle.import_bundle(store, settings, exported)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(settings: Settings, store: Store, exported: Path, compression: int) -> None:
    with zipfile.ZipFile(exported, "a") as changed:
        changed.writestr("artifacts/more", b"more", compression)
    with pytest.raises(Refused, match="neither stored nor deflated"):
        bundle.import_bundle(store, settings, exported)


def test_damaged_compressed_data_is_refused(settings: Settings, store: Store, exported: Path) -> None:
    content = bytearray(exported.read_bytes())
    with zipfile.ZipFile(exported) as old:
        start = old.getinfo("rows.jsonl").header_offset + 30 + len("rows.jsonl")
    content[start : start + 20] = b"\xff" * 20
    exported.write_bytes(content)
    with pytest.raises(Refused, match="is not a run bundle"):
        bundle.import_bundle(store, settings, exported)


@pytest.mark.slow
def test_any_flipped_byte_is_imported_or_refused(settings: Settings, store: Store, exported: Path) -> None:
    """Damage in headers must not raise another kind of error."""
    content = exported.read_bytes()
    directory = content.index(b"PK\1\2")
    refused = 0
    for position in (*range(60), *range(directory, len(content))):
        exported.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        try:
            bundle.import_bundle(store, settings, exported)
        except Refused:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("rows.jsonl", None, b"[" * 100_000),
        ("rows.jsonl", None, b"5"),
        ("rows.jsonl", b'"batch_size":1', b'"batch_size":1' + b"0" * 5000),
        ("rows.jsonl", b'"seconds":null', b'"seconds":NaN'),
        ("metrics.jsonl", b"0.1", b"NaN"),
        ("metrics.jsonl", b"0.1", b"1e999"),
        ("metrics.jsonl", b'"step":1', b'"step":1e23'),
        ("metrics.jsonl", b'"step":1', b'"step":' + str(2**31).encode()),
        ("metrics.jsonl", b'"step":1', b'"step":-1'),
        ("artifacts.json", None, b"5"),
        ("artifacts.json", None, b"null"),
        ("artifacts.json", None, b"[" * 100_000),
        ("run.json", None, b"[" * 100_000),
    ],
)
def test_values_outside_the_range_of_their_column_are_refused(
    settings: Settings, store: Store, exported: Path, name: str, old: bytes | None, new: bytes
) -> None:
    def change(members: dict[str, bytes]) -> None:
        if old is None:
            members[name] = new
        else:
            replace_in_member(members, name, old, new)

    rewrite(exported, change)
    with pytest.raises(Refused, match="holds something no run has"):
        bundle.import_bundle(store, settings, exported)
    assert len(store.runs()) == 1


@pytest.mark.parametrize("name", ["log.txt", "process.json", "process-2.json", "exit-2.json", "Exit-2.json.part"])
def test_artifacts_named_like_files_of_the_run_are_refused(
    settings: Settings, store: Store, exported: Path, name: str
) -> None:
    def change(members: dict[str, bytes]) -> None:
        members[f"artifacts/{name}"] = members.pop("artifacts/detail/a.json")
        replace_in_member(members, "artifacts.json", b"detail/a.json", name.encode())

    rewrite(exported, change)
    with pytest.raises(Refused, match="is the name of a file that the run itself keeps"):
        bundle.import_bundle(store, settings, exported)


def test_artifacts_that_the_run_does_not_list_are_refused(settings: Settings, store: Store, exported: Path) -> None:
    rewrite(exported, lambda members: members.update({"artifacts/more.json": b"{}"}))
    with pytest.raises(Refused, match="the bundle holds files that its run does not list"):
        bundle.import_bundle(store, settings, exported)
    assert len(store.runs()) == 1


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("metrics.jsonl", b'"loss"', b'""'),
        ("metrics.jsonl", b'"loss"', b'"lo\\u0000ss"'),
        ("metrics.jsonl", b'"loss"', b'"' + b"x" * 101 + b'"'),
        ("artifacts.json", b'"detail"', b'"de\\u0000tail"'),
        ("rows.jsonl", b'"model":"a"', b'"model":"' + b"x" * 1_000_000 + b'"'),
        ("rows.jsonl", b'"model":"a"', b'"model":"a\\u0000"'),
        ("rows.jsonl", b'"library":"timm"', b'"library":"' + b"x" * 1_000_000 + b'"'),
    ],
)
def test_impossible_names_are_refused_with_a_short_message(
    settings: Settings, store: Store, exported: Path, name: str, old: bytes, new: bytes
) -> None:
    rewrite(exported, lambda members: replace_in_member(members, name, old, new))
    with pytest.raises(Refused) as refusal:
        bundle.import_bundle(store, settings, exported)
    assert len(str(refusal.value)) < 5000
    assert len(store.runs()) == 1


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "/etc/hostname", "a/../../b", "..", ""])
def test_artifacts_of_other_folders_are_refused(settings: Settings, store: Store, exported: Path, name: str) -> None:
    def change(members: dict[str, bytes]) -> None:
        del members["artifacts/detail/a.json"]
        replace_in_member(members, "artifacts.json", b"detail/a.json", name.encode())

    rewrite(exported, change)
    with pytest.raises(Refused, match="not the name of a file below the run's folder"):
        bundle.import_bundle(store, settings, exported)
    assert len(store.runs()) == 1


@pytest.mark.parametrize("way", ["relative", "absolute", "link"])
def test_artifacts_of_other_folders_are_not_exported(
    settings: Settings, store: Store, tmp_path: Path, way: str
) -> None:
    run_id = store.enqueue(ProfileSpec(models=("timm:a",)))
    attempt = queue.claim(store.database, "a host")
    assert attempt is not None
    secret = tmp_path / "secret.txt"
    secret.write_bytes(DETAIL)
    run_dir = RunFiles(settings.runs_dir, run_id).dir
    run_dir.mkdir(parents=True)
    (run_dir / "link").symlink_to(secret)
    name = {"relative": os.path.relpath(secret, run_dir), "absolute": str(secret), "link": "link"}[way]
    attempts.begin(store.database, attempt)
    artifact = StoredArtifact(name=name, kind="detail", size=len(DETAIL), sha256=sha256(DETAIL).hexdigest())
    attempts.record(store.database, attempt, [artifact])
    attempts.finish(store.database, attempt, State.FINISHED)
    attempts.close(store.database, attempt, Exit(0), Cause.ERROR, "")
    path = tmp_path / "run.zip"
    path.write_bytes(bundle.export_bundle(store, settings, run_id))
    with zipfile.ZipFile(path) as archive:
        assert not [member for member in archive.namelist() if member.startswith("artifacts/")]


@pytest.mark.parametrize("name", ["../../../etc/hostname", "/etc/hostname", "a/../../b"])
@pytest.mark.parametrize("field", ["confusion_file", "predictions_file", "embeddings_file"])
def test_rows_with_files_of_other_folders_are_refused(
    settings: Settings, store: Store, tmp_path: Path, field: str, name: str
) -> None:
    run_id = queue_evaluate(store)
    record(store, run_id, [evaluate_row("zeroshot")])
    path = tmp_path / "run.zip"
    path.write_bytes(bundle.export_bundle(store, settings, run_id))

    def change(members: dict[str, bytes]) -> None:
        row = json.loads(members["rows.jsonl"]) | {field: name}
        members["rows.jsonl"] = json.dumps(row).encode()

    rewrite(path, change)
    with pytest.raises(Refused, match=f"{field} is '{name}', which is not a file below the run's folder"):
        bundle.import_bundle(store, settings, path)


def test_only_trainings_need_their_checkpoint_in_the_run_folder(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    """An evaluation of a training has the absolute path of the checkpoint, which belongs to the training."""
    best, path = str(tmp_path / "runs/18/checkpoints/best.pt"), tmp_path / "run.zip"
    evaluation = queue_evaluate(store, checkpoint=best)
    record(store, evaluation, [evaluate_row("zeroshot", checkpoint=best)])
    path.write_bytes(bundle.export_bundle(store, settings, evaluation))
    elsewhere = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere"})
    other_store = open_store(elsewhere)
    assert other_store.rows(bundle.import_bundle(other_store, elsewhere, path)) == store.rows(evaluation)
    training = queue_train(store)
    record(store, training, [train_row(1, checkpoint=best)])
    path.write_bytes(bundle.export_bundle(store, settings, training))
    problem = f"a row's checkpoint is {best[:100]!r}, which is not a file below the run's folder"
    with pytest.raises(Refused, match=re.escape(problem)):
        bundle.import_bundle(store, settings, path)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("batch_size", 2**63, "a row's batch_size is an integer above 1,000,000,000,000,000,000"),
        ("latency_ms", -1.0, "a row's latency_ms is -1.0, and a time is above 0"),
        ("process_medians_ms", [1.0, 0], "a row's process_medians_ms is 0, and a time is above 0"),
        ("contention", {"extra_switches": 10**400}, "a row's extra_switches is an integer above"),
        ("date", "nan", "Invalid isoformat string: 'nan'"),
        ("date", "2026-11-30T00:00:00", "a row's date is '2026-11-30T00:00:00', which has no time zone"),
    ],
)
def test_rows_with_impossible_numbers_and_dates_are_refused(
    settings: Settings, store: Store, tmp_path: Path, field: str, value: object, problem: str
) -> None:
    """Compare reads the timings of all users, so such a row would break its page for others."""
    run_id = queue_benchmark(store, "timm:resnet18")
    finish(store, run_id, [benchmark_row("resnet18", std_ms=0, loop_ms=0, date="2026-11-30T00:00:00+00:00")])
    path = tmp_path / "run.zip"
    path.write_bytes(bundle.export_bundle(store, settings, run_id))
    assert store.rows(bundle.import_bundle(store, settings, path)) == store.rows(run_id)

    def change(members: dict[str, bytes]) -> None:
        members["rows.jsonl"] = json.dumps(json.loads(members["rows.jsonl"]) | {field: value}).encode()

    rewrite(path, change)
    with pytest.raises(Refused, match=re.escape(f"run.zip holds something no run has: {problem}")):
        bundle.import_bundle(store, settings, path)


@pytest.mark.parametrize("library", ["../../etc", "a/b", "..", "a\\\\b", "", "a" * 41])
def test_rows_with_invalid_library_names_are_refused(
    settings: Settings, store: Store, exported: Path, library: str
) -> None:
    old, new = b'"library":"timm"', f'"library":"{library}"'.encode()
    rewrite(exported, lambda members: replace_in_member(members, "rows.jsonl", old, new))
    with pytest.raises(Refused, match="not a plain name"):
        bundle.import_bundle(store, settings, exported)


@pytest.mark.parametrize("name", ["rows.jsonl", "metrics.jsonl"])
def test_too_many_lines_are_refused_by_import_and_export(
    settings: Settings, store: Store, run_id: int, exported: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for limits in (format.MOST_LINES, format.MOST_BYTES):
        with monkeypatch.context() as patch:
            patch.setitem(limits, name, 0)
            with pytest.raises(Refused, match=rf"run {run_id} does not fit into a bundle: {name} is too long: at most"):
                bundle.export_bundle(store, settings, run_id)
            with pytest.raises(Refused, match=rf"{name} is too long: at most|{name} has .* bytes, at most 0 are taken"):
                bundle.import_bundle(store, settings, exported)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("rows.jsonl", 100_000_000), ("log.txt", 20_000_000)])
def test_too_long_texts_are_refused(settings: Settings, store: Store, exported: Path, name: str, most: int) -> None:
    rewrite(exported, lambda members: members.update({name: bytes(most + 1)}), compression=zipfile.ZIP_STORED)
    with pytest.raises(Refused, match=f"{name} has {most + 1:,} bytes"):
        bundle.import_bundle(store, settings, exported)


@pytest.mark.slow
def test_long_training_is_equal_after_export_and_import(settings: Settings, store: Store, tmp_path: Path) -> None:
    """Rows and metrics each take several pieces, and the metrics three inserts. 28,000 steps log 25,200 values."""
    run_id, path = queue_train(store), tmp_path / "run.zip"
    row = train_row(1, checkpoint="")
    record(store, run_id, [row])
    copy = {"run_id": run_id, "attempt_id": 1, "kind": row.kind, "library": row.library, "model": row.model}
    copy |= {"status": row.status, "payload": row.model_dump_json()}
    with store.database.write() as connection:
        connection.execute(insert(rows), [copy] * 2_000)
    names = [f"train/value_{number}" for number in range(9)]
    points = [
        {"run_id": run_id, "name": name, "step": step, "value": 1 / step}
        for name in names
        for step in range(10, 28_001, 10)
    ]
    with store.database.write() as connection:
        connection.execute(insert(metrics), points)
    RunFiles(settings.runs_dir, run_id).dir.mkdir()
    RunFiles(settings.runs_dir, run_id).log.touch()
    path.write_bytes(bundle.export_bundle(store, settings, run_id))
    with zipfile.ZipFile(path) as exported:
        sizes = [exported.getinfo(name).file_size for name in ("rows.jsonl", "metrics.jsonl")]
    assert min(sizes) > bundle.PIECE_BYTES
    assert len(points) > 2 * bundle.AT_ONCE
    elsewhere = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere"})
    other_store = open_store(elsewhere)
    new_id = bundle.import_bundle(other_store, elsewhere, path)
    assert other_store.rows(new_id) == store.rows(run_id)
    assert list(other_store.metrics(new_id)) == list(store.metrics(run_id))
    assert bundle.export_bundle(other_store, elsewhere, new_id) == path.read_bytes(), (
        "a second export gives the same file"
    )
    other_store.close()


@pytest.mark.slow
def test_bundle_has_only_the_end_of_a_very_long_log(
    settings: Settings, store: Store, run_id: int, exported: Path, tmp_path: Path
) -> None:
    files = RunFiles(settings.runs_dir, run_id)
    lines = [f"line {number:07}, {'x' * 80}\n" for number in range(220_000)]
    files.older_log.write_text("".join(lines[:110_000]))
    files.log.write_text("".join(lines[110_000:]))
    exported.write_bytes(bundle.export_bundle(store, settings, run_id))
    elsewhere = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere"})
    other_store = open_store(elsewhere)
    new_id = bundle.import_bundle(other_store, elsewhere, exported)
    first, *rest = RunFiles(elsewhere.runs_dir, new_id).log.read_text().splitlines(keepends=True)
    assert first == "[the bundle of this run has only the last 20 MB of its log]\n"
    assert rest == lines[-len(rest) :]
    assert 19_999_000 < len("".join([first, *rest])) <= 20_000_000
    assert bundle.export_bundle(other_store, elsewhere, new_id) == exported.read_bytes(), (
        "a second export gives the same file"
    )
    other_store.close()


def test_two_values_of_a_metric_at_one_step_are_refused(settings: Settings, store: Store, exported: Path) -> None:
    rewrite(exported, lambda members: members.update({"metrics.jsonl": members["metrics.jsonl"] * 2}))
    with pytest.raises(Refused, match=r"run\.zip holds two values of one metric at one step"):
        bundle.import_bundle(store, settings, exported)
    assert len(store.runs()) == 1


@pytest.mark.parametrize("what", ["files", "store"])
def test_import_on_a_full_disk_has_a_clear_error_and_leaves_no_files(
    settings: Settings, store: Store, run_id: int, exported: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit on file sizes would leave truncated .pyc files
    large = os.urandom(3_000_000)
    metric = b'{"step":%d,"name":"loss","value":0.1}\n'

    def change(members: dict[str, bytes]) -> None:
        if what == "files":
            members["artifacts/detail/a.json"] = large
        else:
            members["metrics.jsonl"] = b"".join(metric % step for step in range(20_000))

    rewrite(exported, change)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(Refused if what == "files" else Unavailable) as raised:
            bundle.import_bundle(store, settings, exported)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if what == "files":
        assert str(raised.value) == "run.zip cannot be imported: the disk is full"
    else:
        assert "has no space left" in str(raised.value)
    assert [run.id for run in store.runs()] == [run_id]
    assert sorted(path.name for path in settings.runs_dir.iterdir() if path.is_dir()) == [str(run_id)]
    assert RunFiles(settings.runs_dir, bundle.import_bundle(store, settings, exported)).log.is_file()
    assert not list(settings.runs_dir.glob("*.before-*"))


def with_three_checkpoints(settings: Settings, store: Store) -> int:
    """Return a finished training with three checkpoints of 7 bytes, and a larger one."""
    run_id = queue_train(store)
    folder = RunFiles(settings.runs_dir, run_id).dir
    names = ("best.pt", "epoch_1.pt", "latest.pt", "epoch_0.pt")
    write_checkpoints(folder, *names)
    (folder / "checkpoints" / "epoch_0.pt").write_bytes(b"larger weights")
    recorded = []
    for name in names:
        content = (folder / "checkpoints" / name).read_bytes()
        fields = {"size": len(content), "sha256": sha256(content).hexdigest()}
        recorded.append(StoredArtifact(name=f"checkpoints/{name}", kind="checkpoint", **fields))
    record(store, run_id, [train_row(1), *recorded])
    return run_id


@pytest.mark.parametrize(
    ("limit_bytes", "exported_names", "omitted_names"),
    [
        (7, ["best.pt"], "checkpoints/latest.pt, checkpoints/epoch_1.pt, checkpoints/epoch_0.pt"),
        (20, ["best.pt", "latest.pt"], "checkpoints/epoch_1.pt, checkpoints/epoch_0.pt"),
        (21, ["best.pt", "latest.pt", "epoch_1.pt"], "checkpoints/epoch_0.pt"),
    ],
)
def test_bundle_prefers_best_and_latest_checkpoints_and_names_others(
    settings: Settings,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    limit_bytes: int,
    exported_names: list[str],
    omitted_names: str,
) -> None:
    run_id = with_three_checkpoints(settings, store)
    monkeypatch.setattr(bundle_files, "ARTIFACT_BYTES", limit_bytes)
    messages: list[str] = []
    with zipfile.ZipFile(BytesIO(bundle.export_bundle(store, settings, run_id, messages.append))) as archive:
        names = {name.removeprefix("artifacts/checkpoints/") for name in archive.namelist() if name.endswith(".pt")}
    assert names == set(exported_names)
    assert messages == [f"not in the bundle, because it takes at most 0 MB of files: {omitted_names}"]
    assert bundle_files.left_out(store, settings, store.run(run_id)) == messages


def test_missing_and_changed_files_are_named_and_need_no_space(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = with_three_checkpoints(settings, store)
    folder = RunFiles(settings.runs_dir, run_id).dir / "checkpoints"
    monkeypatch.setattr(bundle_files, "ARTIFACT_BYTES", 28)
    (folder / "epoch_1.pt").unlink()
    (folder / "latest.pt").write_bytes(b"others!")
    messages: list[str] = []
    bundle.export_bundle(store, settings, run_id, messages.append)
    assert messages == [
        "not in the bundle, because the run's folder no longer has them: checkpoints/epoch_1.pt",
        "not in the bundle, because they have changed since the run wrote them: checkpoints/latest.pt",
    ]
