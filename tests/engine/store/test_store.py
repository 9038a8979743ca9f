"""The store: queue, attempts, leases, events and schema, on a real SQLite file and a real PostgreSQL server."""

import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from alembic.migration import MigrationContext
from sqlalchemy import text

from engine.results import Device, Environment, Event, Machine, Metric, ProfileRow, Progress
from engine.settings import ROOT, Settings
from engine.specs import BenchmarkSpec, ProfileSpec, Refused, Spec, TrainSpec
from engine.store import (
    Attempt,
    Busy,
    Cause,
    Damaged,
    Exit,
    QueueFull,
    Run,
    StaleAttempt,
    State,
    Store,
    StoredArtifact,
    Unavailable,
    attempts,
    leases,
    listing,
    open_store,
    queue,
)
from engine.store.database import Database
from engine.store.records import LONGEST_TEXT
from engine.store.tables import HEAD

HOST = "a host"


@pytest.fixture
def settings(settings: Settings, database_url: str) -> Settings:
    """Replace the settings of `conftest.py`, so that each test of this file runs on both databases."""
    return settings.model_copy(update={"database_url": database_url})


def spec(device: str = "cpu", models: str = "a") -> ProfileSpec:
    return ProfileSpec(models=(models,), device=device)


def row(model: str) -> ProfileRow:
    return ProfileRow(library="timm", model=model, counter="torch", device="cpu", batch_size=1, precision="float32")


def start_run(store: Store, *events: Event) -> Attempt:
    """Start a run, store `events` for it, and return its attempt."""
    store.enqueue(spec())
    attempt = queue.claim(store.database, HOST)
    assert attempt is not None
    attempts.begin(store.database, attempt)
    attempts.record(store.database, attempt, events)
    return attempt


def close(store: Store, attempt: Attempt, cause: Cause = Cause.KILLED) -> None:
    attempts.close(store.database, attempt, Exit(-9), cause, "as the test says")


def test_run_passes_through_all_its_states(store: Store) -> None:
    run_id = store.enqueue(spec(), name="first")
    assert store.run(run_id).state == State.QUEUED
    assert store.position(run_id) == 1
    attempt = queue.claim(store.database, HOST)
    assert attempt is not None
    assert store.run(run_id).state == State.STARTING
    assert store.position(run_id) is None
    attempts.begin(store.database, attempt)
    assert store.run(run_id).state == State.STARTING
    environment = Environment(
        host=HOST, platform="p", python="3", cpu="c", threads=2, memory_gb=1, device="cpu", device_name="d", date="now"
    )
    attempts.record(store.database, attempt, [environment, Progress(done=1, total=4, note="a"), row("a")])
    run = store.run(run_id)
    assert (run.state, run.done, run.total, run.note) == (State.RUNNING, 1, 4, "a")
    assert run.environment == environment
    assert run.started_at is not None
    assert run.progressed_at is not None
    assert run.started_at <= run.progressed_at
    attempts.finish(store.database, attempt, State.FINISHED)
    attempts.close(store.database, attempt, Exit(0), Cause.ERROR, "")
    run = store.run(run_id)
    assert (run.state, run.cause, run.error, run.name) == (State.FINISHED, None, "", "first")
    assert store.rows(run_id) == [row("a")]


def test_seconds_left_count_down_between_progress_reports(store: Store) -> None:
    attempt = start_run(store)

    def report(**progress: Any) -> Run:
        attempts.record(store.database, attempt, [Progress(**progress)])
        return store.run(attempt.run_id)

    assert report(done=0, total=4).seconds_left() is None
    run = report(done=1, total=4, note="a")
    started_earlier = replace(run, started_at=run.progressed_at - timedelta(seconds=10))
    assert [started_earlier.seconds_left(run.progressed_at + timedelta(seconds=later)) for later in (0, 12, 31)] == [
        30,
        18,
        0,
    ]
    assert report(done=1, total=4, note="b").progressed_at == run.progressed_at, "a change of the note is no progress"
    assert report(done=2, total=4).progressed_at > run.progressed_at
    estimated = report(done=3, total=4, seconds_left=5.0)
    assert estimated.seconds_left(estimated.progressed_at + timedelta(seconds=2)) == 3
    assert report(done=1, total=11).seconds_left() is None, (
        "no estimate from the first of many, which is often the slowest"
    )


