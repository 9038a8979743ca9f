"""The scheduler and the warm process may die at any time: their successors adopt or end what they left."""

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
from engine.jobs.foreground import run_here
from engine.jobs.hosts import this_host
from engine.jobs.lifecycle import fingerprint, lease_name, start_engine
from engine.jobs.processes import Identity
from engine.settings import ROOT
from engine.store import Cause, State, attempts, leases, open_store, queue, tables
from tests.faults.conftest import House, until

pytestmark = pytest.mark.slow

RUN_HERE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is born with it ignored
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
    """Also wait until they are gone, or a scheduler would be taken for alive."""
    victims = [Identity.of(pid) for pid in pids]
    for victim in victims:
        victim.send(signal.SIGKILL)
    until(lambda: not any(victim.alive() for victim in victims))


def test_there_is_one_scheduler_however_many_are_started(house: House) -> None:
    log = house.settings.runs_dir / "scheduler.log"
    contenders = [start_engine(house.settings, "scheduler", log=log) for _ in range(2)]
    first = house.settled()
    (loser,) = [process for process in contenders if process.pid != first.pid]
    assert loser.wait() == 0
    assert house.scheduler() == first
    assert jobs.stop_scheduler(house.settings)
    assert [process.wait() for process in contenders] == [0, 0]


def test_a_second_scheduler_is_not_started_while_the_first_one_loads(house: House) -> None:
    for _ in range(3):
        jobs.ensure_scheduler(house.settings)
    assert len(house.named("scheduler")) == 1
    until(lambda: "scheduler" in (house.settings.runs_dir / "scheduler.log").read_text(), "it to be at work")
    assert house.named("scheduler")[0].pid == house.scheduler().pid


def test_a_killed_scheduler_is_replaced_and_its_runs_go_on(house: House) -> None:
    going = house.submit(steps=60, seconds=0.1)
    waiting = house.submit()
    worker = house.steps(going, 2)[0].pid
    killed = house.scheduler()
    kill(killed.pid)
    jobs.ensure_scheduler(house.settings)
    assert house.scheduler(other_than=killed.pid)
    assert house.end(going).state == State.FINISHED
    assert {row.pid for row in house.store.rows(going)} == {worker}
    assert len(house.store.rows(going)) == 60
    assert house.end(waiting).state == State.FINISHED


def test_a_successor_ends_what_died_with_the_scheduler(house: House) -> None:
    run_id = house.submit(steps=1000, seconds=0.05)
    house.steps(run_id, 2)
    processes = house.processes(run_id)
    kill(house.scheduler().pid, processes.supervisor.pid, processes.worker.pid)
    assert house.store.run(run_id).state == State.RUNNING, "nobody is there to know"
    jobs.ensure_scheduler(house.settings)
    run = house.end(run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.KILLED)
    assert house.exit(run_id)["code"] is None
    assert len(house.store.rows(run_id)) >= 2


def test_an_exit_is_on_record_with_no_scheduler_alive(house: House) -> None:
    run_id = house.submit(steps=1000, seconds=0.05)
    worker = house.steps(run_id, 2)[0].pid
    kill(house.scheduler().pid)
    kill(worker)
    until(lambda: house.files(run_id).exit().is_file(), "the exit record")
    assert house.exit(run_id)["code"] == -signal.SIGKILL
    jobs.ensure_scheduler(house.settings)
    assert house.end(run_id).cause == Cause.KILLED


def test_a_killed_warm_process_takes_no_run_along(house: House) -> None:
    going = house.submit(steps=60, seconds=0.05)
    waiting = house.submit()
    house.steps(going, 2)
    warm = house.warm()
    kill(warm.pid)
    assert house.end(going).state == State.FINISHED
    assert house.end(waiting).state == State.FINISHED
    assert house.warm().pid != warm.pid


