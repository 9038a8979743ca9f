"""Attempts whose processes a scheduler cannot see: on other hosts, before a reboot, or with damaged records."""

import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import update

from engine import jobs
from engine.jobs import hosts
from engine.jobs.hosts import GIVE_UP_LEASES, declare_gone, host_name, lost_host, open_hosts, this_host
from engine.jobs.processes import Identity
from engine.settings import ROOT, Settings
from engine.specs import ProfileSpec, Refused
from engine.store import Attempt, Cause, Exit, StaleAttempt, State, Store, attempts, open_store, queue, tables
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


def set_last_heartbeat(store: Store, attempt: Attempt, seconds_ago: float) -> None:
    """Set the last heartbeat of an attempt. Negative seconds are in the future."""
    with store.database.write() as connection:
        same_attempt = tables.attempts.c.id == attempt.token
        connection.execute(update(tables.attempts).where(same_attempt).values(heartbeat_at=time.time() - seconds_ago))


@pytest.mark.slow
def test_host_name_depends_on_boot_and_pid_namespace() -> None:
    assert host_name(this_host()) == socket.gethostname()
    assert this_host() != socket.gethostname()
    code = "from engine.jobs.hosts import this_host; print(this_host())"
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == this_host(), "every process of a host has the same name for it"
    if os.getuid() != 0:
        pytest.skip("making a PID namespace, as a container has, needs root")
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    host_in_namespace = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert host_name(host_in_namespace) == socket.gethostname()
    assert host_in_namespace != this_host(), "a container with the same name is another host"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems identify processes by absolute times")
def test_host_has_another_id_after_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container keeps its boot id when it is started again, and may get the same number for its PID namespace."""
    names = {hosts.this_host.__wrapped__()}
    (boot_id := tmp_path / "boot_id").write_text("another")
    monkeypatch.setattr(hosts, "BOOT_ID", boot_id)
    names.add(hosts.this_host.__wrapped__())
    monkeypatch.setattr(Identity, "of", lambda pid: Identity(pid, 1.5))
    names.add(hosts.this_host.__wrapped__())
    assert len(names) == 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="hiding processes needs Linux and root")
@pytest.mark.parametrize("option", ["hidepid=1", "hidepid=2"])
def test_host_has_an_id_if_the_first_process_is_hidden(option: str) -> None:
    """/proc can hide other users' processes: with hidepid=1, reading them is not permitted, with 2 they are missing."""
    code = "import os; from engine.jobs.hosts import this_host; os.setgid(65534); os.setuid(65534); print(this_host())"
    script = f"mount -t proc -o {option} proc /proc; {shlex.quote(sys.executable)} -c '{code}'; exit $?"
    command = ["unshare", "--mount", "--pid", "--fork", "bash", "-c", script]
    host = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert host_name(host) == socket.gethostname() != host


def test_attempts_of_a_host_declared_gone_end_and_cannot_write(store: Store, settings: Settings) -> None:
    ids = [store.enqueue(SPEC.model_copy(update={"device": f"cuda:{number}"})) for number in range(2)]
    first, second = (begin_on(store, ELSEWHERE) for _ in ids)
    store.request_cancel(ids[0])
    set_last_heartbeat(store, first, 100)
    with pytest.raises(Refused, match=r"elsewhere reported 0 s ago"):
        declare_gone(store, settings, "elsewhere")
    set_last_heartbeat(store, second, 50)
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


@pytest.mark.parametrize("wrong_s", [-3600, 3600])
def test_host_whose_clock_is_wrong_is_known_to_be_alive(
    settings: Settings, database_url: str, monkeypatch: pytest.MonkeyPatch, wrong_s: float
) -> None:
    """Heartbeats and their age are times of the database, which all hosts share."""
    store = open_store(settings.model_copy(update={"database_url": database_url}))
    run_id, right = store.enqueue(SPEC), time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: right() + wrong_s)
        attempt = begin_on(store, ELSEWHERE)
        attempts.heartbeat(store.database, attempt)
    (host,) = open_hosts(store)
    assert abs(host.silent_s) < 60
    assert lost_host(store, settings, run_id) is None
    with pytest.raises(Refused, match="elsewhere reported"):
        declare_gone(store, settings, ELSEWHERE)
    store.close()