def test_cluster_claims_only_runs_for_its_devices(store: Store) -> None:
    gpus = ("gpu 0", "gpu 1")
    offers = {"cluster:cpu": ("cpu",), "cluster:gpu": gpus, "cluster:gpu:H100": gpus}
    local = store.enqueue(spec())
    cluster = [store.enqueue(spec(device)) for device in ("cluster:gpu", "cluster:gpu:H100", "cluster:gpu")]
    assert store.enqueue(spec("cluster:gpu:A100"))
    claimed = [queue.claim(store.database, "cluster:", nodes={"a node": offers}) for _ in range(3)]
    assert [attempt and attempt.run_id for attempt in claimed] == [*cluster[:2], None], "the node has two GPUs"
    assert set(queue.holders(store.database, "a node")) == set(gpus)
    claimed = [queue.claim(store.database, HOST) for _ in range(2)]
    assert [attempt and attempt.run_id for attempt in claimed] == [local, None]
    another = queue.claim(store.database, "cluster:", nodes={"a node": offers, "another node": offers})
    assert another is not None
    assert (another.run_id, another.host) == (cluster[2], "another node")


def test_training_waits_for_all_its_slots_on_several_nodes(store: Store) -> None:
    offers = {"small": {"cluster:gpu": ("gpu 0",)}, "large": {"cluster:gpu": ("gpu 0", "gpu 1")}}

    def claim() -> Attempt | None:
        return queue.claim(store.database, "cluster:", nodes=offers)

    def claim_all(*run_ids: int) -> list[Attempt]:
        claimed = [claim() for _ in run_ids]
        assert [attempt and attempt.run_id for attempt in claimed] == list(run_ids)
        assert claim() is None
        return [attempt for attempt in claimed if attempt]

    store.enqueue(TrainSpec(device="cluster:gpu", nproc=4))  # more GPUs than exist: this run blocks no other
    first, second = claim_all(store.enqueue(spec("cluster:gpu")), store.enqueue(spec("cluster:gpu")))
    assert (first.host, second.host) == ("small", "large")
    on_three_gpus = store.enqueue(TrainSpec(device="cluster:gpu", nproc=3))
    later = store.enqueue(spec("cluster:gpu"))
    assert claim() is None, "the free GPU is reserved for the training"
    for attempt in (first, second):
        attempts.close(store.database, attempt, Exit(0), Cause.ERROR, "")
    (training,) = claim_all(on_three_gpus)
    assert training.host == "large", "the node with most slots"
    assert queue.places_of(store.database, training) == {"large": 2, "small": 1}
    attempts.close(store.database, training, Exit(0), Cause.ERROR, "")
    assert [attempt.host for attempt in claim_all(later)] == ["small"]
    (on_two_gpus,) = claim_all(store.enqueue(TrainSpec(device="cluster:gpu", nproc=2)))
    assert queue.places_of(store.database, on_two_gpus) == {"large": 2}


def test_timing_on_several_nodes_waits_for_empty_nodes(store: Store) -> None:
    gpus = {"cluster:gpu": ("gpu 0", "gpu 1")}
    offers = {"first": gpus, "second": gpus, "third": gpus}

    def claim() -> Attempt | None:
        return queue.claim(store.database, "cluster:", nodes=offers)

    others = [store.enqueue(spec("cluster:gpu")) for _ in range(3)]
    active = [attempt for _ in others if (attempt := claim())]
    assert [attempt.host for attempt in active] == ["first", "first", "second"]
    timing = store.enqueue(BenchmarkSpec(models=("a", "b"), device="cluster:gpu", nodes=2))
    later = store.enqueue(spec("cluster:gpu"))
    assert claim() is None, "only the third node is empty, and it is reserved"
    attempts.close(store.database, active[2], Exit(0), Cause.ERROR, "")
    timing_attempt = claim()
    assert timing_attempt is not None
    assert (timing_attempt.run_id, queue.places_of(store.database, timing_attempt)) == (
        timing,
        {"second": 1, "third": 1},
    )
    attempts.close(store.database, active[0], Exit(0), Cause.ERROR, "")
    later_attempt = claim()
    assert later_attempt is not None
    assert (later_attempt.run_id, later_attempt.host, claim()) == (later, "first", None)