def test_what_a_dead_warm_process_was_asked_for_starts_cold(house: House) -> None:
    jobs.ensure_scheduler(house.settings)
    warm = house.warm()
    warm.send_signal(signal.SIGSTOP)
    run_id = house.submit()
    until(lambda: house.store.run(run_id).state == State.STARTING, "starting")
    warm.kill()
    run = house.end(run_id)
    assert (run.state, run.attempt) == (State.FINISHED, 1)


def test_a_run_whose_scheduler_died_before_it_had_a_folder_is_started_by_the_next(house: House) -> None:
    run_id = house.store.enqueue(house.kinds.TrialSpec())
    assert queue.claim(house.store.database, this_host())  # as the scheduler that died did
    jobs.ensure_scheduler(house.settings)
    run = house.end(run_id)
    assert (run.state, run.attempt) == (State.FINISHED, 2)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_run_whose_supervisor_had_no_room_for_a_record_is_not_starting_for_ever(
    house: House, cancelled: bool
) -> None:
    """Half a minute: an attempt is given up after several leases of silence, 2 s each."""
    house = House(house.settings.model_copy(update={"lease_s": 2.0}), house.store, house.kinds)
    jobs.ensure_scheduler(house.settings)
    warm = house.warm()
    _, most = warm.rlimit(resource.RLIMIT_FSIZE)
    warm.rlimit(resource.RLIMIT_FSIZE, (0, most))  # to all that it forks, the disk is full
    run_id = house.submit()
    until(lambda: house.store.run(run_id).state == State.STARTING, "starting")
    if cancelled:
        house.store.request_cancel(run_id)
        until(lambda: house.store.run(run_id).state == State.CANCELLED, "its end")
    else:
        until(lambda: house.store.run(run_id).attempt == 2, "the next attempt")
    warm.rlimit(resource.RLIMIT_FSIZE, (most, most))
    assert house.end(house.submit()).state == State.FINISHED, "its slot is free"
    assert cancelled or house.end(run_id).state == State.FINISHED


def test_a_run_that_cannot_be_started_is_failed_and_the_next_goes_on(house: House) -> None:
    jobs.ensure_scheduler(house.settings)
    scheduler = house.scheduler()
    house.files(1).dir.symlink_to("nowhere")  # no folder can be made here
    run_id = house.submit()
    assert run_id == 1
    until(lambda: house.store.run(run_id).state.ended, "its end")
    run = house.store.run(run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.ERROR)
    assert "FileExistsError" in run.error
    assert house.end(house.submit()).state == State.FINISHED
    assert scheduler.alive()


def test_an_attempt_at_a_run_that_nobody_can_read_any_more_is_ended(house: House) -> None:
    bad = house.store.enqueue(house.kinds.TrialSpec())
    with house.store.database.write() as connection:
        connection.execute(text("UPDATE runs SET kind = 'of another version'"))
    assert house.end(house.submit()).state == State.FINISHED
    until(lambda: attempts.open_attempts(house.store.database) == [], "both attempts to be closed")
    assert [run.id for run in house.store.runs()] == [bad + 1]
    jobs.delete_run(house.store, house.settings, bad)


def test_the_server_gets_a_scheduler_again_after_the_store_was_out_of_reach(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    def rename(old: str, new: str) -> None:
        with house.store.database.write() as connection:
            connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))

    def outage() -> None:
        before = house.scheduler()
        rename("runs", "gone")
        until(lambda: "keeping the scheduler alive failed: the store" in caplog.text, "the outage to be seen")
        jobs.stop_scheduler(house.settings)
        rename("gone", "runs")
        assert house.scheduler(other_than=before.pid), "there is nothing to run, but nobody could know"

    async def serve() -> None:
        settings = house.settings.model_copy(update={"lease_s": 1.0})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_keep_scheduler, settings)
            await anyio.to_thread.run_sync(outage)
            tasks.cancel_scope.cancel()

    with caplog.at_level(logging.ERROR):
        anyio.run(serve)


