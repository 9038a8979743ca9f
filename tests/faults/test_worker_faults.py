"""Effects of a failing worker: its own run ends with the right cause, and other runs go on."""

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from engine import jobs
from engine.jobs.attempt import failures
from engine.jobs.attempt.worker import Stop, execute
from engine.jobs.hosts import this_host
from engine.jobs.scheduler import LOOK_S
from engine.store import Cause, Exit, State, attempts, queue
from tests.faults.conftest import House, until

pytestmark = pytest.mark.slow

CGROUPS = Path("/sys/fs/cgroup")


def check_finished_run(house: House) -> None:
    """Submit a run, wait for its end, and check its rows, its artifact, its log and its exit record."""
    run_id = house.submit(steps=3, trouble="write an artifact")
    run = house.end(run_id)
    assert (run.state, run.error, run.done, run.total) == (State.FINISHED, "", 3, 3)
    assert [row.step for row in house.store.rows(run_id)] == [1, 2, 3]
    (artifact,) = house.store.artifacts(run_id)
    assert (artifact.size, artifact.sha256) == (5, hashlib.sha256(b"1 2 3").hexdigest())
    assert house.exit(run_id)["code"] == 0
    assert house.files(run_id).log_tail(2) == "step 2\nstep 3\n"


def test_run_of_the_warm_process_finishes(shared_house: House) -> None:
    check_finished_run(shared_house)
    until(lambda: not shared_house.warm().children(), "the supervisor's end, without a zombie")


def test_run_without_a_warm_process_finishes(house: House) -> None:
    house = House(house.settings.model_copy(update={"preload": ""}), house.store, house.kinds)
    check_finished_run(house)
    assert not house.named("warm")


def test_failed_runs_have_a_cause_and_the_next_run_finishes(shared_house: House) -> None:
    options = {
        "raise": (Cause.ERROR, "ValueError: <b>no</b>"),
        "refuse": (Cause.REFUSED, "no such thing; there are others"),
        "kill itself": (Cause.KILLED, "killed by SIGKILL"),
        "exit 137": (Cause.OUT_OF_MEMORY, "the system killed the worker when its memory ran out; try batch size 4"),
        "eat memory": (Cause.OUT_OF_MEMORY, "MemoryError; try batch size 4 instead of 8"),
        "fill the disk": (Cause.DISK_FULL, "File too large"),
        "write outside": (Cause.ERROR, "lies outside its run's folder"),
    }
    runs = {trouble: shared_house.submit(trouble=trouble, at=2, limit=50_000_000) for trouble in options}
    next_id = shared_house.submit()
    for trouble, (cause, message) in options.items():
        run = shared_house.end(runs[trouble])
        assert (run.state, run.cause) == (State.FAILED, cause), (trouble, run.error)
        assert message in run.error
        assert [row.step for row in shared_house.store.rows(run.id)] == [1], "finished rows are kept"
    assert shared_house.end(next_id).state == State.FINISHED
    assert shared_house.files(runs["kill itself"]).log_tail(1) == "the last line"
    assert "ValueError: <b>no</b>" in shared_house.files(runs["raise"]).log_tail(1)
    assert shared_house.exit(runs["fill the disk"])["code"] == 72


def remove_group(group: Path) -> bool:
    """Move the processes of a control group to its parent, and return whether the group could be removed."""
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):  # the process has ended in the meantime
            (group.parent / "cgroup.procs").write_text(pid)
    with contextlib.suppress(OSError):  # another process has begun in the meantime
        group.rmdir()
    return not group.exists()


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """Yield a control group (version 2, or else 1) whose processes may use 300 MB together."""
    for root, limit in ((CGROUPS, "memory.max"), (CGROUPS / "memory", "memory.limit_in_bytes")):
        group = root / f"vitals-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if not (group / limit).exists():
            group.rmdir()
            continue
        (group / limit).write_text("300000000")
        yield group
        until(partial(remove_group, group), "the control group to be empty")
        return
    pytest.skip("making a control group needs root and a file system of control groups that can be written to")


def test_worker_over_its_cgroup_limit_fails_alone_as_out_of_memory(house: House, small_cgroup: Path) -> None:
    jobs.ensure_scheduler(house.settings)
    for process in (house.scheduler().pid, house.warm().pid):
        (small_cgroup / "cgroup.procs").write_text(str(process))
    neighbour = house.submit(steps=60, seconds=0.1, device="cuda:0")
    house.steps(neighbour, 1)
    run = house.end(house.submit(trouble="eat all memory", at=2, limit=2_000_000_000))
    assert (run.state, run.cause) == (State.FAILED, Cause.OUT_OF_MEMORY)
    assert run.error == "the system killed the worker when its memory ran out; try batch size 4 instead of 8"
    assert [row.step for row in house.store.rows(run.id)] == [1]
    assert house.end(neighbour).state == State.FINISHED
    assert house.end(house.submit()).state == State.FINISHED