def test_lost_hosts_cost_no_try_up_to_a_limit(store: Store) -> None:
    run_id = store.enqueue(spec())  # a count has one try
    for number in range(1, attempts.MOST_STARTS + 1):
        assert store.run(run_id).state is State.QUEUED
        attempt = queue.claim(store.database, HOST)
        assert attempt is not None
        assert attempt.number == number
        attempts.begin(store.database, attempt)
        attempts.close(store.database, attempt, Exit(host_lost=True), Cause.KILLED, "its node left the cluster")
    run = store.run(run_id)
    assert (run.state, run.cause, run.error) == (State.FAILED, Cause.KILLED, "its node left the cluster")


def test_foreground_run_starts_at_once_if_its_slots_are_free(store: Store) -> None:
    timing = BenchmarkSpec(models=("timm:resnet18",), device="cuda:1")
    count = queue.claim_new(store.database, HOST, spec("cuda:0"), name="")
    assert count is not None
    assert queue.claim_new(store.database, HOST, spec("cuda:0"), name="") is None
    assert queue.claim_new(store.database, HOST, timing, name="") is None, "a timing needs the whole host"
    close(store, count)
    assert queue.claim_new(store.database, HOST, timing, name="") is not None
    assert queue.claim_new(store.database, HOST, spec("cuda:0"), name="") is None


def test_summary_of_rows_is_only_of_ended_runs_and_names_each_flag_once(store: Store) -> None:
    active = start_run(store, row("a"))
    with store.database.write() as connection:
        listing.set_results(connection, active.run_id)
        listing.rebuild(connection)
    assert store.run(active.run_id).results.rows == 0
    lines = [("ok", json.dumps({"flags": flags})) for flags in (["a"], ["b", "a"])]
    assert listing.results_of(lines)["flags"] == "a; b"
    assert max(map(len, listing.folded_names("timm:" + "a" * 400))) == listing.LONGEST_MODEL, "the column takes no more"


def test_lost_host_gives_its_try_back(store: Store) -> None:
    run_id = store.enqueue(BenchmarkSpec(models=("timm:resnet18",), device="cpu"))  # a timing has two tries
    with store.database.write() as connection:
        connection.execute(text("UPDATE runs SET created_at = created_at - 1000"))
    assert queue.waiting(store.database) == (1, pytest.approx(1000, abs=100))
    for exit, state in ((Exit(host_lost=True), State.QUEUED), (Exit(), State.QUEUED), (Exit(), State.FAILED)):
        attempt = queue.claim(store.database, HOST)
        assert attempt is not None
        attempts.begin(store.database, attempt)
        attempts.close(store.database, attempt, exit, Cause.KILLED, "its process was killed")
        assert store.run(run_id).state is state
        if state is State.QUEUED:
            assert queue.waiting(store.database) == (1, pytest.approx(0, abs=100)), "since its last attempt"


def test_requests_with_the_same_key_are_one_run(store: Store) -> None:
    first = store.enqueue(spec(), key="click")
    assert store.enqueue(spec(), key="click") == first
    assert store.enqueue(spec(), key="another") != first
    assert len(store.runs()) == 2


def test_queue_has_a_limit(settings: Settings, store: Store) -> None:
    small = open_store(settings.model_copy(update={"queue_limit": 2}))
    small.enqueue(spec())
    queued_id = small.enqueue(spec(), key="k")
    with pytest.raises(QueueFull, match="2 runs in the queue, at most 2 may wait"):
        small.enqueue(spec())
    assert small.enqueue(spec(), key="k") == queued_id
    small.request_cancel(queued_id)
    small.enqueue(spec())
    with pytest.raises(QueueFull, match="2 runs in the queue"):
        small.retry(queued_id)
    small.close()


def test_run_names_are_stored_literally(store: Store) -> None:
    name = "$(id); <b>'x\"\n --drop"
    assert store.run(store.enqueue(spec(), name=name)).name == name
    assert store.run(store.enqueue(spec(), name="a\0b\ud800")).name == "a\ufffdb?"
    with pytest.raises(Refused, match="at most 200 characters"):
        store.enqueue(spec(), name="x" * 201)


def test_runs_are_listed_newest_first_and_filtered(store: Store) -> None:
    ids = [store.enqueue(spec()) for _ in range(3)]
    store.request_cancel(ids[1])
    assert [run.id for run in store.runs()] == ids[::-1]
    assert [run.id for run in store.runs(limit=1)] == [ids[2]]
    assert [run.id for run in store.runs(states=[State.CANCELLED])] == [ids[1]]
    assert store.runs(kind="train") == []
    with pytest.raises(LookupError, match="no run 99"):
        store.run(99)


