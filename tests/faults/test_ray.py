"""Runs on a real Ray cluster of two nodes, one of which is killed, and schedulers that are replaced meanwhile."""

import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from engine import jobs
from engine.jobs.hosts import NODE
from engine.settings import Settings
from engine.specs import ProfileSpec, Refused, TrainSpec
from engine.store import Attempt, State, attempts
from engine.tasks.profile import profile
from tests.faults.conftest import House, until

if TYPE_CHECKING:
    from tests.support.postgres import Server
    from tests.support.ray import Cluster

pytestmark = pytest.mark.cluster

OUTAGE_S = 8.0
"""Longer than the leases of the tests (5 s)."""
MODELS = tuple(f"timm:{name}" for name in ("test_resnet", "test_vit", "test_convnext", "test_efficientnet"))


@pytest.fixture(scope="module")
def database(postgres: "Server") -> str:
    return postgres.new_database()


@pytest.fixture(scope="module")
def ray(database: str) -> "Iterator[Cluster]":
    from tests.support.ray import cluster

    with cluster({"VITALS_DATABASE_URL": database}) as running:
        yield running


@pytest.fixture
def settings(settings: Settings, database: str, ray: "Cluster", monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Instead of the settings of all tests: a store on a server, and the cluster."""
    chosen = {"VITALS_DATABASE_URL": database, "VITALS_RAY_ADDRESS": ray.address, **ray.variables}
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    own = {"database_url": database, "ray_address": ray.address, "lease_s": 5.0, "idle_exit_s": 600.0}
    return settings.model_copy(update=own)


@pytest.fixture
def two_nodes(house: House, ray: "Cluster") -> House:
    """The house, once its scheduler has seen a head and one more node."""
    alive = [number for number, node in enumerate(ray.nodes) if node.poll() is None]
    if len(alive) < 2:
        ray.add_node()

    def seen() -> bool:
        cluster = house.store.cluster()
        return cluster is not None and cluster.devices != () and cluster.devices[0].model == "on 2 nodes"

    jobs.ensure_scheduler(house.settings)
    until(seen, "two nodes")
    return house


def open_attempt(house: House, run_id: int) -> Attempt:
    """The attempt of a run, once its worker has begun."""

    def begun() -> Attempt | None:
        found = attempts.current(house.store.database, run_id)
        return found if found and found.begun_at else None

    return until(begun, f"a worker of run {run_id}")  # type: ignore[no-any-return]


def test_a_job_is_adopted_by_the_next_scheduler_and_cancelled_by_it(two_nodes: House) -> None:
    house = two_nodes
    kept, cancelled = (house.submit(steps=200, seconds=0.1, device="cluster:cpu") for _ in range(2))
    hosts = {open_attempt(house, run_id).host for run_id in (kept, cancelled)}
    assert len(hosts) == 2, "one slot for runs on the CPU on each node"
    assert all(NODE in host for host in hosts)
    first = house.scheduler()
    os.kill(first.pid, signal.SIGKILL)
    jobs.ensure_scheduler(house.settings)
    house.scheduler(other_than=first.pid)
    house.store.request_cancel(cancelled)
    assert house.end(cancelled).state is State.CANCELLED
    run = house.end(kept)
    assert (run.state, run.attempt) == (State.FINISHED, 1)
    assert [row.step for row in house.store.rows(kept)] == list(range(1, 201))
    assert "step 200" in house.files(kept).log_tail(5)


def test_two_gpus_of_a_node_take_a_run_each(two_nodes: House) -> None:
    house = two_nodes
    devices = ("cluster:gpu", "cluster:gpu:H100", "cluster:gpu:H100")
    first, second, third = (house.submit(steps=100_000, seconds=0.1, device=device) for device in devices)
    assert len({open_attempt(house, run_id).host for run_id in (first, second)}) == 1
    assert house.store.run(third).state is State.QUEUED
    house.store.request_cancel(first)
    open_attempt(house, third)
    for run_id in (second, third):
        house.store.request_cancel(run_id)
        assert house.end(run_id).state is State.CANCELLED
    with pytest.raises(Refused, match="the cluster has no device 'cluster:gpu:A100'; it has cluster:cpu, cluster:gpu,"):
        house.submit(device="cluster:gpu:A100")


def test_a_timing_holds_its_node_alone(two_nodes: House) -> None:
    house = two_nodes
    spec = house.kinds.TimingSpec(steps=100_000, seconds=0.1, device="cluster:cpu")
    timing = jobs.submit(house.store, house.settings, spec)
    alone = open_attempt(house, timing).host
    others = [house.submit(steps=1, device="cluster:cpu") for _ in range(2)]
    for run_id in others:
        assert house.end(run_id).state is State.FINISHED
    assert not house.store.run(timing).state.ended, "the others ran meanwhile, on the other node"
    house.store.request_cancel(timing)
    assert house.end(timing).state is State.CANCELLED
    with house.store.database.read() as connection:
        used = connection.exec_driver_sql(f"SELECT host FROM attempts WHERE run_id IN {tuple(others)}").scalars()
        assert alone not in set(used)


def test_no_run_is_lost_when_the_database_restarts(two_nodes: House, postgres: "Server") -> None:
    house = two_nodes
    trials = [house.submit(steps=100, seconds=0.1, device="cluster:cpu") for _ in range(4)]
    spec = ProfileSpec(models=MODELS, batch_size=tuple(range(1, 26)), device="cluster:meta")
    count = jobs.submit(house.store, house.settings, spec)
    house.steps(count, 3)
    for run_id in trials[:2]:
        open_attempt(house, run_id)
    postgres.stop()
    time.sleep(OUTAGE_S)
    postgres.start()
    for run_id, rows in [*((trial, 100) for trial in trials), (count, len(MODELS) * 25)]:
        run = house.end(run_id)
        assert (run.state, run.attempt, run.error) == (State.FINISHED, 1, "")
        assert len({row.model_dump_json() for row in house.store.rows(run_id)}) == rows == len(house.store.rows(run_id))


def test_a_cluster_without_a_token_is_refused(ray: "Cluster") -> None:
    from engine.jobs.executors.ray import refuse_open_cluster
    from tests.support.ray import cluster

    def refused(address: str) -> bool | None:
        try:
            refuse_open_cluster(address)
        except Refused:
            return True
        except OSError:  # it does not answer yet
            return None
        return False

    with cluster({"RAY_AUTH_MODE": "disabled"}) as unguarded:
        until(lambda: refused(unguarded.address) is not None, "the cluster")
        assert refused(unguarded.address)
    assert refused(ray.address) is False


def test_no_run_is_lost_with_a_node(two_nodes: House, ray: "Cluster") -> None:
    house = two_nodes
    batches = tuple(range(1, 26))
    spec = ProfileSpec(models=MODELS, batch_size=batches, device="cluster:meta")
    training = TrainSpec(steps=3, batch_size=8, device="cluster:cpu", precision="fp32")
    trials = [house.submit(steps=150, seconds=0.1, device="cluster:cpu") for _ in range(2)]
    for run_id in trials:
        open_attempt(house, run_id)
    ray.kill_node(-1)
    ray.add_node()
    assert sorted(house.end(run_id).attempt for run_id in trials) == [1, 2], "one of them was on that node"
    count = jobs.submit(house.store, house.settings, spec)
    trained = jobs.submit(house.store, house.settings, training)
    house.steps(count, 3)
    ray.kill_node(-1)
    for run_id in (*trials, count, trained):
        run = house.end(run_id)
        assert (run.state, run.error) == (State.FINISHED, "")
        assert len(house.store.rows(run_id)) == len({row.model_dump_json() for row in house.store.rows(run_id)})
    assert house.store.run(count).attempt == 1, "only its shards were on that node"
    rows = {(row.model, row.batch_size): row for row in house.store.rows(count)}
    assert len(rows) == len(house.store.rows(count)) == len(MODELS) * len(batches)
    for model in MODELS:
        alone = profile(model, ProfileSpec(models=(model,), batch_size=7)).row
        row = rows[alone.model, 7]
        assert row.model_copy(update={"seconds": 0.0}) == alone.model_copy(update={"seconds": 0.0})
