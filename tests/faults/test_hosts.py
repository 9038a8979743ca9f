"""Attempts whose processes a scheduler cannot see: of other hosts, of hosts that restarted, with damaged records."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import update

from engine import jobs
from engine.jobs.hosts import GIVE_UP_LEASES, declare_gone, host_name, lost_host, open_hosts, this_host
from engine.settings import ROOT, Settings
from engine.specs import ProfileSpec, Refused
from engine.store import Attempt, Cause, Exit, StaleAttempt, State, Store, attempts, queue, tables
from tests.faults.conftest import House, until
from tests.support.page import open_page, texts

RESTARTED = f"{socket.gethostname()}#of-an-earlier-boot"
ELSEWHERE = "elsewhere#0123456789ab"
SPEC = ProfileSpec(models=("timm:resnet18",), device="cpu")


def begin_on(store: Store, host: str) -> Attempt:
    """Start an attempt at the next queued run, as a worker on that host does."""
    attempt = queue.claim(store.database, host)
    assert attempt is not None
    attempts.begin(store.database, attempt)
    return attempt


def last_heard(store: Store, attempt: Attempt, seconds_ago: float) -> None:
    with store.database.write() as connection:
        this = tables.attempts.c.id == attempt.token
        connection.execute(update(tables.attempts).where(this).values(heartbeat_at=time.time() - seconds_ago))


@pytest.mark.slow
def test_a_host_is_told_apart_by_its_boot_and_its_namespace() -> None:
    assert host_name(this_host()) == socket.gethostname()
    assert this_host() != socket.gethostname()
    code = "from engine.jobs.hosts import this_host; print(this_host())"
    here = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert here.stdout.strip() == this_host(), "every process of a host says the same"
    if os.getuid() != 0:
        pytest.skip("making a PID namespace, as a container has, needs root")
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    contained = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert host_name(contained) == socket.gethostname()
    assert contained != this_host(), "a container with the same name is another host"


def test_a_silent_host_is_declared_gone_and_fenced_off(store: Store, settings: Settings) -> None:
    ids = [store.enqueue(SPEC.model_copy(update={"device": f"cuda:{number}"})) for number in range(2)]
    first, second = (begin_on(store, ELSEWHERE) for _ in ids)
    store.request_cancel(ids[0])
    last_heard(store, first, 100)
    with pytest.raises(Refused, match=r"elsewhere reported 0 s ago"):
        declare_gone(store, settings, "elsewhere")
    last_heard(store, second, 50)
    lost = lost_host(store, settings, ids[1])
    assert lost is not None
    assert declare_gone(store, settings, "elsewhere").run_ids == tuple(ids)
    assert store.run(ids[0]).state == State.CANCELLED
    run = store.run(ids[1])
    assert (run.state, run.cause, run.error) == (State.FAILED, Cause.KILLED, "its host elsewhere was declared gone")
    assert open_hosts(store) == []
    assert queue.holders(store.database, ELSEWHERE) == {}
    with pytest.raises(StaleAttempt):
        attempts.heartbeat(store.database, second)
    jobs.delete_run(store, settings, ids[1])


def test_a_host_whose_clock_is_ahead_can_be_declared_gone_too(store: Store, settings: Settings) -> None:
    store.enqueue(SPEC)
    last_heard(store, begin_on(store, ELSEWHERE), -3600)
    assert declare_gone(store, settings, ELSEWHERE).name == "elsewhere"


def test_a_host_that_cannot_be_declared_gone_is_refused(store: Store, settings: Settings) -> None:
    with pytest.raises(Refused, match=r"no host 'elsewhere' has open attempts\. Hosts with open attempts: none"):
        declare_gone(store, settings, "elsewhere")
    for number, host in enumerate((this_host(), "twin#1", "twin#2")):
        store.enqueue(SPEC.model_copy(update={"device": f"cuda:{number}"}))
        last_heard(store, begin_on(store, host), 3600)
    with pytest.raises(Refused, match="is this host: its scheduler looks after its runs"):
        declare_gone(store, settings, this_host())
    with pytest.raises(Refused, match="2 hosts are called 'twin': give one of twin#1, twin#2"):
        declare_gone(store, settings, "twin")
    assert declare_gone(store, settings, "twin#2").run_ids == (3,)


@pytest.mark.slow
@pytest.mark.usefixtures("own_world")
def test_the_page_of_a_run_offers_to_declare_its_host_gone(store: Store) -> None:
    run_id = store.enqueue(SPEC)
    attempt = begin_on(store, ELSEWHERE)
    attempts.mark_vanished(store.database, attempt)
    key = f"gone_{run_id}"
    assert key not in {button.key for button in open_page("run/page.py", run=str(run_id)).button}, (
        "it has just reported"
    )
    last_heard(store, attempt, 200)
    app = open_page("run/page.py", run=str(run_id))
    button = app.button(key=key)
    assert button.label == "Declare elsewhere gone"
    button.click().run()
    assert not app.exception
    assert store.run(run_id).state == State.FAILED
    assert "its host elsewhere was declared gone" in texts(app).replace("\\", "")


@pytest.fixture
def quick(house: House) -> House:
    """With leases of a second, so that silence is noticed soon."""
    return House(house.settings.model_copy(update={"lease_s": 1.0}), house.store, house.kinds)


@pytest.mark.slow
def test_a_cancelled_run_of_a_lost_host_ends_and_can_be_deleted(quick: House) -> None:
    lost, kept = (quick.store.enqueue(quick.kinds.TrialSpec(device=f"cuda:{number}")) for number in range(2))
    for _ in range(2):
        begin_on(quick.store, ELSEWHERE)
    quick.store.request_cancel(lost)
    jobs.ensure_scheduler(quick.settings)
    until(lambda: quick.store.run(lost).state == State.CANCELLED, "the end of the run")
    jobs.delete_run(quick.store, quick.settings, lost)
    until(lambda: quick.store.run(kept).state == State.VANISHED, "the other run to be called vanished")
    assert [host.id for host in open_hosts(quick.store)] == [ELSEWHERE]
    last_heard(quick.store, attempts.open_attempts(quick.store.database)[0], 100)
    declare_gone(quick.store, quick.settings, "elsewhere")
    assert quick.store.run(kept).state == State.FAILED


@pytest.mark.slow
def test_runs_of_this_host_before_it_restarted_are_begun_again(quick: House) -> None:
    run_id = quick.store.enqueue(quick.kinds.RetriedSpec())
    begin_on(quick.store, RESTARTED)
    jobs.ensure_scheduler(quick.settings)
    run = until(lambda: (run := quick.store.run(run_id)).state.ended and run, "the end of the run")
    assert (run.state, run.attempt) == (State.FINISHED, 2)


@pytest.mark.slow
def test_a_worker_whose_clock_jumps_is_not_called_silent(quick: House) -> None:
    run_id = quick.store.enqueue(quick.kinds.TrialSpec())
    attempt = begin_on(quick.store, ELSEWHERE)
    jobs.ensure_scheduler(quick.settings)
    quick.scheduler()
    over = time.monotonic() + 8
    jump = 0.0
    while time.monotonic() < over:
        jump = -3600 - jump  # an hour back, and forth again
        last_heard(quick.store, attempt, jump)
        assert quick.store.run(run_id).state == State.STARTING
        time.sleep(0.2)
    until(lambda: quick.store.run(run_id).state == State.VANISHED, "silence to be noticed")
    attempts.close(quick.store.database, attempt, Exit(), Cause.KILLED, "")


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["no fields", "a list", "a folder", "a named pipe"])
def test_one_run_folder_that_cannot_be_read_stops_nothing_else(quick: House, damage: str) -> None:
    bad = quick.store.enqueue(quick.kinds.TrialSpec(device="cuda:0"))
    begin_on(quick.store, this_host())
    _damage(quick.files(bad).process(), damage)
    good = quick.submit(device="cuda:1")
    assert quick.end(good).state == State.FINISHED
    run = until(lambda: (run := quick.store.run(bad)).state.ended and run, "the end of the other run")
    assert run.state == State.FAILED
    if damage != "a named pipe":  # which reads as a record that is not there yet
        assert "process.json" in run.error
    assert quick.end(quick.submit(device="cuda:0")).state == State.FINISHED, "its slot is free"


def _damage(path: Path, damage: str) -> None:
    path.parent.mkdir(parents=True)
    match damage:
        case "no fields":
            path.write_text("{}")
        case "a list":
            path.write_text("[1]")
        case "a folder":
            path.mkdir()
        case "a named pipe":
            os.mkfifo(path)


@pytest.mark.slow
def test_a_scheduler_that_cannot_start_a_warm_process_says_why_of_each_run(quick: House) -> None:
    jobs.ensure_scheduler(quick.settings)
    log = quick.settings.runs_dir / "scheduler.log"
    quick.warm().kill()
    log.rename(log.with_suffix(".kept"))
    log.mkdir()  # nothing can be started with this log
    try:
        run_id = quick.submit()
        until(lambda: quick.store.run(run_id).state.ended, "its end")
        assert "IsADirectoryError" in quick.store.run(run_id).error
    finally:
        log.rmdir()
    assert quick.end(quick.submit()).state == State.FINISHED


@pytest.mark.slow
def test_a_lock_that_outlasts_the_leases_ends_no_healthy_run(house: House) -> None:
    lease_s = 3.0
    patient = House(house.settings.model_copy(update={"lease_s": lease_s}), house.store, house.kinds)
    ids = [patient.submit(steps=120, seconds=0.1, device=f"cuda:{number}") for number in range(3)]
    for run_id in ids:
        patient.steps(run_id, 2)
    with patient.store.database.write():
        time.sleep((GIVE_UP_LEASES + 1) * lease_s)
    for run_id in ids:
        run = patient.end(run_id)
        log = (patient.settings.runs_dir / "scheduler.log").read_text()
        assert (run.state, run.attempt, run.error) == (State.FINISHED, 1, ""), log
        assert [row.step for row in patient.store.rows(run_id)] == list(range(1, 121))