def test_run_of_a_killed_worker_fails_and_keeps_its_rows(shared_house: House) -> None:
    run_id = shared_house.submit(steps=1000, seconds=0.05)
    rows = shared_house.steps(run_id, 3)
    os.kill(rows[0].pid, signal.SIGKILL)
    run = shared_house.end(run_id)
    assert (run.state, run.cause, run.error) == (State.FAILED, Cause.KILLED, "killed by SIGKILL")
    assert shared_house.store.rows(run_id)[:3] == rows
    assert shared_house.exit(run_id)["code"] == -signal.SIGKILL


def test_next_attempt_starts_over_without_rows_of_the_first(shared_house: House) -> None:
    run_id = shared_house.submit_retried(steps=6, seconds=0.1)
    first = shared_house.steps(run_id, 3)[0].pid
    os.kill(first, signal.SIGKILL)
    run = shared_house.end(run_id)
    assert (run.state, run.attempt) == (State.FINISHED, 2)
    rows = shared_house.store.rows(run_id)
    assert [row.step for row in rows] == [1, 2, 3, 4, 5, 6]
    assert first not in {row.pid for row in rows}
    assert (shared_house.exit(run_id, 1)["code"], shared_house.exit(run_id, 2)["code"]) == (-signal.SIGKILL, 0)


def test_run_that_always_kills_its_worker_ends_after_three_attempts(shared_house: House) -> None:
    run_id = shared_house.submit_retried(trouble="kill itself")
    run = shared_house.end(run_id)
    assert (run.state, run.cause, run.attempt) == (State.FAILED, Cause.KILLED, 3)


def test_cancelled_task_keeps_its_rows_and_runs_its_cleanup(shared_house: House) -> None:
    run_id = shared_house.submit(steps=1000, seconds=0.05)
    rows = shared_house.steps(run_id, 2)
    shared_house.store.request_cancel(run_id)
    assert shared_house.end(run_id).state == State.CANCELLED
    assert shared_house.store.rows(run_id)[: len(rows)] == rows
    assert (shared_house.files(run_id).dir / "finally.txt").is_file()


def heartbeat_of(house: House, run_id: int) -> float:
    attempt = attempts.current(house.store.database, run_id)
    assert attempt is not None
    return attempt.heartbeat_at


def test_repeated_progress_is_not_stored_and_the_run_can_be_cancelled(shared_house: House) -> None:
    run_id = shared_house.submit(trouble="say nothing new")
    until(lambda: shared_house.store.run(run_id).note == "waiting")
    before = shared_house.store.run(run_id).revision
    time.sleep(1)  # about a hundred events and at most one heartbeat
    assert shared_house.store.run(run_id).revision - before < 10
    first = heartbeat_of(shared_house, run_id)
    until(lambda: heartbeat_of(shared_house, run_id) > first or shared_house.store.run(run_id).state == State.VANISHED)
    assert shared_house.store.run(run_id).state == State.RUNNING, "a heartbeat came in time"
    shared_house.store.request_cancel(run_id)
    assert shared_house.end(run_id).state == State.CANCELLED


def test_worker_without_news_ends_after_its_attempt_was_closed(shared_house: House) -> None:
    run_id = shared_house.submit(trouble="say nothing new")
    until(lambda: shared_house.store.run(run_id).note == "waiting")
    attempt = attempts.current(shared_house.store.database, run_id)
    assert attempt is not None
    attempts.close(shared_house.store.database, attempt, Exit(), Cause.KILLED, "its host was declared gone")
    assert shared_house.end(run_id).error == "its host was declared gone"
    assert shared_house.exit(run_id)["code"] == failures.STALE


def test_cancelled_run_ends_while_its_task_is_imported(shared_house: House) -> None:
    house = shared_house
    run_id = jobs.submit(house.store, house.settings, house.kinds.ImportingSpec())
    until(lambda: house.store.run(run_id).started_at, "the worker")
    house.store.request_cancel(run_id)
    assert house.end(run_id).state == State.CANCELLED
    assert house.exit(run_id)["code"] == -signal.SIGTERM, "not killed at the end of the grace period"


def test_cancel_kills_a_process_group_that_ignores_sigterm(shared_house: House) -> None:
    run_id = shared_house.submit(steps=9, trouble="ignore SIGTERM", at=3)
    shared_house.steps(run_id, 2)
    worker = psutil.Process(shared_house.processes(run_id).worker.pid)
    child = until(worker.children, "the child that ignores SIGTERM too")[0]
    time.sleep(0.5)  # for the child to have set its handler
    requested_at = time.monotonic()
    shared_house.store.request_cancel(run_id)
    until(lambda: shared_house.store.run(run_id).state == State.STOPPING, "stopping")
    run = shared_house.end(run_id)
    assert time.monotonic() - requested_at < shared_house.settings.stop_grace_s + 13
    assert run.state == State.CANCELLED
    assert len(shared_house.store.rows(run_id)) == 2
    assert not worker.is_running()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the end of its child")


