"""Runs on a real Ray cluster of two nodes, while nodes and schedulers are killed and replaced."""

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import psutil
import pytest

from engine import jobs
from engine.jobs.hosts import NODE
from engine.results import BenchmarkRow, Metric
from engine.results.clip import TrainRow
from engine.settings import Settings
from engine.specs import BenchmarkSpec, ProfileSpec, Refused, TrainSpec
from engine.store import Attempt, Cause, State, attempts, queue
from engine.tasks.profile import profile
from engine.training import checkpoints
from engine.training.setup import resolved
from engine.training.torchrun import launch
from tests.faults.conftest import LONG_S, House, until

if TYPE_CHECKING:
    from tests.support.servers.postgres import Server
    from tests.support.servers.ray import Cluster

pytestmark = pytest.mark.cluster

OUTAGE_S = 8.0
"""Seconds without the database: longer than the leases of these tests (5 s)."""
MODELS = tuple(f"timm:{name}" for name in ("test_resnet", "test_vit", "test_convnext", "test_efficientnet"))


@pytest.fixture(scope="module")
def database(postgres: "Server") -> str:
    return postgres.new_database()


@pytest.fixture(scope="module")
def ray(database: str) -> "Iterator[Cluster]":
    from tests.support.servers.ray import cluster

    with cluster({"VITALS_DATABASE_URL": database}) as running:
        yield running


