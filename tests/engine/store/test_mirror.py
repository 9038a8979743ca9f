"""Copies of run files in object storage, for machines that share a store but no runs folder."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from sqlalchemy import update

from engine import jobs
from engine.__main__ import main
from engine.jobs import checkpoints, named_files, references
from engine.settings import Settings
from engine.specs import EvaluateSpec, Refused, TrainSpec
from engine.store import Attempt, Cause, Exit, Run, State, Store, attempts, open_store, queue
from engine.store.bundles.bundle import export_bundle, import_file
from engine.store.copies import mirror, uploads
from engine.store.copies.remote import Unreachable, _connect
from engine.store.files import INDEX, RunFiles
from engine.store.tables import runs

DONE = {"code": 0, "out_of_memory": False, "note": "", "host_lost": False}


class Bucket(MemoryFileSystem):
    """A file system in memory that can be made unreachable."""

    protocol = "bucket"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    down = False
    requests = 0

    def _reach(self) -> None:
        Bucket.requests += 1
        if Bucket.down:
            raise RuntimeError("no route to the bucket")

    def cat_file(self, *arguments: Any, **options: Any) -> bytes:
        self._reach()
        return super().cat_file(*arguments, **options)  # type: ignore[no-any-return]

    def put_file(self, *arguments: Any, **options: Any) -> None:
        self._reach()
        super().put_file(*arguments, **options)


fsspec.register_implementation("bucket", Bucket)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty the bucket after each test, and look into it without a pause."""
    monkeypatch.setattr(mirror, "LOOK_S", 0.0)
    monkeypatch.setattr(mirror, "FAILED_S", 0.0)
    Bucket.down = False
    yield
    Bucket.store.clear()
    mirror._looks.clear()
    _connect.cache_clear()


URL = "bucket://runs/of/all"