def test_children_do_not_outlive_their_run(shared_house: House) -> None:
    run_id = shared_house.submit(trouble="leave children")
    assert shared_house.end(run_id).state == State.FINISHED
    until(lambda: not shared_house.named("-S"), "the end of its children")


def test_worker_of_a_killed_supervisor_ends_and_its_run_fails(shared_house: House) -> None:
    run_id = shared_house.submit(steps=1000, seconds=0.05)
    shared_house.steps(run_id, 2)
    processes = shared_house.processes(run_id)
    for process in (processes.supervisor, processes.worker):
        assert os.getsid(process.pid) == process.pid, "signals to another process's group do not reach it"
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(processes.supervisor.pid, ignored)
    before = len(shared_house.store.rows(run_id))
    until(lambda: len(shared_house.store.rows(run_id)) > before + 1 or not processes.supervisor.alive())
    assert processes.supervisor.alive(), "it has to record how the worker ends"
    os.kill(processes.supervisor.pid, signal.SIGKILL)
    run = shared_house.end(run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.KILLED)
    assert "supervisor was killed" in run.error
    assert shared_house.exit(run_id)["code"] is None
    assert not processes.worker.alive()


def test_complete_run_finishes_despite_a_signal_after_its_last_event(shared_house: House) -> None:
    interrupted, complete = (shared_house.submit_retried(trouble="send itself SIGTERM", at=at) for at in (3, 4))
    run = shared_house.end(complete)
    assert (run.state, run.attempt) == (State.FINISHED, 1)
    assert [row.step for row in shared_house.store.rows(complete)] == [1, 2, 3]
    assert (shared_house.exit(complete)["code"], shared_house.exit(interrupted)["code"]) == (0, -signal.SIGTERM)
    assert (shared_house.end(interrupted).state, shared_house.store.run(interrupted).attempt) == (State.FAILED, 3)


def test_flood_of_output_does_not_stop_the_run_or_fill_the_disk(shared_house: House) -> None:
    run_id = shared_house.submit(trouble="flood the log", limit=100_000_000)
    assert shared_house.end(run_id).state == State.FINISHED
    files = shared_house.files(run_id)
    size = sum(path.stat().st_size for path in (files.log, files.older_log))
    assert 500_000 <= size <= shared_house.settings.log_limit_mb * 1e6
    assert files.log_tail(1) == "step 3\n"
    assert "\x1b]0;title\x07<script>" in files.log_tail(10), "the log keeps control characters as they were written"


def test_no_run_starts_on_a_full_disk(house: House) -> None:
    house_with_full_disk = House(house.settings.model_copy(update={"min_free_gb": 1e9}), house.store, house.kinds)
    waiting = [house_with_full_disk.submit(), house_with_full_disk.submit()]
    house_with_full_disk.warm()  # the scheduler starts it in its first cycle
    time.sleep(3 * LOOK_S)
    runs = [house.store.run(run_id) for run_id in waiting]
    assert [(run.state, run.attempt) for run in runs] == [(State.QUEUED, 0)] * 2
    jobs.stop_scheduler(house_with_full_disk.settings)
    jobs.ensure_scheduler(house.settings)  # as after space was freed
    assert [house.end(run_id).state for run_id in waiting] == [State.FINISHED] * 2


def test_worker_does_not_start_if_the_disk_filled_after_the_claim(house: House) -> None:
    run_id = house.store.enqueue(house.kinds.TrialSpec())
    attempt = queue.claim(house.store.database, this_host())
    assert attempt is not None
    code = execute(house.store, house.settings.model_copy(update={"min_free_gb": 1e9}), attempt, Stop())
    attempts.close(house.store.database, attempt, Exit(code), *failures.of_exit(Exit(code), None))  # as the scheduler
    run = house.store.run(run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.DISK_FULL)
    assert "VITALS_MIN_FREE_GB asks for 1e+09 GB. Delete runs, or lower it." in run.error
    assert house.store.rows(run_id) == []


def test_silent_worker_is_vanished_until_it_answers_again(shared_house: House) -> None:
    run_id = shared_house.submit(steps=5, trouble="stop itself", at=3)
    worker = shared_house.steps(run_id, 2)[0].pid
    until(lambda: shared_house.store.run(run_id).state == State.VANISHED, "vanished")
    os.kill(worker, signal.SIGCONT)
    run = shared_house.end(run_id)
    assert (run.state, run.attempt) == (State.FINISHED, 1)
    assert {row.pid for row in shared_house.store.rows(run_id)} == {worker}


def test_worker_that_is_silent_for_too_long_is_killed(shared_house: House) -> None:
    run_id = shared_house.submit(steps=5, trouble="stop itself", at=3)
    worker = shared_house.steps(run_id, 2)[0].pid
    run = shared_house.end(run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.KILLED)
    assert run.error.startswith("killed by the scheduler, because it had not reported for")
    assert not Path(f"/proc/{worker}").exists()