@pytest.fixture
def settings(settings: Settings, database: str, ray: "Cluster", monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return settings with a store on a PostgreSQL server and with the cluster, for all tests of this module."""
    variables = {"VITALS_DATABASE_URL": database, "VITALS_RAY_ADDRESS": ray.address, **ray.variables}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    changes = {
        "database_url": database,
        "ray_address": ray.address,
        "lease_s": 5.0,
        "idle_exit_s": 600.0,
        "stop_grace_s": 60.0,
    }
    return settings.model_copy(update=changes)


@pytest.fixture
def two_nodes(house: House, ray: "Cluster") -> House:
    """Return the house once its scheduler knows two nodes: the head and one more."""
    alive = [number for number, node in enumerate(ray.nodes) if node.poll() is None]
    if len(alive) < 2:
        ray.add_node()

    def has_two_nodes() -> bool:
        cluster = house.store.cluster()
        return cluster is not None and cluster.devices != () and cluster.devices[0].model == "on 2 nodes"

    jobs.ensure_scheduler(house.settings)
    until(has_two_nodes, "two nodes")
    return house


def wait_for_worker(house: House, run_id: int) -> Attempt:
    """Return the current attempt of a run once its worker has begun."""

    def begun_attempt() -> Attempt | None:
        found = attempts.current(house.store.database, run_id)
        return found if found and found.begun_at else None

    return until(begun_attempt, f"a worker of run {run_id}")  # type: ignore[no-any-return]


def test_next_scheduler_adopts_and_cancels_jobs(two_nodes: House) -> None:
    house = two_nodes
    finished, cancelled = (house.submit(steps=200, seconds=0.1, device="cluster:cpu") for _ in range(2))
    hosts = {wait_for_worker(house, run_id).host for run_id in (finished, cancelled)}
    assert len(hosts) == 2, "one slot for runs on the CPU on each node"
    assert all(NODE in host for host in hosts)
    first = house.scheduler()
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: not first.alive(), "the end of the first scheduler")
    jobs.ensure_scheduler(house.settings)
    house.scheduler(other_than=first.pid)
    house.store.request_cancel(cancelled)
    assert house.end(cancelled).state is State.CANCELLED
    run = house.end(finished)
    assert (run.state, run.attempt) == (State.FINISHED, 1)
    assert [row.step for row in house.store.rows(finished)] == list(range(1, 201))
    assert "step 200" in house.files(finished).log_tail(5)


def test_two_gpus_of_a_node_take_one_run_each(two_nodes: House) -> None:
    house = two_nodes
    devices = ("cluster:gpu", "cluster:gpu:H100", "cluster:gpu:H100")
    first, second, third = (house.submit(steps=100_000, seconds=0.1, device=device) for device in devices)
    assert len({wait_for_worker(house, run_id).host for run_id in (first, second)}) == 1
    assert house.store.run(third).state is State.QUEUED
    house.store.request_cancel(first)
    wait_for_worker(house, third)
    for run_id in (second, third):
        house.store.request_cancel(run_id)
        assert house.end(run_id).state is State.CANCELLED
    with pytest.raises(Refused, match="the cluster has no device 'cluster:gpu:A100'; it has cluster:cpu, cluster:gpu,"):
        house.submit(device="cluster:gpu:A100")
    with pytest.raises(Refused, match="3 processes need a cluster:gpu each, and the cluster has 2 on 1 node: ask for"):
        jobs.submit(house.store, house.settings, TrainSpec(device="cluster:gpu", nproc=3))


def test_timing_has_its_node_to_itself(two_nodes: House) -> None:
    house = two_nodes
    spec = house.kinds.TimingSpec(steps=100_000, seconds=0.1, device="cluster:cpu")
    timing = jobs.submit(house.store, house.settings, spec)
    timing_host = wait_for_worker(house, timing).host
    others = [house.submit(steps=1, device="cluster:cpu") for _ in range(2)]
    for run_id in others:
        assert house.end(run_id).state is State.FINISHED
    assert not house.store.run(timing).state.ended, "the other runs ran at the same time, on the other node"
    house.store.request_cancel(timing)
    assert house.end(timing).state is State.CANCELLED
    with house.store.database.read() as connection:
        other_hosts = connection.exec_driver_sql(f"SELECT host FROM attempts WHERE run_id IN {tuple(others)}").scalars()
        assert timing_host not in set(other_hosts)


def test_no_run_is_lost_when_the_database_restarts(two_nodes: House, postgres: "Server") -> None:
    house = two_nodes
    spec = ProfileSpec(models=MODELS, batch_size=tuple(range(1, 33)), device="cluster:meta")
    count = jobs.submit(house.store, house.settings, spec)
    house.steps(count, 1)
    trials = [house.submit(steps=200, seconds=0.1, device="cluster:cpu") for _ in range(2)]
    for run_id in trials:
        wait_for_worker(house, run_id)
    postgres.stop()
    time.sleep(OUTAGE_S)
    postgres.start()
    for run_id, rows in [(count, len(MODELS) * 32), *((trial, 200) for trial in trials)]:
        run = house.end(run_id)
        assert (run.state, run.attempt, run.error) == (State.FINISHED, 1, "")
        assert len({row.model_dump_json() for row in house.store.rows(run_id)}) == rows == len(house.store.rows(run_id))


def test_cluster_without_a_token_is_refused(ray: "Cluster") -> None:
    from engine.jobs.executors.ray import refuse_open_cluster
    from tests.support.servers.ray import cluster

    def is_refused(address: str) -> bool | None:
        try:
            refuse_open_cluster(address)
        except Refused:
            return True
        except OSError:  # it does not answer yet
            return None
        return False

    with cluster({"RAY_AUTH_MODE": "disabled"}) as open_cluster:
        until(lambda: is_refused(open_cluster.address) is not None, "the cluster")
        assert is_refused(open_cluster.address)
    assert is_refused(ray.address) is False


def test_run_is_queued_again_when_its_node_dies(two_nodes: House, ray: "Cluster") -> None:
    house = two_nodes
    trials = [house.submit(steps=150, seconds=0.1, device="cluster:cpu") for _ in range(2)]
    for run_id in trials:
        wait_for_worker(house, run_id)
    ray.kill_node(-1)
    ray.add_node()
    assert sorted(house.end(run_id).attempt for run_id in trials) == [1, 2], "one of them was on that node"
    for run_id in trials:
        assert (house.store.run(run_id).state, len(house.store.rows(run_id))) == (State.FINISHED, 150)


def test_models_of_a_lost_node_are_timed_on_the_other_nodes(two_nodes: House, ray: "Cluster") -> None:
    house = two_nodes
    spec = BenchmarkSpec(models=MODELS, device="cluster:cpu", nodes=2, replicates=1, min_samples=3, min_seconds=0.01)
    run_id = jobs.submit(house.store, house.settings, spec)
    attempt = wait_for_worker(house, run_id)
    assert set(queue.places_of(house.store.database, attempt).values()) == {1}, "one slot"
    assert len(queue.places_of(house.store.database, attempt)) == 2, "on each node"
    house.steps(run_id, 1)
    house.store.request_cancel(run_id)
    assert house.end(run_id).state is State.CANCELLED
    until(lambda: not house.named("engine.replicates"), "the end of both shards")
    before = {row.name: row for row in house.store.rows(run_id)}

    jobs.retry(house.store, house.settings, run_id)
    until(lambda: len(house.named("engine.replicates")) == 2, "a process on each node")
    ray.kill_node(-1)
    ray.add_node()
    run = house.end(run_id)
    assert (run.state, run.attempt, run.error, run.done) == (State.FINISHED, 2, "", 4)
    rows = {row.name: row for row in house.store.rows(run_id)}
    assert (len(house.store.rows(run_id)), rows.keys()) == (4, set(MODELS))
    for name, earlier in before.items():
        *notes, last = rows[name].notes
        row_without_new_note = rows[name].model_copy(update={"date": "", "notes": tuple(notes)})
        assert row_without_new_note == earlier, "finished rows stay"
        assert last.startswith("timed by an earlier attempt at this run")
    assert {row.status for row in rows.values()} == {"ok"}
    head, lost, added = socket.gethostname(), *(f"node-{len(ray.nodes) - back}" for back in (2, 1))
    hosts = {name: row.host for name, row in rows.items() if isinstance(row, BenchmarkRow)}
    assert {hosts[name] for name in before} <= {head, lost}
    assert head in (later_hosts := {hosts[name] for name in hosts.keys() - before.keys()})
    assert later_hosts <= {head, added}, "nothing is timed again on the lost node"


def submit_on_page(house: House, page: str, **fields: str | list[str]) -> int:
    """Open a page, click its run button and return the id of the run. fields: values of the form, as in its link."""
    from tests.support.page import open_page  # brings streamlit along

    app = open_page(f"{page}/page.py", **fields)
    assert not app.exception
    prefix = next(iter(fields)).partition("_")[0]
    app.button(key=f"{prefix}_go").click().run()
    assert not app.exception
    return house.store.runs()[0].id


def losses(house: House, run_id: int) -> list[tuple[int, float]]:
    """Return (step, loss) of every step so far."""
    return [(point.step, point.value) for point in house.store.metrics(run_id) if point.name == "train/loss"]


def test_training_on_two_nodes_stops_and_fails_as_a_whole(two_nodes: House) -> None:
    house = two_nodes
    spec = TrainSpec(nproc=2, device="cluster:cpu", precision="fp32", batch_size=16, samples=400, epochs=10_000)
    spec = spec.model_copy(update={"val_frequency": 0, "val_at_start": False, "log_every_n_steps": 1, "threads": 1})
    run_id = jobs.submit(house.store, house.settings, spec)
    until(lambda: len(losses(house, run_id)) > 2, "step 3")
    house.store.request_cancel(run_id)
    assert house.end(run_id).state is State.CANCELLED
    saved = checkpoints.load_latest(house.files(run_id).dir / "checkpoints")
    assert saved, "the processes had time to agree on their last step"
    last = saved[0]["vitals"]["done"]["step"]
    jobs.retry(house.store, house.settings, run_id)
    until(lambda: len(losses(house, run_id)) > last, "the first step after the checkpoint")
    node_processes = [process for process in house.running() if any("job-1.json" in part for part in process.cmdline())]
    assert len(node_processes) == 2, "torchrun and its process"
    max(node_processes, key=psutil.Process.create_time).kill()
    run = house.end(run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.ERROR)
    assert "TrainingFailed" in run.error
    log = house.files(run_id).log.read_text()
    assert re.search(rf"continued from (best|latest)\.pt at step {last}\b", log)
    assert "(Agent pid=" in log, "the log also has the output of the second node"
    until(lambda: not [process for process in node_processes if process.is_running()], "the end of both")


@pytest.mark.timeout(900)  # 229 s on a slow machine
@pytest.mark.usefixtures("answers")
def test_runs_submitted_by_pages_survive_a_lost_node(two_nodes: House, ray: "Cluster", tmp_path: Path) -> None:
    house = two_nodes
    catalogue = pd.read_csv(house.settings.catalog_dir / "timm.csv").drop_duplicates("model")
    models = [f"timm:{name}" for name in catalogue[catalogue.status == "ok"].nsmallest(200, "macts").model]
    training = submit_on_page(
        house,
        "train",
        **{"train_device": "cluster:cpu", "train_nproc": "2", "train_threads": "1", "train_batch_size": "16"},
        **{"train_samples": "400", "train_epochs": "8", "train_val_frequency": "4", "train_zeroshot_frequency": "0"},
        **{"train_log_every_n_steps": "1", "train_save_every_steps": "5", "train_tensorboard": "0"},
    )
    count = submit_on_page(house, "profile", profile_device="cluster:meta", profile_models=models)
    timing = submit_on_page(
        house,
        "vision",
        **{"benchmark_device": "cluster:cpu", "benchmark_models": "timm:test_resnet", "benchmark_batch_size": "1"},
        **{"benchmark_replicates": "1", "benchmark_max_seconds": "1"},
    )
    until(lambda: len(losses(house, training)) > 5 and house.store.rows(count), "step 6 and a count", 2 * LONG_S)
    first = attempts.current(house.store.database, training)
    assert first
    assert len(queue.places_of(house.store.database, first)) == 2, "one process on each node"
    ray.kill_node(-1)
    ray.add_node()
    for run_id in (count, timing, training):
        run = house.end(run_id)
        assert (run.state, run.error) == (State.FINISHED, "")
    assert house.store.run(training).attempt > 1
    assert house.store.run(count).attempt == 1, "the lost node had only shards of this run"

    spec = house.store.run(training).spec
    assert isinstance(spec, TrainSpec)
    folder = tmp_path / "here"
    folder.mkdir()
    events = list(launch.train_in_processes(resolved(spec.model_copy(update={"device": "cpu"})), folder, "here"))
    # the sum of two addends does not depend on their order, so two nodes and two local processes give equal results
    assert losses(house, training) == [
        (event.step, event.value) for event in events if isinstance(event, Metric) and event.name == "train/loss"
    ]
    rows = [row for row in house.store.rows(training) if isinstance(row, TrainRow)]
    assert any("2 processes on 2 nodes" in note for note in rows[-1].notes)
    assert any(note.startswith("continued from ") for note in rows[-1].notes)
    assert (
        rows[-1].clip_val_loss == next(event for event in reversed(events) if isinstance(event, TrainRow)).clip_val_loss
    )

    counted = {f"timm:{row.model}": row for row in house.store.rows(count)}
    assert (len(house.store.rows(count)), counted.keys()) == (200, set(models))
    for model in models[::40]:
        local_row = profile(model, ProfileSpec(models=(model,))).row
        assert counted[model].model_copy(update={"seconds": 0.0}) == local_row.model_copy(update={"seconds": 0.0})