@pytest.fixture
def worker_machine(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Settings:
    """Return the settings of the machine that runs the attempt."""
    url = str(tmp_path / "copies") if getattr(request, "param", "") == "folder" else URL
    return settings.model_copy(update={"artifacts_url": url})


@pytest.fixture
def other_machine(worker_machine: Settings, tmp_path: Path) -> Settings:
    """Return the settings of another machine."""
    return worker_machine.model_copy(update={"runs_dir": tmp_path / "elsewhere"})


def start(settings: Settings, store: Store, run_id: int) -> tuple[Run, Attempt, RunFiles]:
    """Begin the next attempt of a run on the machine with `settings`, and return run, attempt and files."""
    attempt = queue.claim(store.database, "a host")
    assert attempt is not None
    assert attempt.run_id == run_id
    files = RunFiles(settings.runs_dir, run_id)
    files.dir.mkdir(parents=True, exist_ok=True)
    files.process(attempt.number).write_text("{}")
    run = store.run(run_id)
    mirror.begin(settings, run, attempt.number)
    attempts.begin(store.database, attempt)
    return run, attempt, files


def end(store: Store, attempt: Attempt, exit: Exit) -> None:
    """End an attempt. A killed run is queued again."""
    if exit.code == 0:
        attempts.finish(store.database, attempt, State.FINISHED)
    attempts.close(store.database, attempt, exit, Cause.KILLED, "killed")


def save(files: RunFiles, name: str, content: bytes, step: int = 1) -> None:
    """Replace a checkpoint and its manifest as a training does: by renaming."""
    folder = files.dir / "checkpoints"
    folder.mkdir(exist_ok=True)
    manifest = json.dumps({"step": step, "sha256": sha256(content).hexdigest()})
    for path, data in ((folder / name, content), (folder / f"{name}.json", manifest.encode())):
        part = path.with_name(f".{path.name}.tmp")
        part.write_bytes(data)
        part.replace(path)


def is_complete(settings: Settings, run: Run, name: str) -> bool:
    """Return whether a checkpoint agrees with its manifest."""
    path = RunFiles(settings.runs_dir, run.id).dir / "checkpoints" / name
    digest = sha256(path.read_bytes()).hexdigest()
    return bool(json.loads(path.with_name(f"{name}.json").read_text())["sha256"] == digest)


@pytest.mark.parametrize("sweep", [False, True])
def test_submission_copies_the_uploads_that_it_names(
    worker_machine: Settings, store: Store, monkeypatch: pytest.MonkeyPatch, sweep: bool
) -> None:
    monkeypatch.setattr(sys.modules["engine.jobs.submit"], "ensure_scheduler", lambda *_: None)
    upload = worker_machine.runs_dir / "uploads" / "pets-1234"
    (upload / "cats").mkdir(parents=True)
    spec = TrainSpec(data=str(upload))
    if sweep:
        jobs.submit_sweep(store, worker_machine, {"seed=1": spec.model_copy(update={"seed": 1})})
    else:
        jobs.submit(store, worker_machine, spec)
    assert [path for path in Bucket.store if path.endswith("/uploads/pets-1234.tar")]


def test_damaged_run_is_deleted_without_its_copies(worker_machine: Settings, store: Store) -> None:
    run_id = store.enqueue(TrainSpec())
    store.request_cancel(run_id)
    with store.database.write() as connection:
        connection.execute(update(runs).values(spec="{"))
    jobs.delete_run(store, worker_machine, run_id)
    with pytest.raises(LookupError):
        store.run(run_id)


def test_upload_is_copied_at_submission_and_fetched_when_needed(
    worker_machine: Settings, other_machine: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = worker_machine.runs_dir / "uploads" / "pets-1234"
    pair = upload / "cats" / "one.txt"
    pair.parent.mkdir(parents=True)
    pair.write_text("a cat")
    (upload / ".owner").write_text("ann@example.org")
    run = store.run(store.enqueue(TrainSpec(data=str(upload / "cats"))))
    put_file = Bucket.put_file

    def put_and_submit_another(*arguments: Any, **options: Any) -> None:
        put_file(*arguments, **options)
        assert not [path for path in Bucket.store if path.endswith("1234.tar")], "nobody fetches an incomplete copy"
        monkeypatch.setattr(Bucket, "put_file", put_file)
        named_files.share_uploads(worker_machine, run.spec)

    monkeypatch.setattr(Bucket, "put_file", put_and_submit_another)
    named_files.share_uploads(worker_machine, run.spec)
    requests = Bucket.requests
    named_files.share_uploads(worker_machine, run.spec)
    assert Bucket.requests == requests, "one copy is enough"
    (copy,) = (path for path in Bucket.store if "uploads" in path)
    assert copy.endswith("runs/of/all/uploads/pets-1234.tar")
    shutil.rmtree(upload)  # as on another machine with the same path
    get_file = Bucket.get_file

    def get_beside_another(*arguments: Any, **options: Any) -> None:
        get_file(*arguments, **options)
        monkeypatch.setattr(Bucket, "get_file", get_file)
        uploads.fetch(worker_machine, upload)

    monkeypatch.setattr(Bucket, "get_file", get_beside_another)
    named_files.check_again(store, worker_machine, run)
    assert (pair.read_text(), (upload / ".owner").read_text()) == ("a cat", "ann@example.org")
    assert [path.name for path in upload.parent.iterdir()] == ["pets-1234"]
    uploads.fetch(worker_machine.model_copy(update={"artifacts_url": "nowhere://"}), upload)  # it is here already
    assert uploads.folder_of(worker_machine, upload.parent / ".." / str(run.id)) is None
    monkeypatch.chdir(worker_machine.runs_dir.parent)
    relative = worker_machine.model_copy(update={"runs_dir": Path(worker_machine.runs_dir.name)})
    assert uploads.folder_of(relative, pair) == upload
    for _ in range(2):  # the second time, there is no copy
        uploads.delete(worker_machine, upload)
    elsewhere = other_machine.runs_dir / "uploads" / "pets-1234"
    uploads.fetch(other_machine, elsewhere)
    assert not elsewhere.exists()
    store.request_cancel(run.id)
    jobs.delete_run(store, worker_machine, run.id)  # it has no copies


def training(store: Store, **fields: Any) -> int:
    return store.enqueue(TrainSpec(steps=10, **fields))


@pytest.mark.parametrize("worker_machine", ["bucket", "folder"], indirect=True)
def test_another_machine_reads_the_files_of_a_run(
    worker_machine: Settings, other_machine: Settings, store: Store
) -> None:
    run, attempt, files = start(worker_machine, store, training(store))
    files.log.write_bytes(b"step 1\n")
    (files.dir / "samples[1]*.csv").write_bytes(b"ms\n1\n")
    save(files, "epoch_1.pt", b"one")
    save(files, "best.pt", b"one")
    (files.dir / "link.txt").symlink_to(files.log)
    (files.dir / ".hidden").mkdir()
    (files.dir / ".hidden" / "part.csv").touch()
    mirror.push(worker_machine, run, 1)
    copy = RunFiles(other_machine.runs_dir, run.id)
    mirror.fetch(other_machine, run)
    assert copy.log_tail(9) == "step 1\n"
    assert (copy.dir / "samples[1]*.csv").stat().st_mtime_ns == (files.dir / "samples[1]*.csv").stat().st_mtime_ns
    assert not list(copy.dir.glob("*/*.pt")), "checkpoints are large, so each is fetched only when needed"
    assert not copy.process().exists()
    assert [path.name for path in checkpoints.complete(other_machine, run)] == ["best.pt", "epoch_1.pt"]
    spec = references.resolve(store, other_machine, EvaluateSpec(model=str(run.id)))
    assert isinstance(spec, EvaluateSpec)
    assert Path(spec.checkpoint).read_bytes() == b"one"
    assert Path(spec.checkpoint).is_relative_to(other_machine.runs_dir)
    named = EvaluateSpec(checkpoint=str(copy.dir / "checkpoints" / "epoch_1.pt"))
    references.resolve(store, other_machine, named)
    assert is_complete(other_machine, run, "epoch_1.pt")

    modified_ns = files.log.stat().st_mtime_ns
    files.log.write_bytes(b"step 1\nstep 2\n")
    os.utime(files.log, ns=(modified_ns, modified_ns))  # as on a disk with a coarse clock
    (files.dir / "samples[1]*.csv").write_bytes(b"ms\n1\n2\n")
    save(files, "best.pt", b"two", step=2)
    for name in ("epoch_1.pt", "epoch_1.pt.json"):
        (files.dir / "checkpoints" / name).unlink()
    remote, root = fsspec.core.url_to_fs(worker_machine.artifacts_url)
    with remote.open(f"{root}/{mirror.place_name(run)}/index.json") as index:
        mirror.push(worker_machine, run, 1, DONE)
        assert not json.load(index)["exit"], "a reader gets the whole old index or the whole new one"
    files.log.write_bytes(b"only here\n")
    mirror.fetch(worker_machine, run)
    assert files.log_tail(9) == "only here\n", "originals are never replaced"
    assert mirror.look(worker_machine, run) is None
    files.log.write_bytes(b"step 1\nstep 2\n")
    mirror.look(other_machine, run)
    assert copy.log.exists(), "kept until the new one is here"
    mirror.fetch(other_machine, run)
    assert copy.log_tail(9) == "step 1\nstep 2\n"
    assert [path.name for path in copy.dir.glob("checkpoints/*")] == ["best.pt.json"], (
        "replaced and removed files are deleted"
    )
    (copy.dir / INDEX).write_text("damaged")
    checkpoints.fetch(other_machine, run, "best.pt")
    assert is_complete(other_machine, run, "best.pt")
    requests = Bucket.requests
    mirror.fetch(other_machine, run)
    assert Bucket.requests == requests, "no request, because the attempt has ended"
    end(store, attempt, Exit(0))
    bundle = export_bundle(store, other_machine, run.id)
    assert bundle == export_bundle(store, worker_machine.model_copy(update={"artifacts_url": ""}), run.id)

    assert len(remote.find(root)) == 5, "only the index, the log, the samples, a checkpoint and its manifest"
    jobs.delete_run(store, worker_machine, run.id)
    assert [path.removeprefix(root) for path in remote.find(root)] == [f"/deleted/{mirror.place_name(run)}"], (
        "only the mark of a deleted run"
    )
    imported = store.run(import_file(store, worker_machine, BytesIO(bundle), "run.zip"))
    mirror.fetch(other_machine, imported)
    assert RunFiles(other_machine.runs_dir, imported.id).log_tail(9) == "step 1\nstep 2\n"
    for machine in (worker_machine, other_machine):
        assert import_file(store, machine, BytesIO(bundle), "run.zip") == imported.id, "its files are copied already"


def test_checkpoint_replaced_during_its_copy_is_copied_completely(
    worker_machine: Settings, other_machine: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, files = start(worker_machine, store, training(store))
    save(files, "latest.pt", b"0")
    mirror.push(worker_machine, run, 1)
    remote = _connect(worker_machine.artifacts_url, os.getpid())[0]
    put = remote.put

    def put_and_replace(*arguments: Any) -> None:
        save(files, "latest.pt", b"2")
        put(*arguments)

    def put_incompletely(paths: list[str], objects: list[str]) -> None:
        put(paths[:1], objects[:1])
        raise OSError("the connection broke")

    links, link_file = list[Path](), os.link

    def replace_and_link(path: Path, link: Path) -> None:
        links.append(path)
        if len(links) == 4:  # of the second scan, the second of checkpoint and manifest
            save(files, "latest.pt", b"1, replaced")
        link_file(path, link)

    save(files, "latest.pt", b"0")
    monkeypatch.setattr(os, "link", replace_and_link)
    mirror.push(worker_machine, run, 1)
    monkeypatch.setattr(os, "link", link_file)
    mirror.fetch(other_machine, run, lambda name: True)
    assert is_complete(other_machine, run, "latest.pt")
    assert len(links) == 8

    save(files, "latest.pt", b"1")
    for put_variant, expected in ((put_incompletely, b"1, replaced"), (put_and_replace, b"1"), (put, b"2")):
        monkeypatch.setattr(remote, "put", put_variant)
        if put_variant is put_incompletely:
            with pytest.raises(Unreachable, match="the connection broke"):
                mirror.push(worker_machine, run, 1)
        else:
            mirror.push(worker_machine, run, 1)
        mirror.fetch(other_machine, run, lambda name: True)
        assert is_complete(other_machine, run, "latest.pt")
        assert (RunFiles(other_machine.runs_dir, run.id).dir / "checkpoints" / "latest.pt").read_bytes() == expected

    save(files, "latest.pt", b"3")
    mirror.push(worker_machine, run, 1)
    mirror.look(other_machine, run)
    save(files, "latest.pt", b"4")
    mirror.push(worker_machine, run, 1)
    monkeypatch.setattr(mirror, "LOOK_S", 60.0)
    mirror.fetch(other_machine, run, lambda name: True)  # the snapshot that it has looked at is gone
    assert is_complete(other_machine, run, "latest.pt")

    def link_and_write(path: Path, link: Path) -> None:
        link_file(path, link)
        links.append(path)
        (files.dir / f"{len(links)}.csv").touch()

    save(files, "latest.pt", b"5")
    monkeypatch.setattr(os, "link", link_and_write)
    mirror.push(worker_machine, run, 1)  # new files need no further scan


def test_next_attempt_continues_elsewhere_and_the_earlier_cannot_write(
    worker_machine: Settings, other_machine: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, attempt, files = start(worker_machine, store, training(store))
    files.log.write_bytes(b"first\n")
    mirror.push(worker_machine, run, 1)
    mirror.fetch(other_machine, run)
    save(files, "epoch_1.pt", b"1")
    requests = Bucket.requests
    for _ in range(2):  # the second time, nothing has changed
        mirror.push(worker_machine, run, 1)
    assert Bucket.requests == requests + 3, "the checkpoint, its manifest and the index; the log is there already"
    save(files, "epoch_2.pt", b"2")  # not copied, because the host was lost before
    end(store, attempt, Exit(note="its node left", host_lost=True))
    files.log.write_bytes(b"first, more\n")
    mirror.fetch(worker_machine, replace(run, attempt=2))
    assert files.log_tail(9) == "first, more\n", "the copies are older while the second attempt has not begun"
    monkeypatch.setattr(mirror, "LOOK_S", 60.0)
    second, attempt, copy = start(other_machine, store, run.id)
    monkeypatch.setattr(mirror, "LOOK_S", 0.0)
    assert is_complete(other_machine, run, "epoch_1.pt")
    assert not (copy.dir / "checkpoints" / "epoch_2.pt").exists()
    with copy.log.open("ab") as log:
        log.write(b"second\n")
    (copy.dir / "checkpoints" / "epoch_1.pt").unlink()
    save(copy, "epoch_3.pt", b"3")
    mirror.push(other_machine, second, 2)
    assert not [path for path in Bucket.store if "epoch_1.pt@" in path]
    files.log.write_bytes(b"late\n")
    mirror.push(worker_machine, run, 1)  # the lost host was alive
    requests = Bucket.requests
    files.log.write_bytes(b"later\n")
    mirror.push(worker_machine, run, 1)
    assert Bucket.requests == requests, "it has given up"
    end(store, attempt, Exit(note="killed", code=-9))
    (leftover := files.dir / f"{mirror.PUSH_PREFIX}killed").mkdir()
    third, attempt, _ = start(worker_machine, store, run.id)
    assert third.attempt == 3
    assert not leftover.exists()
    assert files.log_tail(9) == "first\nsecond\n"
    assert is_complete(worker_machine, third, "epoch_3.pt")
    assert sorted(path.name for path in files.dir.glob("*/*.pt")) == ["epoch_2.pt", "epoch_3.pt"], (
        "epoch_2.pt was never copied, so it is kept"
    )
    save(files, "epoch_4.pt", b"4")
    mirror.push(worker_machine, third, 3)
    end(store, attempt, Exit(note="its node left", host_lost=True))
    fourth, *_ = start(other_machine, store, run.id)
    assert is_complete(other_machine, fourth, "epoch_4.pt")


def test_abandoned_attempt_cannot_delete_files_of_the_next_one(
    worker_machine: Settings, other_machine: Settings, store: Store
) -> None:
    run, attempt, files = start(worker_machine, store, training(store))
    save(files, "latest.pt", b"1")
    mirror.push(worker_machine, run, 1)
    end(store, attempt, Exit(note="its node was not heard from", host_lost=True))
    second, attempt, _ = start(other_machine, store, run.id)
    save(files, "latest.pt", b"2, which is too late")
    mirror.push(worker_machine, run, 1)  # it is still alive, and the next attempt has not copied anything
    mirror.push(other_machine, second, 2)
    end(store, attempt, Exit(note="its node left", host_lost=True))
    third, *_ = start(worker_machine, store, run.id)
    assert third.attempt == 3
    assert is_complete(worker_machine, third, "latest.pt")
    assert (files.dir / "checkpoints" / "latest.pt").read_bytes() == b"1"


def test_unreachable_bucket_gives_errors_without_repeated_requests(
    worker_machine: Settings,
    other_machine: Settings,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, attempt, files = start(worker_machine, store, training(store))
    files.log.write_bytes(b"step 1\n")
    Bucket.down = True
    for action in (mirror.push, mirror.begin):
        with pytest.raises(Unreachable, match="no route to the bucket"):
            action(worker_machine if action is mirror.push else other_machine, run, 1 if action is mirror.push else 2)
    with pytest.raises(Unreachable, match=f"the files in {URL} cannot be reached"):
        mirror.fetch(other_machine, run)
    monkeypatch.setattr(mirror, "FAILED_S", 60.0)
    requests = Bucket.requests
    other_run = store.run(training(store))
    for unknown in (run, replace(other_run, attempt=1)):
        with pytest.raises(Unreachable, match="no route"):
            mirror.fetch(other_machine, unknown)
    mirror.fetch(other_machine, other_run)
    assert Bucket.requests == requests, "pages must not wait for the bucket each time, nor for a run without files"
    end(store, attempt, Exit(0))
    monkeypatch.setattr(mirror, "FAILED_S", 0.0)
    monkeypatch.setattr(Bucket, "rm", Bucket.cat_file)
    with pytest.raises(Refused, match=f"run {run.id} is deleted, but not the copies"):
        jobs.delete_run(store, worker_machine, run.id)


def test_runs_upload_copies_files_of_an_earlier_run(
    worker_machine: Settings,
    other_machine: Settings,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_url = worker_machine.model_copy(update={"artifacts_url": ""})
    run, attempt, files = start(without_url, store, training(store))
    files.log.write_bytes(b"made before the URL was set\n")
    with pytest.raises(Refused, match="its files are copied when it ends"):
        mirror.upload(worker_machine, run)
    end(store, attempt, Exit(0))
    with pytest.raises(Refused, match="were not made here"):
        mirror.upload(other_machine, store.run(run.id))
    monkeypatch.setenv("VITALS_ARTIFACTS_URL", worker_machine.artifacts_url)
    assert main(["runs", "upload", str(run.id)]) == 0
    monkeypatch.setenv("VITALS_RUNS_DIR", str(other_machine.runs_dir))
    monkeypatch.setenv("VITALS_DATABASE_URL", str(store.database.url))
    assert main(["runs", "log", str(run.id)]) == 0
    assert capsys.readouterr().out.endswith("made before the URL was set\n")
    assert main(["runs", "upload", str(run.id)]) == 2, "this machine does not have the original files"


@pytest.mark.slow
@pytest.mark.parametrize("worker_machine", ["bucket", "folder"], indirect=True)
def test_prune_deletes_only_folders_of_runs_deleted_elsewhere(
    worker_machine: Settings,
    other_machine: Settings,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def engine(settings: Settings, *arguments: str) -> str:
        monkeypatch.setenv("VITALS_RUNS_DIR", str(settings.runs_dir))
        assert main(["runs", *arguments]) == 0
        return "".join(capsys.readouterr())

    monkeypatch.setenv("VITALS_DATABASE_URL", str(store.database.url))
    monkeypatch.setenv("VITALS_ARTIFACTS_URL", worker_machine.artifacts_url)
    prune = ("prune", "--days", "1")
    assert engine(worker_machine, *prune) == "no run matches\n"
    third = worker_machine.model_copy(update={"runs_dir": other_machine.runs_dir.with_name("third")})
    moved, kept_run, of_earlier_store = (store.run(training(store)) for _ in range(3))
    _, attempt, first = start(worker_machine, store, moved.id)
    first.log.write_bytes(b"0" * 2_000_000)
    mirror.push(worker_machine, moved, 1)
    end(store, attempt, Exit(code=-9, note="killed"))
    assert store.queue_order()[0] == moved.id
    run, attempt, _ = start(other_machine, store, moved.id)
    mirror.push(other_machine, run, 2, DONE)
    end(store, attempt, Exit(0))
    mirror.fetch(third, store.run(moved.id))
    for other in (kept_run, of_earlier_store):
        run, attempt, files = start(worker_machine, store, other.id)
        files.log.write_bytes(b"made here")
        mirror.push(worker_machine, run, 1, DONE)
        end(store, attempt, Exit(0))
    RunFiles(worker_machine.runs_dir, of_earlier_store.id).dir.rename(worker_machine.runs_dir / "99")
    earlier = RunFiles(worker_machine.runs_dir, of_earlier_store.id)
    earlier.prepare()
    earlier.log.write_text("of a store that this folder had before")
    for run in (moved, of_earlier_store):
        engine(other_machine, "delete", str(run.id))
    assert first.log.is_file()
    remote, root = fsspec.core.url_to_fs(worker_machine.artifacts_url)
    remote.pipe_file(f"{root}/deleted/{mirror.place_name(kept_run)}", b"")  # a restored backup undid its deletion
    (worker_machine.runs_dir / "98.before-1").mkdir()
    for number, index in enumerate(("{}", "[]"), start=97):
        (worker_machine.runs_dir / str(number)).mkdir()
        (worker_machine.runs_dir / str(number) / INDEX).write_text(index)

    assert f"2.0 MB of the folders belong to run {moved.id}, deleted on another machine" in engine(
        worker_machine, "storage"
    )
    assert f"run {moved.id} was deleted on another machine, and its folder here would be deleted too" in engine(
        worker_machine, *prune
    )
    if worker_machine.artifacts_url == URL:
        with monkeypatch.context() as unreachable:
            unreachable.setattr(Bucket, "down", True)
            unreachable.setattr(Bucket, "exists", Bucket.cat_file)
            assert "are not listed: the files in" in engine(worker_machine, "storage")
            assert main(["runs", *prune, "--yes"]) == 2
            assert "no route to the bucket" in capsys.readouterr().err
    assert first.log.is_file()
    for machine in (worker_machine, third):
        assert engine(machine, *prune, "--yes").splitlines() == [
            f"run {moved.id} was deleted on another machine, and its folder here is deleted",
            "no run matches",
        ]
        assert not RunFiles(machine.runs_dir, moved.id).dir.exists()
        assert engine(machine, *prune, "--yes") == "no run matches\n"
    assert RunFiles(worker_machine.runs_dir, kept_run.id).log.read_bytes() == b"made here"
    assert earlier.log.is_file()


def test_files_uploaded_later_have_the_exit_of_the_last_attempt(
    worker_machine: Settings, other_machine: Settings, store: Store
) -> None:
    run, attempt, _ = start(worker_machine, store, training(store))
    killed = Exit(code=-9, note="killed")
    mirror.push(worker_machine, run, 1, asdict(killed))
    end(store, attempt, killed)
    second, attempt, _ = start(worker_machine.model_copy(update={"artifacts_url": ""}), store, run.id)
    mirror.push(worker_machine, second, 2)  # it has not begun with the URL
    before = mirror.look(other_machine, run)
    assert before is not None
    assert (before.attempt, before.exit) == (1, asdict(killed))
    end(store, attempt, Exit(0))
    mirror.upload(worker_machine, store.run(run.id))
    copies = mirror.look(other_machine, second)
    assert copies is not None
    assert (copies.attempt, copies.exit) == (2, asdict(Exit()))
    mirror.push(worker_machine, second, 2, DONE)
    mirror.upload(worker_machine, store.run(run.id))
    third = other_machine.model_copy(update={"runs_dir": other_machine.runs_dir / "third"})
    assert (copies := mirror.look(third, second))
    assert copies.exit == DONE, "it is known"
    with pytest.raises(Unreachable, match=r"holds .*, a run of another store: rename this folder"):
        mirror.fetch(other_machine, replace(second, created_at=second.created_at + timedelta(seconds=1)))


def test_index_cannot_name_files_outside_the_run_folder(
    worker_machine: Settings, other_machine: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, files = start(worker_machine, store, training(store))
    files.log.write_bytes(b"step 1\n")
    mirror.push(worker_machine, run, 1)
    remote, root = fsspec.core.url_to_fs(worker_machine.artifacts_url)
    (index,) = remote.glob(f"{root}/*/index.json")
    for name in (
        "../other/log.txt",
        "/etc/passwd",
        "a/../../b",
        ".hidden",
        "process.json",
        "./process.json",
        "exit-2.json",
    ):
        remote.pipe_file(index, remote.cat_file(index).replace(b"log.txt", name.encode()))
        with pytest.raises(Unreachable, match="is not the name of a file that is copied"):
            mirror.fetch(other_machine, run)
    monkeypatch.setattr(mirror, "FAILED_S", 60.0)
    with pytest.raises(Unreachable, match="is not the name of a file that is copied"):
        mirror.fetch(other_machine, run)
    mirror.fetch(other_machine, replace(store.run(training(store)), attempt=1))


@pytest.mark.parametrize(
    "url", ["s3://KEY:SECRET/x@bucket", "sftp://me:SECRET@host/runs", "s3://bucket/runs?key=SECRET", "runs/SECRET"]
)
def test_url_with_secrets_is_refused_and_not_shown(settings: Settings, url: str) -> None:
    settings = settings.model_copy(update={"artifacts_url": url})
    with pytest.raises(Refused) as refused:
        open_store(settings)
    assert "SECRET" not in f"{refused.value}{settings!r}"


@pytest.mark.slow
def test_fsspec_is_not_imported_without_a_url(settings: Settings) -> None:
    code = "import sys; from engine.__main__ import main; main(['runs', 'list']); sys.exit('fsspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