def test_devices_are_claimed_in_order_and_no_run_starves(store: Store) -> None:
    class Two(ProfileSpec):
        @property
        def devices(self) -> tuple[str, ...]:
            return ("cuda:0", "cuda:1")

    class Alone(ProfileSpec):
        exclusive = True

    first = store.enqueue(spec("cuda:0"))
    both_devices = store.enqueue(Two(models=("a",), device="cuda:0"))
    single = store.enqueue(spec("cuda:1"))
    on_cpu = store.enqueue(spec("cpu"))
    exclusive_id = store.enqueue(Alone(models=("a",), device="mps"))
    later = store.enqueue(spec("xpu:0"))

    def claim() -> Attempt | None:
        return queue.claim(store.database, HOST)

    first_attempt, cpu_attempt = claim(), claim()
    assert first_attempt is not None
    assert cpu_attempt is not None
    assert (first_attempt.run_id, cpu_attempt.run_id) == (first, on_cpu)
    assert claim() is None, "cuda:1 is reserved for the run with two devices, and the host for the timing"
    close(store, first_attempt, Cause.ERROR)
    both_attempt = claim()
    assert both_attempt is not None
    assert both_attempt.run_id == both_devices
    assert claim() is None
    close(store, both_attempt, Cause.ERROR)
    single_attempt = claim()
    assert single_attempt is not None
    assert single_attempt.run_id == single
    close(store, single_attempt, Cause.ERROR)
    assert claim() is None, "the timing waits for an empty host, and later runs wait for it"
    close(store, cpu_attempt, Cause.ERROR)
    exclusive_attempt = claim()
    assert exclusive_attempt is not None
    assert exclusive_attempt.run_id == exclusive_id
    assert claim() is None, "no run starts beside a timing"
    assert queue.claim_new(store.database, HOST, spec("xpu:0"), name="") is None
    elsewhere = queue.claim(store.database, "another host")
    assert elsewhere is not None
    assert elsewhere.run_id == later


def test_stale_attempt_cannot_write(store: Store) -> None:
    old = start_run(store, row("a"))
    run_id = old.run_id
    close(store, old)
    assert store.run(run_id).state == State.FAILED
    store.retry(run_id)
    new = queue.claim(store.database, HOST)
    assert new is not None
    assert new.token > old.token
    attempts.begin(store.database, new)
    attempts.record(store.database, new, [row("b")])
    before = store.revision()
    writes = [
        lambda: attempts.begin(store.database, old),
        lambda: attempts.begin(store.database, new),
        lambda: attempts.record(store.database, old, [row("late"), Metric(step=1, name="m", value=1)]),
        lambda: attempts.heartbeat(store.database, old),
        lambda: attempts.finish(store.database, old, State.FINISHED),
    ]
    for write in writes:
        with pytest.raises(StaleAttempt):
            write()
    attempts.mark_vanished(store.database, old)
    attempts.mark_stopping(store.database, old)
    close(store, old)
    assert store.revision() == before
    assert store.rows(run_id) == [row("b")]
    assert list(store.metrics(run_id)) == []
    assert store.run(run_id).state == State.RUNNING


def test_ended_run_accepts_no_more_events(store: Store) -> None:
    attempt = start_run(store)
    attempts.finish(store.database, attempt, State.FAILED, Cause.ERROR, "why")
    with pytest.raises(StaleAttempt):
        attempts.record(store.database, attempt, [row("late")])
    with pytest.raises(StaleAttempt):
        attempts.finish(store.database, attempt, State.FINISHED)
    attempts.mark_stopping(store.database, attempt)
    close(store, attempt)
    run = store.run(attempt.run_id)
    assert (run.state, run.cause, run.error) == (State.FAILED, Cause.ERROR, "why")


