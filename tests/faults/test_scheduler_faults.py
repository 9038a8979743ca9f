"""Runs after the scheduler or the warm process died: the next one adopts or ends them."""

import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import anyio
import psutil
import pytest
from sqlalchemy import text, update

from app import _keep_scheduler
from engine import jobs
from engine.jobs import lifecycle
from engine.jobs.foreground import run_here
from engine.jobs.hosts import this_host
from engine.jobs.lifecycle import LOG_BYTES, environment, fingerprint, lease_name, start_engine
from engine.jobs.processes import Identity
from engine.settings import ROOT
from engine.store import Cause, State, attempts, leases, open_store, queue, tables
from tests.faults.conftest import House, until

pytestmark = pytest.mark.slow

RUN_HERE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell start with SIGINT ignored
from engine.jobs.foreground import run_here
from engine.settings import Settings
from engine.store import open_store
from trial_kinds import TrialSpec
settings = Settings()
store = open_store(settings)
try:
    run_here(store, settings, TrialSpec(steps=1000, seconds=0.1), lambda event: print(event, flush=True))
except KeyboardInterrupt:
    print("left", flush=True)
"""


def kill(*pids: int) -> None:
    """Kill processes and wait until they are gone. Otherwise a killed scheduler would count as alive."""
    victims = [Identity.of(pid) for pid in pids]
    for victim in victims:
        victim.send(signal.SIGKILL)
    until(lambda: not any(victim.alive() for victim in victims))


def test_only_one_of_several_started_schedulers_stays(house: House) -> None:
    contenders = [start_engine(house.settings, "scheduler") for _ in range(2)]
    first = house.settled()
    (loser,) = [process for process in contenders if process.pid != first.pid]
    assert loser.wait() == 0
    assert os.getsid(first.pid) == first.pid, "no Ctrl+C of a terminal reaches it"
    assert house.scheduler() == first
    assert jobs.stop_scheduler(house.settings)
    assert [process.wait() for process in contenders] == [0, 0]


def test_no_second_scheduler_starts_while_the_first_one_loads(house: House) -> None:
    (house.settings.runs_dir / "scheduler.log").write_bytes(bytes(LOG_BYTES + 1))
    for _ in range(3):
        jobs.ensure_scheduler(house.settings)
    assert len(house.named("scheduler")) == 1
    until(lambda: "scheduler" in (house.settings.runs_dir / "scheduler.log").read_text(), "the scheduler to work")
    assert house.named("scheduler")[0].pid == house.scheduler().pid
    assert (house.settings.runs_dir / "scheduler.older.log").stat().st_size == LOG_BYTES + 1


def test_killed_scheduler_is_replaced_and_its_runs_finish(house: House) -> None:
    active = house.submit(steps=60, seconds=0.1)
    waiting = house.submit()
    worker = house.steps(active, 2)[0].pid
    killed = house.scheduler()
    kill(killed.pid)
    jobs.ensure_scheduler(house.settings)
    assert house.scheduler(other_than=killed.pid)
    assert house.end(active).state == State.FINISHED
    assert {row.pid for row in house.store.rows(active)} == {worker}
    assert len(house.store.rows(active)) == 60
    assert house.end(waiting).state == State.FINISHED


def test_next_scheduler_fails_runs_that_died_with_the_last_one(house: House) -> None:
    """One run loses its supervisor, and so its worker, with the scheduler. Another loses its worker later."""
    lost, later = (house.submit(steps=1000, seconds=0.05, device=device) for device in ("cpu", "cuda:0"))
    worker = house.steps(later, 2)[0].pid
    house.steps(lost, 2)
    processes = house.processes(lost)
    kill(house.scheduler().pid, processes.supervisor.pid)
    until(lambda: not processes.worker.alive(), "the end of a worker that has no supervisor")
    kill(worker)
    until(lambda: house.files(later).exit().is_file(), "the exit record, which its supervisor writes")
    assert house.exit(later)["code"] == -signal.SIGKILL
    assert house.store.run(lost).state == State.RUNNING, "no scheduler is alive that could notice the death"
    jobs.ensure_scheduler(house.settings)
    runs = [house.end(run_id) for run_id in (lost, later)]
    assert [(run.state, run.cause) for run in runs] == [(State.FAILED, Cause.KILLED)] * 2
    assert house.exit(lost)["code"] is None
    assert len(house.store.rows(lost)) >= 2


def test_stop_ends_a_hung_scheduler_that_does_not_have_the_lease(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    # as after a change of the password: it cannot reach the database any more, and a new scheduler took its lease
    settings = house.settings.model_copy(update={"lease_s": 600.0})  # it would notice after a third of this time
    jobs.ensure_scheduler(settings)
    scheduler = house.scheduler()
    house.warm()  # it is past taking the lease
    assert leases.release(house.store.database, lease_name(), str(scheduler))
    scheduler.send(signal.SIGSTOP)
    monkeypatch.setattr(lifecycle, "STOP_S", 0.1)
    assert jobs.stop_scheduler(settings)
    assert not scheduler.alive()
    assert not jobs.stop_scheduler(settings)


def test_runs_survive_a_killed_warm_process(house: House) -> None:
    active = house.submit(steps=60, seconds=0.05)
    waiting = house.submit()
    house.steps(active, 2)
    warm = house.warm()
    kill(warm.pid)
    assert house.end(active).state == State.FINISHED
    assert house.end(waiting).state == State.FINISHED
    assert house.warm().pid != warm.pid


def test_run_starts_cold_if_the_warm_process_dies_first(house: House) -> None:
    jobs.ensure_scheduler(house.settings)
    warm = house.warm()
    warm.send_signal(signal.SIGSTOP)
    run_id = house.submit()
    until(lambda: house.store.run(run_id).state == State.STARTING, "starting")
    warm.kill()
    run = house.end(run_id)
    assert (run.state, run.attempt) == (State.FINISHED, 1)


def test_run_is_cancelled_and_queued_again_while_the_warm_process_loads(house: House) -> None:
    jobs.ensure_scheduler(house.settings)
    warm = house.warm()
    warm.send_signal(signal.SIGSTOP)
    run_id = house.submit()
    until(lambda: house.store.run(run_id).state == State.STARTING, "starting")
    house.store.request_cancel(run_id)
    assert house.end(run_id).state == State.CANCELLED
    assert house.exit(run_id)["note"] == "it was cancelled before its process started"
    jobs.retry(house.store, house.settings, run_id)
    until(lambda: house.store.run(run_id).state == State.STARTING, "starting again")
    warm.send_signal(signal.SIGCONT)  # it reads both requests
    run = house.end(run_id)
    assert (run.state, run.attempt, len(house.store.rows(run_id))) == (State.FINISHED, 2, 3)
    assert "Traceback" not in (house.settings.runs_dir / "scheduler.log").read_text()


def test_next_scheduler_starts_a_run_that_was_claimed_only(house: House) -> None:
    run_id = house.store.enqueue(house.kinds.TrialSpec())
    assert queue.claim(house.store.database, this_host())  # as a scheduler does before it creates the folder
    jobs.ensure_scheduler(house.settings)
    run = house.end(run_id)
    assert (run.state, run.attempt) == (State.FINISHED, 2)


def test_runs_without_a_process_record_leave_the_starting_state(house: House) -> None:
    """Takes ten seconds: an attempt is given up after eight leases of silence, 1 s each."""
    house = House(house.settings.model_copy(update={"lease_s": 1.0}), house.store, house.kinds)
    jobs.ensure_scheduler(house.settings)
    warm = house.warm()
    _, hard_limit = warm.rlimit(resource.RLIMIT_FSIZE)
    warm.rlimit(resource.RLIMIT_FSIZE, (0, hard_limit))  # its children cannot write, as on a full disk
    repeated, cancelled = (house.submit(device=device) for device in ("cpu", "cuda:0"))
    for run_id in (repeated, cancelled):
        until(lambda run_id=run_id: house.store.run(run_id).state == State.STARTING, "starting")
    house.store.request_cancel(cancelled)
    until(lambda: house.store.run(cancelled).state == State.CANCELLED, "the end of the cancelled run")
    until(lambda: house.store.run(repeated).attempt == 2, "the next attempt of the other run")
    warm.rlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
    assert house.end(house.submit(device="cuda:0")).state == State.FINISHED, "its slot is free"
    assert house.end(repeated).state == State.FINISHED


def test_run_that_cannot_start_fails_and_the_next_one_finishes(shared_house: House) -> None:
    house, scheduler = shared_house, shared_house.scheduler()
    next_id = house.end(house.submit()).id + 1
    house.files(next_id).dir.symlink_to("nowhere")  # the folder of the run cannot be created
    run_id = house.submit()
    assert run_id == next_id
    until(lambda: house.store.run(run_id).state.ended, "the end of the run")
    run = house.store.run(run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.ERROR)
    assert "FileExistsError" in run.error
    assert house.end(house.submit()).state == State.FINISHED
    assert scheduler.alive()


def test_attempt_of_a_run_of_an_unknown_kind_is_closed(house: House) -> None:
    unreadable_id = house.store.enqueue(house.kinds.TrialSpec())
    with house.store.database.write() as connection:
        connection.execute(text("UPDATE runs SET kind = 'of another version'"))
    assert house.end(house.submit()).state == State.FINISHED
    until(lambda: attempts.open_attempts(house.store.database) == [], "both attempts to be closed")
    assert [run.id for run in house.store.runs()] == [unreadable_id + 1]
    jobs.delete_run(house.store, house.settings, unreadable_id)


def test_server_starts_a_scheduler_again_after_a_store_outage(house: House, caplog: pytest.LogCaptureFixture) -> None:
    def rename(old: str, new: str) -> None:
        with house.store.database.write() as connection:
            connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))

    def outage() -> None:
        before = house.scheduler()
        rename("runs", "gone")
        until(lambda: "keeping the scheduler alive failed: the store" in caplog.text, "the outage to be logged")
        jobs.stop_scheduler(house.settings)
        rename("gone", "runs")
        assert house.scheduler(other_than=before.pid), "the server cannot know that the queue is empty"

    async def serve() -> None:
        settings = house.settings.model_copy(update={"lease_s": 1.0})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_keep_scheduler, settings)
            await anyio.to_thread.run_sync(outage)
            tasks.cancel_scope.cancel()

    with caplog.at_level(logging.ERROR):
        anyio.run(serve)


def test_scheduler_of_newer_code_adopts_runs_of_the_older_one(house: House) -> None:
    run_id = house.submit(steps=60, seconds=0.1)
    worker = house.steps(run_id, 2)[0].pid
    older = house.scheduler()
    with house.store.database.write() as connection:
        connection.execute(update(tables.leases).values(fingerprint="of older code"))
    jobs.ensure_scheduler(house.settings)
    assert house.scheduler(other_than=older.pid)
    until(lambda: not older.alive(), "the older scheduler to exit")
    assert house.end(run_id).state == State.FINISHED
    assert {row.pid for row in house.store.rows(run_id)} == {worker}
    lease = leases.read(house.store.database, lease_name())
    assert lease is not None
    assert lease.fingerprint == fingerprint()


def test_hung_scheduler_is_replaced_and_exits_when_it_wakes(house: House) -> None:
    jobs.ensure_scheduler(house.settings)
    hung_scheduler = house.scheduler()
    with house.store.database.write():  # it must not hang while it holds the write lock
        hung_scheduler.send(signal.SIGSTOP)
        until(lambda: psutil.Process(hung_scheduler.pid).status() == psutil.STATUS_STOPPED, "the scheduler to hang")
    run_id = house.submit()
    jobs.ensure_scheduler(house.settings)
    until(lambda: leases.read(house.store.database, lease_name()).expired, "the lease to expire")  # type: ignore[union-attr]
    jobs.ensure_scheduler(house.settings)
    assert house.scheduler(other_than=hung_scheduler.pid)
    assert house.end(run_id).state == State.FINISHED
    hung_scheduler.send(signal.SIGCONT)
    until(lambda: not hung_scheduler.alive(), "the hung scheduler to exit")


def test_idle_scheduler_exits_and_starts_again_for_the_next_run(house: House) -> None:
    house = House(house.settings.model_copy(update={"idle_exit_s": 0.5}), house.store, house.kinds)
    assert house.end(house.submit()).state == State.FINISHED
    until(lambda: not house.running(), "all processes to exit")
    assert leases.read(house.store.database, lease_name()) is None
    assert house.end(house.submit()).state == State.FINISHED


def test_stop_ends_the_scheduler_but_not_its_active_runs(house: House) -> None:
    run_id = house.submit(steps=60, seconds=0.1)
    house.steps(run_id, 2)
    waiting = house.submit()
    house.settled()
    warm = house.warm()
    assert jobs.stop_scheduler(house.settings)
    assert not jobs.stop_scheduler(house.settings)
    assert not house.named("scheduler")
    assert leases.read(house.store.database, lease_name()) is None
    assert not warm.is_running()
    assert house.end(run_id).state == State.FINISHED
    assert house.store.run(waiting).state == State.QUEUED
    jobs.ensure_scheduler(house.settings)
    assert house.end(waiting).state == State.FINISHED


def test_foreground_run_holds_its_slot_and_can_be_cancelled(shared_house: House) -> None:
    first = shared_house.submit(steps=10, seconds=0.1)
    shared_house.steps(first, 1)
    events: list[str] = []
    spec = shared_house.kinds.TrialSpec(steps=1000, seconds=0.1)

    def cancel() -> None:
        store = open_store(shared_house.settings)
        (run,) = until(lambda: [run for run in store.runs() if run.id > first and run.done > 2])
        store.request_cancel(run.id)
        store.close()

    other = threading.Thread(target=cancel)
    other.start()
    run_id = run_here(shared_house.store, shared_house.settings, spec, lambda event: events.append(repr(event)))
    other.join()
    assert f"waiting for run {first} on cpu" in events[0]
    assert not shared_house.processes(run_id).group, "a signal to its group would reach the shell's other processes"
    run = shared_house.store.run(run_id)
    assert run.state == State.CANCELLED
    assert {row.pid for row in shared_house.store.rows(run_id)} == {os.getpid()}
    assert run.started_at > shared_house.store.run(first).ended_at
    until(lambda: attempts.open_attempts(shared_house.store.database) == [], "every attempt to be closed")


def test_foreground_run_gets_the_slot_of_a_killed_one(house: House) -> None:
    with subprocess.Popen([sys.executable, "-c", RUN_HERE], cwd=ROOT, stdout=subprocess.DEVNULL) as first:
        (killed,) = until(lambda: [run for run in house.store.runs() if run.done > 2], "the first run")
        assert not house.named("scheduler")
        first.kill()
    run_id = run_here(house.store, house.settings, house.kinds.TrialSpec(), lambda event: None)
    assert house.store.run(run_id).state == State.FINISHED
    run = house.store.run(killed.id)
    assert (run.state, run.cause, run.error) == (State.FAILED, Cause.KILLED, "its process was killed")


def test_ctrl_c_ends_the_wait_for_a_slot_and_removes_the_run(shared_house: House) -> None:
    first = shared_house.submit(steps=1000, seconds=0.1)
    shared_house.steps(first, 1)
    command, variables = [sys.executable, "-c", RUN_HERE], environment(shared_house.settings)
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert f"waiting for run {first} on cpu" in waiting.stdout.readline()
        waiting.send_signal(signal.SIGINT)
        assert waiting.communicate() == ("left\n", None)
    assert shared_house.store.runs(limit=1)[0].id == first
    shared_house.store.request_cancel(first)
    assert shared_house.end(first).state == State.CANCELLED


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_every_run_ends_once_while_random_processes_are_killed(house: House, count: int) -> None:
    """Kill `count` random processes of the engine (seeded) while `count` runs share three devices."""
    rng = random.Random(20_261_120)
    house = House(house.settings.model_copy(update={"lease_s": 2.0}), house.store, house.kinds)
    submit = [house.submit, house.submit_retried]
    runs = [rng.choice(submit)(steps=8, seconds=0.05, device=f"cuda:{number % 3}") for number in range(count)]
    ends: dict[int, set[State]] = {run_id: set() for run_id in runs}
    deadline, kills = time.monotonic() + max(240, 8 * count), 0
    while not all(ends.values()):
        assert time.monotonic() < deadline, [run for run in house.store.runs() if not run.state.ended]
        jobs.ensure_scheduler(house.settings)
        time.sleep(rng.uniform(0.1, 0.6))
        if kills < count and (victims := house.running()):
            victim = rng.choice(victims)
            kills += 1
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                pass  # it has ended in the meantime
        for run in house.store.runs():
            if run.state.ended:
                ends[run.id].add(run.state)
    until(lambda: not attempts.open_attempts(house.store.database), "every attempt to be closed")
    for run_id in runs:
        run = house.store.run(run_id)
        assert ends[run_id] == {run.state}, "the final state of a run does not change"
        rows = house.store.rows(run_id)
        assert [row.step for row in rows] == list(range(1, len(rows) + 1)), "no row is lost or stored twice"
        assert len({row.pid for row in rows}) <= 1, "all rows are of one attempt"
        assert (run.state == State.FINISHED) == (len(rows) == 8) or run.cause == Cause.KILLED
        for number in range(1, run.attempt + 1):
            assert house.files(run_id).exit(number).is_file() or not _has_process_record(house, run_id, number)
    states = [house.store.run(run_id).state for run_id in runs]
    assert states.count(State.FINISHED) >= count // 4
    assert set(states) <= {State.FINISHED, State.FAILED}
    assert {house.store.run(run_id).cause for run_id in runs} <= {None, Cause.KILLED}


def _has_process_record(house: House, run_id: int, number: int) -> bool:
    """Return whether an attempt has a process record with content."""
    record: Path = house.files(run_id).process(number)
    return record.is_file() and record.stat().st_size > 0


def test_timings_and_a_training_never_overlap(shared_house: House) -> None:
    """The training uses another device: it waits only because timings need the whole host."""
    submit = partial(jobs.submit, shared_house.store, shared_house.settings)
    runs = [submit(shared_house.kinds.TimingSpec(steps=2, seconds=0.05)) for _ in range(2)]
    runs.append(shared_house.submit(steps=4, seconds=0.1, device="cuda:0"))
    runs += [submit(shared_house.kinds.TimingSpec(steps=2, seconds=0.05)) for _ in range(2)]
    ended_runs = [shared_house.end(run_id) for run_id in runs]
    assert {run.state for run in ended_runs} == {State.FINISHED}
    intervals = sorted((run.started_at, run.ended_at) for run in ended_runs if run.started_at and run.ended_at)
    assert len(intervals) == 5
    assert all(before[1] <= after[0] for before, after in pairwise(intervals))
