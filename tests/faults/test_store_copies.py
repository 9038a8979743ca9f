"""A copy of a store and its runs folder on the machine of the original, which goes on: neither touches the other's
processes.
"""

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
from engine.store import State, attempts, open_store, queue, transfer
from tests.faults.conftest import House, until

pytestmark = pytest.mark.slow

LEASE_S = 1.0


@pytest.fixture
def original(house: House) -> House:
    """With short leases, so that silence is noticed soon."""
    return House(house.settings.model_copy(update={"lease_s": LEASE_S}), house.store, house.kinds)


@pytest.fixture
def elsewhere(original: House, tmp_path: Path) -> Iterator[Settings]:
    """The settings of the copy. Afterwards its processes end."""
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


def test_a_restored_backup_leaves_the_processes_of_the_original_alone(
    original: House, elsewhere: Settings, tmp_path: Path
) -> None:
    going = original.submit_retried(steps=10_000, seconds=0.1)
    waiting = original.submit()
    original.steps(going, 1)
    transfer.back_up(original.settings, tmp_path / "backup.sqlite")
    os.kill(original.processes(going).worker.pid, signal.SIGKILL)
    until(lambda: original.store.run(going).attempt == 2 and count_rows(original, going), "the second attempt")
    worker, scheduler = original.processes(going, 2).worker, original.scheduler()
    copy_folders(original, elsewhere.runs_dir)
    transfer.restore_backup(elsewhere, tmp_path / "backup.sqlite")
    with closing(open_store(elsewhere)) as store:
        copy = House(elsewhere, store, original.kinds)
        assert [store.run(run_id).state for run_id in (going, waiting)] == [State.QUEUED, State.QUEUED]
        assert attempts.open_attempts(store.database) == []
        assert queue.holders(store.database, this_host()) == {}
        assert look_at_health(elsewhere).scheduler == "there are open runs, and no scheduler is alive"
        assert not jobs.stop_scheduler(elsewhere)
        assert scheduler.alive()
        jobs.ensure_scheduler(elsewhere)
        assert copy.scheduler().pid != scheduler.pid
        until(lambda: store.run(going).attempt == 2 and count_rows(copy, going), "the next attempt in the copy")
        assert copy.processes(going, 2).worker != worker
        store.request_cancel(going)
        assert copy.end(going).state == State.CANCELLED
        assert copy.end(waiting).state == State.FINISHED
        assert jobs.stop_scheduler(elsewhere)
    assert scheduler.alive()
    assert worker.alive()
    rows = count_rows(original, going)
    original.steps(going, rows + 2)
    original.store.request_cancel(going)
    assert original.end(going).state == State.CANCELLED
    assert original.end(waiting).state == State.FINISHED


def test_a_folder_that_was_copied_while_runs_go_on_leaves_their_processes_alone(
    original: House, elsewhere: Settings
) -> None:
    going = original.submit_retried(steps=10_000, seconds=0.1)
    cancelled = original.submit_retried(steps=10_000, seconds=0.1, device="cuda:0")
    tried_once = original.submit(steps=10_000, seconds=0.1, device="cuda:1")
    for run_id in (going, cancelled, tried_once):
        original.steps(run_id, 1)
    workers = [original.processes(run_id).worker for run_id in (going, cancelled, tried_once)]
    scheduler = original.scheduler()
    copy_folders(original, elsewhere.runs_dir)
    transfer.back_up(original.settings, elsewhere.runs_dir / "vitals.sqlite")  # what `cp` copies, from one moment
    with closing(open_store(elsewhere)) as store:
        copy = House(elsewhere, store, original.kinds)
        assert look_at_health(elsewhere).scheduler == "there are open runs, and no scheduler is alive"
        assert not jobs.stop_scheduler(elsewhere)
        store.request_cancel(cancelled)
        jobs.ensure_scheduler(elsewhere)
        assert copy.scheduler().pid != scheduler.pid
        until(lambda: store.run(going).attempt == 2 and count_rows(copy, going), "the next attempt in the copy")
        until(lambda: store.run(cancelled).state == State.CANCELLED, "the end of the cancelled run in the copy")
        until(lambda: store.run(tried_once).state == State.FAILED, "the end of a run that is tried once in the copy")
        assert store.run(tried_once).error == "none of its processes is known here"
        time.sleep(5 * LEASE_S)  # silent workers are killed after four leases
        assert jobs.stop_scheduler(elsewhere)
        until(lambda: look_at_health(elsewhere).scheduler != "working", "the lease to be given back")
        store.request_cancel(going)
        jobs.ensure_scheduler(elsewhere)
    assert scheduler.alive()
    assert all(worker.alive() for worker in workers)
    for run_id in (going, cancelled, tried_once):
        original.store.request_cancel(run_id)
        assert original.end(run_id).state == State.CANCELLED


def test_the_scheduler_of_a_folder_is_known_by_each_of_its_names(original: House, tmp_path: Path) -> None:
    jobs.ensure_scheduler(original.settings)
    scheduler = original.scheduler()
    (link := tmp_path / "link").symlink_to(original.settings.runs_dir)
    linked = original.settings.model_copy(update={"runs_dir": link})
    assert look_at_health(linked).scheduler == "working"
    assert jobs.stop_scheduler(linked)
    assert not scheduler.alive()


def test_runs_of_a_renamed_folder_and_of_an_earlier_version_are_looked_after(original: House, tmp_path: Path) -> None:
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