def test_cancel_ends_queued_and_running_runs(store: Store) -> None:
    waiting = store.enqueue(spec())
    store.request_cancel(waiting)
    assert store.run(waiting).state == State.CANCELLED
    other = store.enqueue(spec())
    assert queue.claim(store.database, "another host")
    attempt = start_run(store, row("kept"))
    assert attempts.heartbeat(store.database, attempt) is False
    store.request_cancel(attempt.run_id)
    assert attempts.heartbeat(store.database, attempt) is True
    attempts.mark_stopping(store.database, attempt)
    assert store.run(attempt.run_id).state == State.STOPPING
    first_asked = attempts.current(store.database, attempt.run_id)
    attempts.mark_stopping(store.database, attempt)
    assert attempts.current(store.database, attempt.run_id) == first_asked, "the time to stop is not extended"
    assert getattr(attempts.current(store.database, other), "stop_at", 0) is None
    attempts.mark_vanished(store.database, attempt)
    assert store.run(attempt.run_id).state == State.STOPPING
    close(store, attempt)
    assert store.run(attempt.run_id).state == State.CANCELLED
    assert store.run(attempt.run_id).results.rows == 1
    assert store.rows(attempt.run_id) == [row("kept")]
    store.request_cancel(attempt.run_id)
    assert store.run(attempt.run_id).state == State.CANCELLED


def test_vanished_run_is_running_again_after_a_heartbeat(store: Store) -> None:
    attempt = start_run(store)
    attempts.mark_vanished(store.database, attempt)
    assert store.run(attempt.run_id).state == State.VANISHED
    attempts.heartbeat(store.database, attempt)
    assert store.run(attempt.run_id).state == State.RUNNING
    attempts.mark_vanished(store.database, attempt)
    attempts.record(store.database, attempt, [row("a")])
    assert store.run(attempt.run_id).state == State.RUNNING


@pytest.mark.parametrize("tries", [1, 3])
def test_killed_run_has_the_number_of_tries_of_its_kind(store: Store, tries: int) -> None:
    class Tried(ProfileSpec):
        attempts = tries

    run_id = store.enqueue(Tried(models=("a",), device="cpu"))
    for number in range(1, tries + 1):
        attempt = queue.claim(store.database, HOST)
        assert attempt is not None
        assert attempt.number == number
        attempts.begin(store.database, attempt)
        attempts.record(store.database, attempt, [row(f"of attempt {number}")])
        assert store.rows(run_id) == [row(f"of attempt {number}")], "results of two attempts must not mix"
        close(store, attempt)
    run = store.run(run_id)
    assert (run.state, run.cause, run.attempt) == (State.FAILED, Cause.KILLED, tries)
    assert queue.claim(store.database, HOST) is None
    store.retry(run_id)
    assert store.run(run_id).state == State.QUEUED


def test_retried_run_keeps_its_rows_until_it_starts_again(store: Store) -> None:
    attempt = start_run(store, row("a"), Progress(done=1, total=2, note="b"))
    close(store, attempt)
    assert store.run(attempt.run_id).seconds() is not None
    assert store.run(attempt.run_id).results.rows == 1
    store.retry(attempt.run_id)
    run = store.run(attempt.run_id)
    assert (run.state, run.started_at, run.ended_at, run.seconds()) == (State.QUEUED, None, None, None)
    assert (run.done, run.total, run.note) == (0, None, "")
    assert store.rows(attempt.run_id) == [row("a")]
    second = queue.claim(store.database, HOST)
    assert second is not None
    attempts.begin(store.database, second)
    assert store.rows(attempt.run_id) == []
    assert store.run(attempt.run_id).results.rows == 0


