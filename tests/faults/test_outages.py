"""A store that is locked for longer than one write waits costs no run."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine import jobs
from engine.jobs import failures, worker
from engine.jobs.hosts import this_host
from engine.jobs.worker import Stop, execute
from engine.store import Attempt, Cause, Exit, State, Store, attempts, queue
from engine.store.database import Database
from tests.faults.conftest import House, until


@pytest.fixture
def impatient(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store, with writes that wait for a fifth of a second only."""
    monkeypatch.setattr(worker, "STORE_RETRY_S", 0.05)
    store = Store(Database(house.settings.store_url, busy_s=0.2), queue_limit=10)
    yield store
    store.close()


def claimed(house: House, **fields: object) -> Attempt:
    house.store.enqueue(house.kinds.TrialSpec(**fields))
    attempt = queue.claim(house.store.database, this_host())
    assert attempt is not None
    house.files(attempt.run_id).prepare()
    return attempt


@contextmanager
def locked(house: House, seconds: float) -> Iterator[None]:
    """Hold the store's write lock from outside for so long, as a backup or an operator's shell does."""
    held = threading.Event()

    def hold() -> None:
        connection = sqlite3.connect(house.settings.runs_dir / "vitals.sqlite", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        held.set()
        time.sleep(seconds)
        connection.execute("COMMIT")
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    yield
    holder.join()


@pytest.mark.slow
def test_a_run_waits_for_a_locked_store_and_stores_each_row_once(house: House, impatient: Store) -> None:
    attempt = claimed(house, steps=30, seconds=0.02)
    with locked(house, 1.5):
        assert execute(impatient, house.settings, attempt, Stop()) == 0
    run = impatient.run(attempt.run_id)
    assert (run.state, run.error) == (State.FINISHED, "")
    assert [row.step for row in impatient.rows(run.id)] == list(range(1, 31))


@pytest.mark.slow
def test_a_store_locked_for_too_long_is_a_cause_of_its_own(
    house: House, impatient: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STORE_WAIT_S", 0.3)
    attempt = claimed(house)
    with locked(house, 3):
        code = execute(impatient, house.settings, attempt, Stop())
    assert code == failures.EXIT_CODES[Cause.STORE_UNAVAILABLE]
    attempts.close(
        impatient.database, attempt, Exit(code), *failures.of_exit(Exit(code), None)
    )  # as the scheduler does
    run = impatient.run(attempt.run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.STORE_UNAVAILABLE)
    assert run.error.startswith("the store did not answer for minutes")
    assert "sqlalche" not in run.error


@pytest.mark.slow
def test_a_run_that_should_stop_does_not_wait_for_the_store(house: House, impatient: Store) -> None:
    attempt, stop = claimed(house), Stop()
    stop.cancelled = True
    with locked(house, 2):
        code = execute(impatient, house.settings, attempt, stop)
    assert code == failures.EXIT_CODES[Cause.STORE_UNAVAILABLE]
    attempts.close(impatient.database, attempt, Exit(code), *failures.of_exit(Exit(code), None))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_training_goes_on_through_a_lock_of_two_minutes_bitwise_equal(house: House) -> None:
    from tests.support.training import tiny  # brings torch along

    def losses(run_id: int) -> list[tuple[int, float]]:
        return [(metric.step, metric.value) for metric in house.store.metrics(run_id) if metric.name == "train/loss"]

    undisturbed, locked_out = (
        jobs.submit(house.store, house.settings, tiny(epochs=10, save_frequency=0, val_frequency=0)) for _ in range(2)
    )
    assert house.end(undisturbed).state == State.FINISHED
    until(lambda: losses(locked_out), "its first step")
    with locked(house, 120):
        before = len(losses(locked_out))
    assert before < 40, "it was locked out in mid-training"
    run = house.end(locked_out)
    assert (run.state, run.attempt, run.error) == (State.FINISHED, 1, "")
    assert losses(locked_out) == losses(undisturbed)
    assert len(losses(locked_out)) == 40
    assert "the store does not answer, trying again" in house.files(locked_out).log_tail(1000)
