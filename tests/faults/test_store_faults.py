"""The database under several writers and under SIGKILL."""

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
from engine.jobs import failures
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
left = int(sys.argv[1])
@event.listens_for(Engine, "before_cursor_execute")
def count(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
open_store(Settings()).close()
"""


def python(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)


@pytest.mark.parametrize(
    ("claimers", "runs_each"), [(4, 30), pytest.param(8, 2000, marks=[pytest.mark.cluster, pytest.mark.timeout(1800)])]
)
def test_no_run_is_claimed_twice(
    settings: Settings, database_url: str, tmp_path: Path, claimers: int, runs_each: int
) -> None:
    """Each process claims so many times, from a queue that stays short, so that they compete for the same runs."""
    store = open_store(settings.model_copy(update={"database_url": database_url}))
    raced = race(store, claimers, runs_each, tmp_path)
    assert raced.problems == []
    assert len(raced.claims) == claimers * runs_each
    assert raced.duplicates == 0
    assert store.count(Filter(states=(State.QUEUED, State.FAILED))) == store.count(Filter()), "no run is held"
    store.close()


def test_a_writer_that_slept_past_its_lease_is_refused(settings: Settings, store: Store) -> None:
    run_id = store.enqueue(ProfileSpec(models=("a",), device="cpu"))
    old = queue.claim(store.database, "a host")
    assert old is not None
    writer = python(WRITE, str(run_id))
    os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
    attempts.close(store.database, old, Exit(note="it was given up"), Cause.ERROR, "")
    store.retry(run_id)
    new = queue.claim(store.database, "a host")
    assert new is not None
    attempts.begin(store.database, new)
    before = store.run(run_id)
    writer.send_signal(signal.SIGCONT)
    assert writer.wait(60) == 75
    assert store.run(run_id) == before


def test_a_migration_killed_midway_leaves_nothing_behind(settings: Settings) -> None:
    """Killed before each statement in turn: the store is as before or complete, and opens."""
    path = settings.runs_dir / "vitals.sqlite"
    settings.runs_dir.mkdir()
    killed_at = [2, 6, 11, 17, 24]
    for statement in killed_at:
        path.unlink(missing_ok=True)
        dying = python(MIGRATE_AND_DIE, str(statement))
        assert dying.wait(60) == -signal.SIGKILL, statement
        connection = sqlite3.connect(path)
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
        assert tables == [], f"killed at statement {statement}"
        store = open_store(settings)
        store.enqueue(ProfileSpec(models=("a",), device="cpu"))
        store.close()


def test_sqlite_is_in_wal_mode(settings: Settings, store: Store) -> None:
    connection = sqlite3.connect(settings.runs_dir / "vitals.sqlite")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def merged(house: House) -> Path:
    """The store's file, with the write-ahead log merged into it, so that what is in the file is what is read.

    Our own connections are closed: a process that closes a file loses the locks of SQLite on it.
    """
    house.store.close()
    path = house.settings.runs_dir / "vitals.sqlite"

    def done() -> bool:
        with closing(sqlite3.connect(path)) as connection:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    until(done, "the log to be merged")
    return path


def turns(house: House, count: int) -> None:
    """Wait while the scheduler works, until it has renewed its lease so often: at most once a turn."""

    def expires_at() -> float:
        lease = leases.read(house.store.database, lease_name(house.settings))
        assert lease is not None
        return lease.expires_at

    for _ in range(count):
        before = expires_at()
        until(lambda before=before: expires_at() > before, "another turn", 20)


def test_a_damaged_table_ends_no_scheduler_and_is_logged_once(house: House) -> None:
    assert house.end(house.submit()).state == State.FINISHED
    scheduler = house.settled()
    path = merged(house)
    whole, places = path.read_bytes(), table_pages(path, "slots")
    overwrite(path, *places)
    waiting = house.submit()
    log = house.settings.runs_dir / "scheduler.log"
    until(lambda: "is damaged" in log.read_text(), "the damage to be seen")
    turns(house, 3)
    assert house.scheduler() == scheduler
    assert log.read_text().count(f"looking after runs failed: the store {path} is damaged") == 1
    assert "Traceback" not in log.read_text()
    house.store.close()
    with path.open("r+b") as file:
        for place in places:
            file.seek(place.start)
            file.write(whole[place])
    jobs.ensure_scheduler(house.settings)
    assert house.end(waiting).state == State.FINISHED
    assert house.scheduler() == scheduler


def test_a_run_whose_state_is_damaged_holds_up_no_other(house: House) -> None:
    going = house.submit(steps=1000, seconds=0.1)
    house.steps(going, 1)
    scheduler = house.settled()
    with house.store.database.write() as connection:
        connection.execute(text("UPDATE runs SET state = 'gibberish'"))
    assert house.end(house.submit(device="cuda:0")).state == State.FINISHED
    until(lambda: attempts.open_attempts(house.store.database) == [], "both attempts to be closed")
    assert house.exit(going)["code"] == failures.STALE, "its worker could write nothing more"
    assert house.scheduler() == scheduler


def test_a_scheduler_can_be_stopped_though_the_store_cannot_name_it(house: House) -> None:
    assert house.end(house.submit()).state == State.FINISHED
    scheduler = house.settled()
    path = merged(house)
    overwrite(path, *table_pages(path, "leases"))
    with pytest.raises(Unavailable):
        house.scheduler()
    assert jobs.stop_scheduler(house.settings)
    assert not scheduler.alive()
    assert not jobs.stop_scheduler(house.settings)
    until(lambda: not house.named("warm"), "the warm process to leave")
    log = (house.settings.runs_dir / "scheduler.log").read_text()
    assert "Traceback" not in log