@pytest.mark.parametrize(
    ("submitted", "counted"), [(BenchmarkSpec(models="a"), 100), (TrainSpec(), 100), (ProfileSpec(models="a"), 0)]
)
def test_duration_includes_earlier_attempts_if_work_is_kept(store: Store, submitted: Spec, counted: int) -> None:
    run_id = store.enqueue(submitted)
    first = queue.claim(store.database, HOST)
    assert first
    attempts.begin(store.database, first)
    close(store, first)
    with store.database.write() as connection:
        connection.execute(text("UPDATE attempts SET begun_at = closed_at - 100"))
    if store.run(run_id).state.ended:  # a count has a single try
        store.retry(run_id)
    second = queue.claim(store.database, HOST)
    assert second
    attempts.begin(store.database, second)
    run = store.run(run_id)
    assert run.seconds(run.started_at) == pytest.approx(counted, abs=1)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ("kind = 'of another version'", "of another version"),
        ("spec = '{}'", "models is required"),
        ("created_at = 1e20", "created_at .* dates after 9999"),
    ],
)
def test_unreadable_run_is_left_out_of_lists(
    store: Store, changed: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable, readable = store.enqueue(spec()), store.enqueue(spec())
    store.request_cancel(unreadable)
    with store.database.write() as connection:
        connection.execute(text(f"UPDATE runs SET {changed} WHERE id = {unreadable}"))
    assert [run.id for run in store.runs()] == [readable]
    (record,) = caplog.messages
    assert re.fullmatch(f"run {unreadable} is left out, this version cannot read it: .*{reason}.*", record)
    store.delete(unreadable)
    caplog.clear()
    assert [run.id for run in store.runs()] == [readable]
    assert caplog.text == ""


def test_attempts_that_never_began_cost_no_try_up_to_a_limit(store: Store) -> None:
    run_id = store.enqueue(spec())
    for _ in range(attempts.MOST_STARTS):
        attempt = queue.claim(store.database, HOST)
        assert attempt is not None
        close(store, attempt)
    assert queue.claim(store.database, HOST) is None
    assert store.run(run_id).cause == Cause.KILLED


def test_run_that_failed_by_itself_is_not_tried_again(store: Store) -> None:
    class Tried(ProfileSpec):
        attempts = 3

    store.enqueue(Tried(models=("a",), device="cpu"))
    attempt = queue.claim(store.database, HOST)
    assert attempt is not None
    attempts.begin(store.database, attempt)
    close(store, attempt, Cause.OUT_OF_MEMORY)
    assert store.run(attempt.run_id).state == State.FAILED
    attempts.warn(store.database, attempt, "a" * LONGEST_TEXT)
    assert len(store.run(attempt.run_id).error) == LONGEST_TEXT


def test_metrics_and_artifacts_are_replaced_and_rows_are_added(store: Store) -> None:
    file = StoredArtifact(name="detail/a.json", kind="detail", size=5_000_000_000, sha256="0" * 64)
    attempt = start_run(store, Metric(step=2, name="loss", value=3), Metric(step=1, name="loss", value=4), file)
    second_events = [Metric(step=2, name="loss", value=2.5), file.model_copy(update={"size": 7}), row("a"), row("a")]
    attempts.record(store.database, attempt, second_events)
    assert [(metric.step, metric.value) for metric in store.metrics(attempt.run_id)] == [(1, 4), (2, 2.5)]
    assert store.artifacts(attempt.run_id) == [file.model_copy(update={"size": 7})]
    assert len(store.rows(attempt.run_id)) == 2


def test_events_are_stored_all_or_none(store: Store) -> None:
    attempt = start_run(store)
    with pytest.raises(TypeError, match="Event is not an event that is stored"):
        attempts.record(store.database, attempt, [row("a"), Event()])
    assert store.rows(attempt.run_id) == []


def test_revisions_grow_with_every_change(store: Store) -> None:
    revisions = [store.revision()]
    run_id = store.enqueue(spec())
    revisions.append(store.revision())
    attempt = queue.claim(store.database, HOST)
    assert attempt is not None
    revisions.append(store.revision())
    attempts.begin(store.database, attempt)
    for event in (row("a"), Progress(done=1), Metric(step=1, name="m", value=0)):
        attempts.record(store.database, attempt, [event])
        revisions.append(store.revision())
        assert store.run(run_id).revision == revisions[-1]
    assert revisions == sorted(set(revisions))
    attempts.heartbeat(store.database, attempt)
    assert store.revision() == revisions[-1], "a heartbeat is no change to show"


def test_delete_removes_everything_of_a_run(store: Store) -> None:
    attempt = start_run(store, row("a"), Metric(step=1, name="m", value=0))
    with pytest.raises(Refused, match="is running: cancel it first"):
        store.delete(attempt.run_id)
    attempts.finish(store.database, attempt, State.FINISHED)
    with pytest.raises(Refused, match="still ending"):
        store.delete(attempt.run_id)
    close(store, attempt)
    store.delete(attempt.run_id)
    with store.database.read() as connection:
        for table in ("runs", "attempts", "rows", "metrics", "artifacts", "slots"):
            assert connection.scalar(text(f"SELECT count(*) FROM {table}")) == 0
    with pytest.raises(LookupError):
        store.delete(attempt.run_id)
    assert store.enqueue(spec()) > attempt.run_id, "the id of a deleted run is not used again"


def test_lease_has_one_holder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    database = store.database
    assert leases.take(database, "l", "one", "f", 60, None)
    assert not leases.take(database, "l", "two", "f", 60, None)
    lease = leases.read(database, "l")
    assert lease is not None
    assert (lease.holder, lease.expired) == ("one", False)
    assert leases.take(database, "l", "two", "f2", 60, lease)
    assert not leases.take(database, "l", "three", "f3", 60, lease), "the lease has changed since it was read"
    assert not leases.renew(database, "l", "one", 60)
    assert not leases.release(database, "l", "one")
    assert leases.renew(database, "l", "two", -1)
    assert leases.take(database, "m", "one", "f", -1, None)
    expired = leases.read(database, "l")
    assert expired is not None, "leases of other hosts are kept for some days"
    assert expired.expired
    monkeypatch.setattr(leases, "KEPT_S", 0.0)
    assert leases.take(database, "l", "three", "f", 60, expired)
    assert leases.read(database, "m") is None


def test_lease_is_not_released_while_a_run_is_queued_or_active(store: Store) -> None:
    leases.take(store.database, "l", "one", "f", 60, None)

    def release() -> bool:
        return leases.release(store.database, "l", "one", host=HOST, only_idle=True)

    store.enqueue(spec())
    assert not release()
    attempt = queue.claim(store.database, HOST)
    assert attempt is not None
    assert not release()
    assert leases.release(store.database, "l", "one", host="another", only_idle=True)
    assert leases.take(store.database, "l", "one", "f", 60, None)
    close(store, attempt, Cause.ERROR)
    assert release()
    assert leases.read(store.database, "l") is None


def test_machine_is_stored_per_host(store: Store) -> None:
    assert store.machine() is None
    machine = Machine(
        host=HOST, platform="p", cpu="c", threads=1, memory_gb=1, devices=(Device(name="cpu", model="c"),), date="d"
    )
    store.save_machine(machine, "code")
    store.save_machine(machine.model_copy(update={"threads": 2}), "code")
    stored = store.machine()
    assert stored is not None
    assert stored.threads == 2
    age = store.machine_age(HOST, "code")
    assert age is not None
    assert age < 60
    assert store.machine_age(HOST, "newer code") is None


def test_new_store_has_the_newest_migration(store: Store) -> None:
    with store.database.read() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == HEAD


def test_newer_schema_is_refused_with_its_version(settings: Settings, store: Store) -> None:
    with store.database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Unavailable, match=r"schema 9999, which this version .*\. Upgrade the program"):
        open_store(settings)


