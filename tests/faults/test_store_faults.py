"""The database with several writers, killed processes and damaged tables."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from engine import jobs
from engine.jobs.attempt import failures
from engine.jobs.lifecycle import lease_name
from engine.settings import ROOT, Settings
from engine.specs import ProfileSpec
from engine.store import Cause, Exit, Filter, State, Store, Unavailable, attempts, leases, open_store, queue
from tests.faults.conftest import House, until
from tests.support.claims import race
from tests.support.store import overwrite, table_pages

pytestmark = pytest.mark.slow

WRITE = """
import itertools, os, signal, sys
from engine.settings import Settings
from engine.results import Progress
from engine.store import StaleAttempt, attempts, open_store
store = open_store(Settings())
attempt = attempts.current(store.database, int(sys.argv[1]))
attempts.begin(store.database, attempt)
try:
    for done in itertools.count(1):
        attempts.record(store.database, attempt, [Progress(done=done)])
        os.kill(os.getpid(), signal.SIGSTOP)
except StaleAttempt:
    sys.exit(75)
"""

MIGRATE_AND_DIE = """
import os, signal, sys
from sqlalchemy import Engine, event
from engine.settings import Settings
from engine.store import open_store

@event.listens_for(Engine, "before_cursor_execute")
def count(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

for argument in sys.argv[1:]:
    left = int(argument)
    if (pid := os.fork()) == 0:
        open_store(Settings(runs_dir=argument)).close()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL, argument
"""


def start_python(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)


@pytest.mark.parametrize(
    ("claimers", "runs_each"), [(3, 20), pytest.param(8, 2000, marks=[pytest.mark.cluster, pytest.mark.timeout(1800)])]
)
def test_no_run_is_claimed_twice(
    settings: Settings, database_url: str, tmp_path: Path, claimers: int, runs_each: int
) -> None:
    """Each process claims `runs_each` runs. The queue is kept short, so the processes compete for the same runs."""
    store = open_store(settings.model_copy(update={"database_url": database_url}))
    result = race(store, claimers, runs_each, tmp_path)
    assert result.problems == []
    assert len(result.claims) == claimers * runs_each
    assert result.duplicates == 0
    assert store.count(Filter(states=(State.QUEUED, State.FAILED))) == store.count(Filter()), "no run is left claimed"
    store.close()


def test_writer_is_refused_once_its_attempt_was_closed(settings: Settings, store: Store) -> None:
    run_id = store.enqueue(ProfileSpec(models=("a",), device="cpu"))
    closed_attempt = queue.claim(store.database, "a host")
    assert closed_attempt is not None
    writer = start_python(WRITE, str(run_id))
    os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
    attempts.close(store.database, closed_attempt, Exit(note="it was given up"), Cause.ERROR, "")
    store.retry(run_id)
    new_attempt = queue.claim(store.database, "a host")
    assert new_attempt is not None
    attempts.begin(store.database, new_attempt)
    before = store.run(run_id)
    writer.send_signal(signal.SIGCONT)
    assert writer.wait(60) == 75
    assert store.run(run_id) == before


def test_migration_killed_midway_leaves_no_tables(tmp_path: Path) -> None:
    """Kill the migration before one of five statements: no table is created, and the store opens again."""
    killed_at = [2, 6, 11, 17, 24]
    for statement in killed_at:
        (tmp_path / str(statement)).mkdir()
    command = [sys.executable, "-W", "error", "-c", MIGRATE_AND_DIE, *map(str, killed_at)]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    for statement in killed_at:
        settings = Settings(runs_dir=tmp_path / str(statement))
        with closing(sqlite3.connect(settings.runs_dir / "vitals.sqlite")) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert tables == [], f"killed at statement {statement}"
        store = open_store(settings)
        store.enqueue(ProfileSpec(models=("a",), device="cpu"))
        store.close()


def test_sqlite_is_in_wal_mode(settings: Settings, store: Store) -> None:
    connection = sqlite3.connect(settings.runs_dir / "vitals.sqlite")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def merge_write_ahead_log(house: House) -> Path:
    """Merge the write-ahead log into the database file and return its path, so that readers read the file itself.

    Close the connections of this process first: a process that closes the file loses its SQLite locks on it.
    """
    house.store.close()
    path = house.settings.runs_dir / "vitals.sqlite"

    def is_merged() -> bool:
        with closing(sqlite3.connect(path)) as connection:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    until(is_merged, "the log to be merged")
    return path


def wait_for_lease_renewals(house: House, count: int) -> None:
    """Wait until the scheduler has renewed its lease `count` times. It renews at most once per cycle."""

    def expires_at() -> float:
        lease = leases.read(house.store.database, lease_name())
        assert lease is not None
        return lease.expires_at

    for _ in range(count):
        before = expires_at()
        until(lambda before=before: expires_at() > before, "a renewed lease", 20)


def test_scheduler_survives_a_damaged_table_and_logs_it_once(house: House) -> None:
    assert house.end(house.submit()).state == State.FINISHED
    scheduler = house.settled()
    path = merge_write_ahead_log(house)
    intact_bytes, places = path.read_bytes(), table_pages(path, "slots")
    overwrite(path, *places)
    waiting = house.submit()
    log = house.settings.runs_dir / "scheduler.log"
    until(lambda: "is damaged" in log.read_text(), "the damage to be logged")
    wait_for_lease_renewals(house, 3)
    assert house.scheduler() == scheduler
    assert log.read_text().count(f"looking after runs failed: the store {path} is damaged") == 1
    assert "Traceback" not in log.read_text()
    house.store.close()
    with path.open("r+b") as file:
        for place in places:
            file.seek(place.start)
            file.write(intact_bytes[place])
    jobs.ensure_scheduler(house.settings)
    assert house.end(waiting).state == State.FINISHED
    assert house.scheduler() == scheduler


def test_run_with_a_damaged_state_does_not_block_others(house: House) -> None:
    running = house.submit(steps=1000, seconds=0.1)
    house.steps(running, 1)
    scheduler = house.settled()
    with house.store.database.write() as connection:
        connection.execute(text("UPDATE runs SET state = 'gibberish'"))
    assert house.end(house.submit(device="cuda:0")).state == State.FINISHED
    until(lambda: attempts.open_attempts(house.store.database) == [], "both attempts to be closed")
    assert house.exit(running)["code"] == failures.STALE, "the worker could not write any more"
    assert house.scheduler() == scheduler


def test_scheduler_stops_although_its_lease_is_unreadable(house: House) -> None:
    assert house.end(house.submit()).state == State.FINISHED
    scheduler = house.settled()
    path = merge_write_ahead_log(house)
    overwrite(path, *table_pages(path, "leases"))
    with pytest.raises(Unavailable):
        house.scheduler()
    assert jobs.stop_scheduler(house.settings)
    assert not scheduler.alive()
    assert not jobs.stop_scheduler(house.settings)
    until(lambda: not house.named("warm"), "the warm process to leave")
    log = (house.settings.runs_dir / "scheduler.log").read_text()
    assert "Traceback" not in log
