"""Schedulers and workers while their PostgreSQL server stops and starts again."""

import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from engine.jobs.attempt import failures, worker
from engine.jobs.attempt.worker import Stop, execute
from engine.jobs.hosts import this_host
from engine.jobs.lifecycle import start_engine
from engine.settings import Settings
from engine.store import Busy, Cause, Exit, State, attempts, open_store, queue
from engine.store.bundles.bundle import export_bundle
from engine.store.database import Database
from tests.faults import test_scheduler_faults
from tests.faults.conftest import House

if TYPE_CHECKING:
    from tests.support.servers.postgres import Server

pytestmark = pytest.mark.cluster

CANARY = "canary-password"
OUTAGE_S = 5.0
"""Seconds without the server: longer than the leases of these tests (3 s)."""


@pytest.fixture
def server_to_stop() -> "Iterator[Server]":
    from tests.support.servers.postgres import server

    with server() as running:
        yield running


@pytest.fixture
def settings(settings: Settings, server_to_stop: "Server", monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return settings with the store on the server. They replace those of the other tests."""
    url = server_to_stop.new_database().replace("@", f":{CANARY}@")  # this server asks for no password
    monkeypatch.setenv("VITALS_DATABASE_URL", url)
    return settings.model_copy(update={"database_url": url})


def test_no_run_is_lost_when_the_server_restarts(house: House, server_to_stop: "Server") -> None:
    runs = [house.submit(steps=30, seconds=0.1, device=f"cuda:{number % 3}") for number in range(6)]
    house.steps(runs[0], 1)
    scheduler = house.settled()
    server_to_stop.stop()
    with pytest.raises(Busy, match=r"does not answer\. Start PostgreSQL"):
        house.store.runs()
    time.sleep(OUTAGE_S)
    server_to_stop.start()
    for run in map(house.end, runs):
        assert (run.state, run.attempt, run.error) == (State.FINISHED, 1, "")
        assert [row.step for row in house.store.rows(run.id)] == list(range(1, 31))
        assert len({row.pid for row in house.store.rows(run.id)}) == 1
    assert house.scheduler() == scheduler
    log = (house.settings.runs_dir / "scheduler.log").read_text()
    assert 1 <= log.count("looking after runs failed") <= 3, "one for each phase: stopping, refusing, starting"
    assert "Traceback" not in log
    files = [path for path in house.settings.runs_dir.rglob("*") if path.is_file()]
    assert len(files) > len(runs)
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    with zipfile.ZipFile(BytesIO(export_bundle(house.store, house.settings, runs[0]))) as bundle:
        assert not [name for name in bundle.namelist() if CANARY.encode() in bundle.read(name)]


def test_every_run_ends_once_while_random_processes_are_killed(house: House) -> None:
    test_scheduler_faults.test_every_run_ends_once_while_random_processes_are_killed(house, 8)


def test_worker_that_starts_while_the_server_is_away_waits_for_it(house: House, server_to_stop: "Server") -> None:
    run_id = house.store.enqueue(house.kinds.TrialSpec(steps=3))
    assert queue.claim(house.store.database, this_host())
    house.files(run_id).prepare()
    server_to_stop.stop()
    process = start_engine(house.settings, "work", str(run_id))
    time.sleep(OUTAGE_S)
    assert process.poll() is None
    server_to_stop.start()
    assert process.wait(60) == 0
    assert house.store.run(run_id).state == State.FINISHED
    (attempt,) = attempts.open_attempts(house.store.database)
    attempts.close(house.store.database, attempt, Exit(0), Cause.ERROR, "")


def test_worker_waits_a_limited_time_for_the_server(
    house: House, server_to_stop: "Server", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STORE_RETRY_S", 0.05)
    monkeypatch.setattr(worker, "STORE_WAIT_S", 0.5)
    house.store.enqueue(house.kinds.TrialSpec(steps=1000, seconds=0.01))
    attempt = queue.claim(house.store.database, this_host())
    assert attempt is not None
    house.files(attempt.run_id).prepare()

    def stop_at_once(_event: object) -> None:
        if server_to_stop.running:
            server_to_stop.stop()

    code = execute(house.store, house.settings, attempt, Stop(), stop_at_once)
    assert code == failures.EXIT_CODES[Cause.STORE_UNAVAILABLE]
    server_to_stop.start()
    attempts.close(house.store.database, attempt, Exit(code), *failures.of_exit(Exit(code), None))
    run = house.store.run(attempt.run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.STORE_UNAVAILABLE)


def test_refused_login_is_told_apart_from_a_server_that_does_not_answer(server_to_stop: "Server") -> None:
    absent = server_to_stop.new_database() + "x"
    with pytest.raises(Busy, match=r"refuses the connection\. Look at the database, user.*x\" does not exist"):
        open_store(Settings(database_url=absent))


@pytest.mark.parametrize("doing", ["starting up", "shutting down", "in recovery mode"])
def test_server_that_is_not_ready_is_waited_for(doing: str) -> None:
    """A socket answers as the server does while it replays its log, which takes a moment that no test can stretch."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                while len(request := connection.recv(1000)) == 8:  # asks for encryption
                    connection.sendall(b"N")
                assert b"vitals" in request
                fields = f"SFATAL\0VFATAL\0C57P03\0Mthe database system is {doing}\0\0".encode()
                connection.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)

        threading.Thread(target=refuse, daemon=True).start()
        url = f"postgresql://vitals@127.0.0.1:{server.getsockname()[1]}/vitals"
        with pytest.raises(Busy, match=rf"is starting or stopping\. Wait a moment.* the database system is {doing}"):
            open_store(Settings(database_url=url))


def test_read_transaction_sees_one_state_of_the_store(house: House) -> None:
    """Read twice in one transaction, with a write of another connection in between."""
    house.store.enqueue(house.kinds.TrialSpec())
    with house.store.database.read() as connection:
        counts = [connection.exec_driver_sql("SELECT count(*) FROM runs").scalar_one()]
        house.store.enqueue(house.kinds.TrialSpec())
        counts.append(connection.exec_driver_sql("SELECT count(*) FROM runs").scalar_one())
    assert counts == [1, 1]


def test_stopped_writer_blocks_other_writers_for_a_limited_time(house: House) -> None:
    """A stopped process or a lost host leaves a silent transaction. The server rolls it back."""
    slow_writer = Database(house.settings.store_url, busy_s=0.5)

    def write_slowly() -> None:
        with slow_writer.write() as connection:
            connection.exec_driver_sql("DELETE FROM changes")
            house.store.enqueue(house.kinds.TrialSpec())  # waits until the server has ended the transaction above
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(Busy):
        write_slowly()
    slow_writer.close()
    assert house.store.revision() > 0


def test_claims_of_one_host_wait_and_claims_of_two_hosts_differ(house: House) -> None:
    first, second = (house.store.enqueue(house.kinds.TrialSpec()) for _ in range(2))
    other_store = open_store(house.settings)
    with other_store.database.claiming("one host") as connection:
        connection.exec_driver_sql(f"SELECT id FROM runs WHERE id = {first} FOR UPDATE")
        attempt = queue.claim(house.store.database, "another host")
        assert attempt is not None
        assert attempt.run_id == second
        short_timeout_database = Database(house.settings.store_url, busy_s=0.2)
        with pytest.raises(Busy, match="is locked by another process"):
            queue.claim(short_timeout_database, "one host")
        short_timeout_database.close()
    other_store.close()
    attempts.close(house.store.database, attempt, Exit(1), Cause.ERROR, "")