def test_locked_store_is_busy_and_missing_tables_are_damage(settings: Settings, store: Store) -> None:
    impatient = Database(settings.store_url, busy_s=0.1)
    locked = r"is locked by another process\. Wait until"
    with store.database.write(), pytest.raises(Busy, match=locked), impatient.write():
        pass
    with impatient.write() as connection:
        connection.execute(text("ALTER TABLE metrics RENAME TO gone"))
    with pytest.raises(Damaged, match="does not have the tables of this program"):
        list(store.metrics(1))
    impatient.close()


OPEN_AT_ONCE = """
import sys
from engine.settings import Settings
from engine.store import open_store
print("ready", flush=True)
sys.stdin.readline()
open_store(Settings()).close()
"""


def test_threads_that_wait_to_write_hold_up_no_reader(settings: Settings, store: Store) -> None:
    with closing(open_store(settings)) as other_store, ThreadPoolExecutor(20) as threads:
        with store.database.write():
            writes = [threads.submit(other_store.enqueue, spec()) for _ in range(20)]
            while other_store.database._engine.pool.checkedout() < 15:  # type: ignore[attr-defined]
                time.sleep(0.01)
            assert other_store.runs() == []
        assert len({write.result() for write in writes}) == 20


@pytest.mark.slow
def test_several_processes_can_open_a_new_store_at_once(settings: Settings) -> None:
    command = [sys.executable, "-W", "error", "-c", OPEN_AT_ONCE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    openers = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    for opener in openers:
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        opener.stdin.write("go\n")
        opener.stdin.flush()
    for opener in openers:
        opener.communicate()
    assert [opener.returncode for opener in openers] == [0] * 3
    store = open_store(settings)
    store.enqueue(spec())
    store.close()


@pytest.mark.slow
def test_opening_an_up_to_date_store_loads_no_alembic(settings: Settings, store: Store) -> None:
    code = (
        "import sys; from engine.settings import Settings; from engine.store import open_store;"
        f"s = Settings(database_url={settings.database_url!r}); open_store(s).runs();"
        "print({'alembic', 'torch', 'pandas'} & set(sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "set()"