def test_newer_code_takes_over_and_adopts_what_the_older_started(house: House) -> None:
    run_id = house.submit(steps=60, seconds=0.1)
    worker = house.steps(run_id, 2)[0].pid
    older = house.scheduler()
    with house.store.database.write() as connection:
        connection.execute(update(tables.leases).values(fingerprint="of older code"))
    jobs.ensure_scheduler(house.settings)
    assert house.scheduler(other_than=older.pid)
    until(lambda: not older.alive(), "the older scheduler to leave")
    assert house.end(run_id).state == State.FINISHED
    assert {row.pid for row in house.store.rows(run_id)} == {worker}
    lease = leases.read(house.store.database, lease_name(house.settings))
    assert lease is not None
    assert lease.fingerprint == fingerprint()


def test_a_scheduler_that_hangs_is_replaced_and_leaves_when_it_wakes(house: House) -> None:
    jobs.ensure_scheduler(house.settings)
    hung = house.scheduler()
    with house.store.database.write():  # so that it hangs while it holds nothing that others wait for
        hung.send(signal.SIGSTOP)
        until(lambda: psutil.Process(hung.pid).status() == psutil.STATUS_STOPPED, "it to hang")
    run_id = house.submit()
    jobs.ensure_scheduler(house.settings)
    until(lambda: leases.read(house.store.database, lease_name(house.settings)).expired, "its lease to expire")  # type: ignore[union-attr]
    jobs.ensure_scheduler(house.settings)
    assert house.scheduler(other_than=hung.pid)
    assert house.end(run_id).state == State.FINISHED
    hung.send(signal.SIGCONT)
    until(lambda: not hung.alive(), "the one that hung to leave")


def test_an_idle_scheduler_and_its_warm_process_leave_and_come_back(house: House) -> None:
    house = House(house.settings.model_copy(update={"idle_exit_s": 0.5}), house.store, house.kinds)
    assert house.end(house.submit()).state == State.FINISHED
    until(lambda: not house.running(), "all to leave")
    assert leases.read(house.store.database, lease_name(house.settings)) is None
    assert house.end(house.submit()).state == State.FINISHED


def test_stop_ends_the_scheduler_and_lets_runs_end_by_themselves(house: House) -> None:
    run_id = house.submit(steps=60, seconds=0.1)
    house.steps(run_id, 2)
    waiting = house.submit()
    house.settled()
    warm = house.warm()
    assert jobs.stop_scheduler(house.settings)
    assert not jobs.stop_scheduler(house.settings)
    assert not house.named("scheduler")
    assert not warm.is_running()
    assert house.end(run_id).state == State.FINISHED
    assert house.store.run(waiting).state == State.QUEUED
    jobs.ensure_scheduler(house.settings)
    assert house.end(waiting).state == State.FINISHED


def test_a_run_in_the_foreground_holds_its_slot_and_can_be_cancelled_from_elsewhere(house: House) -> None:
    first = house.submit(steps=10, seconds=0.1)
    house.steps(first, 1)
    seen: list[str] = []
    spec = house.kinds.TrialSpec(steps=1000, seconds=0.1)

    def cancel() -> None:
        store = open_store(house.settings)
        (run,) = until(lambda: [run for run in store.runs() if run.id != first and run.done > 2])
        store.request_cancel(run.id)
        store.close()

    other = threading.Thread(target=cancel)
    other.start()
    run_id = run_here(house.store, house.settings, spec, lambda event: seen.append(repr(event)))
    other.join()
    assert f"waiting for run {first} on cpu" in seen[0]
    run = house.store.run(run_id)
    assert run.state == State.CANCELLED
    assert {row.pid for row in house.store.rows(run_id)} == {os.getpid()}
    assert run.started_at > house.store.run(first).ended_at
    until(lambda: attempts.open_attempts(house.store.database) == [], "every attempt to be closed")


def test_a_run_in_the_foreground_gets_the_slot_of_a_killed_one(house: House) -> None:
    with subprocess.Popen([sys.executable, "-c", RUN_HERE], cwd=ROOT, stdout=subprocess.DEVNULL) as first:
        (killed,) = until(lambda: [run for run in house.store.runs() if run.done > 2], "the first run")
        assert not house.named("scheduler")
        first.kill()
    run_id = run_here(house.store, house.settings, house.kinds.TrialSpec(), lambda event: None)
    assert house.store.run(run_id).state == State.FINISHED
    run = house.store.run(killed.id)
    assert (run.state, run.cause) == (State.FAILED, Cause.KILLED)


