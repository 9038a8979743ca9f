"""A store and its copy on one machine: neither touches the processes of the other."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from engine import jobs
from engine.jobs.hosts import this_host
from engine.jobs.lifecycle import look_at_health
from engine.jobs.processes import read_json
from engine.settings import Settings
from engine.store import State, attempts, open_store, queue
from engine.store.backup import transfer
from tests.faults.conftest import House, until

pytestmark = pytest.mark.slow

LEASE_S = 1.0


@pytest.fixture
def original(house: House) -> House:
    """Return the house with short leases, so that schedulers notice silent workers soon."""
    return House(house.settings.model_copy(update={"lease_s": LEASE_S}), house.store, house.kinds)


@pytest.fixture
def copy_settings(original: House, tmp_path: Path) -> Iterator[Settings]:
    """Yield the settings of the copy, then end its processes."""
    settings = original.settings.model_copy(update={"runs_dir": tmp_path / "copy"})
    settings.make_runs_dir()
    yield settings
    with closing(open_store(settings)) as store:
        copy = House(settings, store, original.kinds)
        for run in store.runs():
            store.request_cancel(run.id)
        if copy.named("scheduler"):
            until(lambda: not attempts.open_attempts(store.database), "the end of the runs of the copy")
        until(lambda: not (jobs.stop_scheduler(settings) or copy.running()), "the end of the copy's processes")


def copy_folders(original: House, target: Path) -> None:
    folders = [path for path in original.settings.runs_dir.iterdir() if path.name.isdecimal()]
    subprocess.run(["cp", "-r", *folders, target], check=True)


def count_rows(house: House, run_id: int) -> int:
    return len(house.store.rows(run_id))


def test_restored_backup_does_not_touch_processes_of_the_original(
    original: House, copy_settings: Settings, tmp_path: Path
) -> None:
    active = original.submit_retried(steps=10_000, seconds=0.1)
    waiting = original.submit()
    original.steps(active, 1)
    transfer.back_up(original.settings, tmp_path / "backup.sqlite")
    os.kill(original.processes(active).worker.pid, signal.SIGKILL)
    until(lambda: original.store.run(active).attempt == 2 and count_rows(original, active), "the second attempt")
    worker, scheduler = original.processes(active, 2).worker, original.scheduler()
    copy_folders(original, copy_settings.runs_dir)
    transfer.restore_backup(copy_settings, tmp_path / "backup.sqlite")
    with closing(open_store(copy_settings)) as store:
        copy = House(copy_settings, store, original.kinds)
        assert [store.run(run_id).state for run_id in (active, waiting)] == [State.QUEUED, State.QUEUED]
        assert attempts.open_attempts(store.database) == []
        assert queue.holders(store.database, this_host()) == {}
        assert look_at_health(copy_settings).scheduler == "there are open runs, and no scheduler is alive"
        assert not jobs.stop_scheduler(copy_settings)
        assert scheduler.alive()
        jobs.ensure_scheduler(copy_settings)
        assert copy.scheduler().pid != scheduler.pid
        until(lambda: store.run(active).attempt == 2 and count_rows(copy, active), "the next attempt in the copy")
        until(lambda: copy.processes(active, 2).worker != worker, "a record of its own, in place of the copied one")
        store.request_cancel(active)
        assert copy.end(active).state == State.CANCELLED
        assert copy.end(waiting).state == State.FINISHED
        assert jobs.stop_scheduler(copy_settings)
    assert scheduler.alive()
    assert worker.alive()
    rows = count_rows(original, active)
    original.steps(active, rows + 2)
    original.store.request_cancel(active)
    assert original.end(active).state == State.CANCELLED
    assert original.end(waiting).state == State.FINISHED


def test_copied_runs_folder_does_not_touch_processes_of_the_original(original: House, copy_settings: Settings) -> None:
    active = original.submit_retried(steps=10_000, seconds=0.1)
    cancelled = original.submit_retried(steps=10_000, seconds=0.1, device="cuda:0")
    tried_once = original.submit(steps=10_000, seconds=0.1, device="cuda:1")
    for run_id in (active, cancelled, tried_once):
        original.steps(run_id, 1)
    workers = [original.processes(run_id).worker for run_id in (active, cancelled, tried_once)]
    scheduler = original.scheduler()
    copy_folders(original, copy_settings.runs_dir)
    transfer.back_up(
        original.settings, copy_settings.runs_dir / "vitals.sqlite"
    )  # a consistent copy, as `cp` would make of an idle store
    with closing(open_store(copy_settings)) as store:
        copy = House(copy_settings, store, original.kinds)
        assert look_at_health(copy_settings).scheduler == "there are open runs, and no scheduler is alive"
        assert not jobs.stop_scheduler(copy_settings)
        store.request_cancel(cancelled)
        jobs.ensure_scheduler(copy_settings)
        assert copy.scheduler().pid != scheduler.pid
        until(lambda: store.run(active).attempt == 2 and count_rows(copy, active), "the next attempt in the copy")
        until(lambda: store.run(cancelled).state == State.CANCELLED, "the end of the cancelled run in the copy")
        until(lambda: store.run(tried_once).state == State.FAILED, "the end of a run that is tried once in the copy")
        assert store.run(tried_once).error == "none of its processes is known here"
        time.sleep(5 * LEASE_S)  # silent workers are killed after four leases
        assert jobs.stop_scheduler(copy_settings)
        until(lambda: look_at_health(copy_settings).scheduler != "working", "the lease to be given back")
        store.request_cancel(active)
        jobs.ensure_scheduler(copy_settings)
    assert scheduler.alive()
    assert all(worker.alive() for worker in workers)
    for run_id in (active, cancelled, tried_once):
        original.store.request_cancel(run_id)
        assert original.end(run_id).state == State.CANCELLED


def test_scheduler_is_found_through_a_link_to_its_runs_folder(original: House, tmp_path: Path) -> None:
    jobs.ensure_scheduler(original.settings)
    scheduler = original.scheduler()
    (link := tmp_path / "link").symlink_to(original.settings.runs_dir)
    linked = original.settings.model_copy(update={"runs_dir": link})
    assert look_at_health(linked).scheduler == "working"
    assert jobs.stop_scheduler(linked)
    assert not scheduler.alive()


def test_runs_of_a_renamed_folder_and_of_an_older_version_are_adopted(original: House, tmp_path: Path) -> None:
    runs = [original.submit(steps=10_000, seconds=0.1, device=f"cuda:{number}") for number in range(2)]
    workers = [original.steps(run_id, 1)[0].pid for run_id in runs]
    assert jobs.stop_scheduler(original.settings)
    record = original.files(runs[1]).process()
    record.write_text(json.dumps({name: value for name, value in read_json(record).items() if name != "folder"}))  # type: ignore[union-attr]
    moved = original.settings.model_copy(update={"runs_dir": tmp_path / "moved"})
    original.settings.runs_dir.rename(moved.runs_dir)
    original.settings.runs_dir.symlink_to(moved.runs_dir)
    with closing(open_store(moved)) as store:
        after = House(moved, store, original.kinds)
        jobs.ensure_scheduler(moved)
        for run_id, worker in zip(runs, workers, strict=True):
            rows = count_rows(after, run_id)
            assert {row.pid for row in after.steps(run_id, rows + 2)} == {worker}
            after.processes(run_id).supervisor.send(signal.SIGKILL)
            assert after.end(run_id).error == "its supervisor was killed, and the worker with it"
        until(lambda: not (jobs.stop_scheduler(moved) or after.running()), "the end of its processes")