def test_host_whose_clock_is_ahead_can_be_declared_gone(store: Store, settings: Settings) -> None:
    store.enqueue(SPEC)
    set_last_heartbeat(store, begin_on(store, ELSEWHERE), -3600)
    assert declare_gone(store, settings, ELSEWHERE).name == "elsewhere"


def test_invalid_hosts_cannot_be_declared_gone(store: Store, settings: Settings) -> None:
    with pytest.raises(Refused, match=r"no host 'elsewhere' has open attempts\. Hosts with open attempts: none"):
        declare_gone(store, settings, "elsewhere")
    for number, host in enumerate((this_host(), "twin#1", "twin#2")):
        store.enqueue(SPEC.model_copy(update={"device": f"cuda:{number}"}))
        set_last_heartbeat(store, begin_on(store, host), 3600)
    with pytest.raises(Refused, match="is this host: its scheduler looks after its runs"):
        declare_gone(store, settings, this_host())
    with pytest.raises(Refused, match="2 hosts are called 'twin': give one of twin#1, twin#2"):
        declare_gone(store, settings, "twin")
    assert (lost_host(store, settings, 1), lost_host(store, settings, 2) is None) == (None, False)
    assert declare_gone(store, settings, "twin#2").run_ids == (3,)
    assert {host.id for host in open_hosts(store)} == {this_host(), "twin#1"}, "attempts of other hosts go on"


@pytest.mark.slow
@pytest.mark.usefixtures("own_world")
def test_page_of_a_run_has_a_button_to_declare_its_host_gone(store: Store) -> None:
    run_id = store.enqueue(SPEC)
    attempt = begin_on(store, ELSEWHERE)
    attempts.mark_vanished(store.database, attempt)
    key = f"gone_{run_id}"
    assert key not in {button.key for button in open_page("run/page.py", run=str(run_id)).button}, (
        "the host has just reported"
    )
    set_last_heartbeat(store, attempt, 200)
    app = open_page("run/page.py", run=str(run_id))
    button = app.button(key=key)
    assert button.label == "Declare elsewhere gone"
    button.click().run()
    assert not app.exception
    assert store.run(run_id).state == State.FAILED
    assert "its host elsewhere was declared gone" in texts(app).replace("\\", "")


@pytest.fixture
def short_leases(house: House) -> House:
    """Return the house with leases of 1 s, so that the scheduler notices silent workers soon."""
    return House(house.settings.model_copy(update={"lease_s": 1.0}), house.store, house.kinds)


@pytest.mark.slow
def test_cancelled_run_of_a_lost_host_ends_and_can_be_deleted(short_leases: House) -> None:
    lost, other = (
        short_leases.store.enqueue(short_leases.kinds.TrialSpec(device=f"cuda:{number}")) for number in range(2)
    )
    for _ in range(2):
        begin_on(short_leases.store, ELSEWHERE)
    short_leases.store.request_cancel(lost)
    jobs.ensure_scheduler(short_leases.settings)
    until(lambda: short_leases.store.run(lost).state == State.CANCELLED, "the end of the run")
    jobs.delete_run(short_leases.store, short_leases.settings, lost)
    until(lambda: short_leases.store.run(other).state == State.VANISHED, "the other run to be vanished")
    assert [host.id for host in open_hosts(short_leases.store)] == [ELSEWHERE]
    set_last_heartbeat(short_leases.store, attempts.open_attempts(short_leases.store.database)[0], 100)
    declare_gone(short_leases.store, short_leases.settings, "elsewhere")
    assert short_leases.store.run(other).state == State.FAILED