def test_ctrl_c_ends_the_wait_for_a_slot_and_leaves_no_run(house: House) -> None:
    first = house.submit(steps=1000, seconds=0.1)
    house.steps(first, 1)
    with subprocess.Popen([sys.executable, "-c", RUN_HERE], cwd=ROOT, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert f"waiting for run {first} on cpu" in waiting.stdout.readline()
        waiting.send_signal(signal.SIGINT)
        assert waiting.communicate() == ("left\n", None)
    assert [run.id for run in house.store.runs()] == [first]
    house.store.request_cancel(first)
    assert house.end(first).state == State.CANCELLED


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_every_run_ends_once_whatever_is_killed(house: House, count: int) -> None:
    """Runs on three devices under as many seeded SIGKILLs of everything we start."""
    dice = random.Random(20_261_120)
    house = House(house.settings.model_copy(update={"lease_s": 2.0}), house.store, house.kinds)
    submit = [house.submit, house.submit_retried]
    runs = [dice.choice(submit)(steps=8, seconds=0.05, device=f"cuda:{number % 3}") for number in range(count)]
    ends: dict[int, set[State]] = {run_id: set() for run_id in runs}
    deadline, kills = time.monotonic() + max(240, 8 * count), 0
    while not all(ends.values()):
        assert time.monotonic() < deadline, [run for run in house.store.runs() if not run.state.ended]
        jobs.ensure_scheduler(house.settings)
        time.sleep(dice.uniform(0.1, 0.6))
        if kills < count and (victims := house.running()):
            victim = dice.choice(victims)
            kills += 1
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                pass  # it has ended meanwhile
        for run in house.store.runs():
            if run.state.ended:
                ends[run.id].add(run.state)
    until(lambda: not attempts.open_attempts(house.store.database), "every attempt to be closed")
    for run_id in runs:
        run = house.store.run(run_id)
        assert ends[run_id] == {run.state}, "an ended run stays as it ended"
        rows = house.store.rows(run_id)
        assert [row.step for row in rows] == list(range(1, len(rows) + 1)), "nothing lost, nothing twice"
        assert len({row.pid for row in rows}) <= 1, "no two attempts mixed"
        assert (run.state == State.FINISHED) == (len(rows) == 8) or run.cause == Cause.KILLED
        for number in range(1, run.attempt + 1):
            assert house.files(run_id).exit(number).is_file() or not _began(house, run_id, number)
    states = [house.store.run(run_id).state for run_id in runs]
    assert states.count(State.FINISHED) >= count // 4
    assert set(states) <= {State.FINISHED, State.FAILED}
    assert {house.store.run(run_id).cause for run_id in runs} <= {None, Cause.KILLED}


def _began(house: House, run_id: int, number: int) -> bool:
    record: Path = house.files(run_id).process(number)
    return record.is_file() and record.stat().st_size > 0


def test_timings_and_a_training_at_once_never_overlap(house: House) -> None:
    """The training is on another device: only that timings want the host for themselves keeps them apart."""
    submit = partial(jobs.submit, house.store, house.settings)
    runs = [submit(house.kinds.TimingSpec(steps=2, seconds=0.05)) for _ in range(2)]
    runs.append(house.submit(steps=4, seconds=0.1, device="cuda:0"))
    runs += [submit(house.kinds.TimingSpec(steps=2, seconds=0.05)) for _ in range(2)]
    ended = [house.end(run_id) for run_id in runs]
    assert {run.state for run in ended} == {State.FINISHED}
    intervals = sorted((run.started_at, run.ended_at) for run in ended if run.started_at and run.ended_at)
    assert len(intervals) == 5
    assert all(before[1] <= after[0] for before, after in pairwise(intervals))
