"""Runs survive a store that is locked for longer than one write waits."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine import jobs
from engine.jobs.attempt import failures, worker
from engine.jobs.attempt.worker import Stop, execute
from engine.jobs.hosts import this_host
from engine.store import Attempt, Busy, Cause, Exit, Run, State, Store, attempts, queue
from engine.store.database import Database
from tests.faults.conftest import House, until


@pytest.fixture
def short_timeout_store(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Return a store whose writes wait only 0.2 s for the lock."""
    monkeypatch.setattr(worker, "STORE_RETRY_S", 0.05)
    store = Store(Database(house.settings.store_url, busy_s=0.2), queue_limit=10)
    yield store
    store.close()


def claim_trial(house: House, **fields: object) -> Attempt:
    """Queue a trial, claim it as this host does and return the attempt."""
    house.store.enqueue(house.kinds.TrialSpec(**fields))
    attempt = queue.claim(house.store.database, this_host())
    assert attempt is not None
    house.files(attempt.run_id).prepare()
    return attempt


@contextmanager
def hold_write_lock(house: House, seconds: float) -> Iterator[None]:
    """Hold the write lock of the store for `seconds` on another connection, as a backup or a shell does."""
    lock_is_held = threading.Event()

    def hold_lock() -> None:
        connection = sqlite3.connect(house.settings.runs_dir / "vitals.sqlite", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        lock_is_held.set()
        time.sleep(seconds)
        connection.execute("COMMIT")
        connection.close()

    holder = threading.Thread(target=hold_lock)
    holder.start()
    lock_is_held.wait()
    yield
    holder.join()


@pytest.mark.slow
def test_run_waits_for_a_locked_store_and_stores_each_row_once(house: House, short_timeout_store: Store) -> None:
    attempt = claim_trial(house, steps=30, seconds=0.02)
    with hold_write_lock(house, 1.5):
        assert execute(short_timeout_store, house.settings, attempt, Stop()) == 0
    run = short_timeout_store.run(attempt.run_id)
    assert (run.state, run.error) == (State.FINISHED, "")
    assert [row.step for row in short_timeout_store.rows(run.id)] == list(range(1, 31))


@pytest.mark.slow
def test_run_whose_request_cannot_be_read_yet_waits(
    house: House, short_timeout_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, read, answers = claim_trial(house), Store.run, [Busy("here", "is away", "Wait")] * 2

    def run(store: Store, run_id: int) -> Run:
        if answers:
            raise answers.pop()
        return read(store, run_id)

    monkeypatch.setattr(Store, "run", run)
    assert execute(short_timeout_store, house.settings, attempt, Stop()) == 0
    assert not answers


@pytest.mark.slow
def test_run_fails_as_store_unavailable_after_a_long_lock(
    house: House, short_timeout_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STORE_WAIT_S", 0.3)
    attempt = claim_trial(house)
    with hold_write_lock(house, 3):
        code = execute(short_timeout_store, house.settings, attempt, Stop())
    assert code == failures.EXIT_CODES[Cause.STORE_UNAVAILABLE]
    attempts.close(
        short_timeout_store.database, attempt, Exit(code), *failures.of_exit(Exit(code), None)
    )  # as the scheduler does
    run = short_timeout_store.run(attempt.run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.STORE_UNAVAILABLE)
    assert run.error.startswith("the store did not answer for minutes")
    assert "sqlalche" not in run.error


@pytest.mark.slow
def test_cancelled_run_does_not_wait_for_the_store(house: House, short_timeout_store: Store) -> None:
    attempt, stop = claim_trial(house), Stop()
    stop.cancelled = True
    with hold_write_lock(house, 2):
        code = execute(short_timeout_store, house.settings, attempt, stop)
    assert code == failures.EXIT_CODES[Cause.STORE_UNAVAILABLE]
    attempts.close(short_timeout_store.database, attempt, Exit(code), *failures.of_exit(Exit(code), None))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_training_is_bitwise_equal_after_a_two_minute_lock(house: House) -> None:
    from tests.support.training import tiny  # brings torch along

    def losses(run_id: int) -> list[tuple[int, float]]:
        return [(metric.step, metric.value) for metric in house.store.metrics(run_id) if metric.name == "train/loss"]

    undisturbed, locked_out = (
        jobs.submit(house.store, house.settings, tiny(epochs=10, save_frequency=0, val_frequency=0)) for _ in range(2)
    )
    assert house.end(undisturbed).state == State.FINISHED
    until(lambda: losses(locked_out), "the first step of the run that is locked out")
    with hold_write_lock(house, 120):
        before = len(losses(locked_out))
    assert before < 40, "the training was locked out before its last step"
    run = house.end(locked_out)
    assert (run.state, run.attempt, run.error) == (State.FINISHED, 1, "")
    assert losses(locked_out) == losses(undisturbed)
    assert len(losses(locked_out)) == 40
    assert "no answer, trying again: " in house.files(locked_out).log_tail(100_000)