@pytest.mark.slow
def test_runs_that_were_active_before_a_reboot_start_again(short_leases: House) -> None:
    run_id = short_leases.store.enqueue(short_leases.kinds.RetriedSpec())
    begin_on(short_leases.store, RESTARTED)
    jobs.ensure_scheduler(short_leases.settings)
    run = until(lambda: (run := short_leases.store.run(run_id)).state.ended and run, "the end of the run")
    assert (run.state, run.attempt) == (State.FINISHED, 2)


@pytest.mark.slow
def test_worker_whose_clock_jumps_is_not_vanished(short_leases: House) -> None:
    run_id = short_leases.store.enqueue(short_leases.kinds.TrialSpec())
    attempt = begin_on(short_leases.store, ELSEWHERE)
    jobs.ensure_scheduler(short_leases.settings)
    short_leases.scheduler()
    deadline = time.monotonic() + 8
    jump = 0.0
    while time.monotonic() < deadline:
        jump = -3600 - jump  # one hour in the future and now, in turn
        set_last_heartbeat(short_leases.store, attempt, jump)
        assert short_leases.store.run(run_id).state == State.STARTING
        time.sleep(0.2)
    until(lambda: short_leases.store.run(run_id).state == State.VANISHED, "the run to be vanished")
    attempts.close(short_leases.store.database, attempt, Exit(), Cause.KILLED, "")


@pytest.mark.slow
def test_unreadable_run_folder_does_not_stop_other_runs(short_leases: House) -> None:
    store = short_leases.store
    damages = {}
    for number, damage in enumerate(("no fields", "a list", "a folder", "a named pipe")):
        run_id = store.enqueue(short_leases.kinds.TrialSpec(device=f"cuda:{number}"))
        begin_on(store, this_host())
        _damage(short_leases.files(run_id).process(), damage)
        damages[run_id] = damage
    assert short_leases.end(short_leases.submit(device="cpu")).state == State.FINISHED
    for run_id, damage in damages.items():
        until(lambda run_id=run_id: store.run(run_id).state.ended, f"the end of the run with {damage}")
        run = store.run(run_id)
        assert run.state == State.FAILED
        if damage != "a named pipe":  # a pipe looks like a record that does not exist yet
            assert "process.json" in run.error
    after = [short_leases.submit(device=device) for run_id in damages for device in store.run(run_id).spec.devices]
    assert {short_leases.end(run_id).state for run_id in after} == {State.FINISHED}, "their slots are free"


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
def test_run_error_says_why_no_warm_process_could_start(short_leases: House) -> None:
    jobs.ensure_scheduler(short_leases.settings)
    log = short_leases.settings.runs_dir / "scheduler.log"
    short_leases.warm().kill()
    log.rename(log.with_suffix(".kept"))
    log.mkdir()  # a process cannot be started with a folder as its log
    try:
        run_id = short_leases.submit()
        until(lambda: short_leases.store.run(run_id).state.ended, "the end of the run")
        assert "IsADirectoryError" in short_leases.store.run(run_id).error
    finally:
        log.rmdir()
    assert short_leases.end(short_leases.submit()).state == State.FINISHED


@pytest.mark.slow
def test_runs_survive_a_lock_that_is_longer_than_the_leases(house: House) -> None:
    lease_s = 3.0
    patient = House(house.settings.model_copy(update={"lease_s": lease_s}), house.store, house.kinds)
    ids = [patient.submit(steps=60, seconds=0.1, device=f"cuda:{number}") for number in range(3)]
    for run_id in ids:
        patient.steps(run_id, 2)
    with patient.store.database.write():
        time.sleep((GIVE_UP_LEASES + 1) * lease_s)
    for run_id in ids:
        run = patient.end(run_id)
        log = (patient.settings.runs_dir / "scheduler.log").read_text()
        assert (run.state, run.attempt, run.error) == (State.FINISHED, 1, ""), log
        assert [row.step for row in patient.store.rows(run_id)] == list(range(1, 61))
