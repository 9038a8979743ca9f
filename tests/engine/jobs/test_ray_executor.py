"""The executor for Ray clusters, without a cluster: what it reserves, submits and concludes."""

import time
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from engine.jobs.attempt import failures
from engine.jobs.hosts import NODE
from engine.jobs.processes import write_json
from engine.settings import Settings
from engine.specs import BenchmarkSpec, DeviceSpec, ProfileSpec, Refused, Spec, TrainSpec
from engine.specs.base import CLUSTER
from engine.store import Attempt, Exit, Store, attempts, queue
from engine.store.files import RunFiles

pytestmark = pytest.mark.cluster
CPU, GPU = "cluster:cpu", "cluster:gpu"


@pytest.fixture
def ray() -> Any:
    """Return the module of the executor, which imports ray."""
    return import_module("engine.jobs.executors.ray")


class Client:
    """Stands for Ray's client. Keeps submitted and stopped jobs. The test sets the state of the only job."""

    def __init__(self) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.stopped: list[str] = []
        self.job: Any = RuntimeError("Request failed with status code 404: no such job")

    def submit_job(self, **options: Any) -> None:
        self.submitted.append(options)

    def stop_job(self, job_id: str) -> None:
        self.stopped.append(job_id)

    def get_job_info(self, _job_id: str) -> Any:
        if isinstance(self.job, Exception):
            raise self.job
        return self.job() if callable(self.job) else self.job

    def get_job_logs(self, _job_id: str) -> str:
        return "".join(f"line {number}\n" for number in range(1, 31))


def node(ray: Any, name: str, **fields: Any) -> Any:
    known = {"id": name, "alive": True, "head": False, "address": f"10.0.0.{name}", "accelerator": "H100"}
    return ray.Node(**known | {"cpus": 8, "gpus": 2, "memory_gb": 64.0} | fields)


def started(ray: Any, settings: Settings, store: Store, spec: Spec, *nodes: Any) -> tuple[Any, Client, Attempt]:
    """Return an executor that has started a run on these nodes, its client, and the attempt."""
    executor, client = ray.Executor(settings, store), Client()
    executor._client, executor._nodes = client, {known.host: known for known in nodes}
    store.enqueue(spec)
    attempt = queue.claim(store.database, CLUSTER, nodes=executor.offers)
    assert attempt
    executor.start(attempt)
    return executor, client, attempt


def test_nodes_offer_what_they_have_and_reserve_what_a_run_needs(ray: Any, settings: Settings, store: Store) -> None:
    head = node(ray, "3", head=True, gpus=0, accelerator="")
    small, dead = node(ray, "1", cpus=1), node(ray, "0", alive=False)
    slots = (f"{GPU} 0", f"{GPU} 1")
    assert head.offers == {"cluster:meta": ("cluster:meta",), CPU: (CPU,)}
    assert small.offers == {CPU: (CPU,), GPU: slots, f"{GPU}:H100": slots}
    assert node(ray, "1", accelerator="").offers.keys() == {CPU, GPU}
    assert node(ray, "1", cpus=0).offers == {}
    executor = ray.Executor(settings, store)
    assert executor.offers == {}
    executor._nodes = {known.host: known for known in (dead, small, head)}
    assert list(executor.offers) == [f"10.0.0.3{NODE}3", f"10.0.0.1{NODE}1"], "the head first, no dead nodes"
    devices = {device.name: (device.model, device.count, device.nodes) for device in ray.devices_of([head, small])}
    assert devices == {
        "cluster:meta": ("on 1 node", 1, 1),
        CPU: ("on 2 nodes", 2, 2),
        GPU: ("on 1 node", 2, 1),
        f"{GPU}:H100": ("on 1 node", 2, 1),
    }
    large = node(ray, "2")
    for spec, place, reserved in (
        (DeviceSpec(device=CPU), large, (8, 2)),
        (ProfileSpec(models=("a",), device="cluster:meta"), large, (0, 0)),
        (TrainSpec(device=CPU), large, (6, 0)),
        (TrainSpec(device=CPU), small, (1, 0)),
        (TrainSpec(device=GPU), large, (2, 2)),
        (TrainSpec(device=GPU), small, (1, 2)),
    ):
        assert place.reserved(spec, 2) == {"num_cpus": reserved[0], "num_gpus": reserved[1]}


def test_job_reserves_its_node_and_names_the_others(ray: Any, settings: Settings, store: Store) -> None:
    one, two = node(ray, "1"), node(ray, "2")
    executor, client, attempt = started(ray, settings, store, TrainSpec(device=GPU, nproc=3), one, two)
    (job,) = client.submitted
    assert (job["entrypoint"].split()[1:], job["submission_id"]) == (
        ["-m", "engine", "work", "1"],
        executor._job_id(attempt),
    )
    assert job["entrypoint_label_selector"] == {"ray.io/node-id": "1"}
    assert (job["entrypoint_num_cpus"], job["entrypoint_num_gpus"]) == (2, 2)
    variables = job["runtime_env"]["env_vars"]
    assert variables[ray.NODES] == '{"2": {"processes": 1, "num_cpus": 1, "num_gpus": 1}}'
    assert {"VITALS_RUNS_DIR", "PYTHONPATH"} <= variables.keys()
    assert not any("DATABASE" in name for name in variables), "Ray would show its password"
    assert RunFiles(settings.runs_dir, 1).dir.is_dir()
    executor._nodes = {one.host: one}  # the other one has left since the claim
    executor.start(attempt)
    assert len(client.submitted) == 1

    other = settings.model_copy(update={"artifacts_url": "s3://bucket/runs"})
    attempts.close(store.database, attempt, Exit(0), "error", "")
    timing = BenchmarkSpec(models=("timm:a", "timm:b"), device=CPU, nodes=2)
    _, client, attempt = started(ray, other, store, timing, one, two)
    (job,) = client.submitted
    assert (job["entrypoint_num_cpus"], job["entrypoint_num_gpus"]) == (0, 0), "its processes reserve both nodes"
    both = '{"1": {"processes": 1, "num_cpus": 8, "num_gpus": 2}, "2": {"processes": 1, "num_cpus": 8, "num_gpus": 2}}'
    variables = job["runtime_env"]["env_vars"]
    assert variables[ray.NODES] == both
    assert "VITALS_RUNS_DIR" not in variables, "each node has its own"
    attempts.close(store.database, attempt, Exit(0), "error", "")
    _, client, _ = started(ray, settings, store, DeviceSpec(device=CPU), one, two)
    (job,) = client.submitted
    assert (job["entrypoint_num_cpus"], job["entrypoint_num_gpus"]) == (8, 2)
    assert ray.NODES not in job["runtime_env"]["env_vars"]


def test_end_of_an_attempt_is_that_of_its_worker_else_of_its_job_or_node(
    ray: Any, settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, one = ray.JobStatus, node(ray, "1")
    executor, client, attempt = started(ray, settings, store, DeviceSpec(device=CPU), one)
    assert (executor.exit(attempt), executor.alive(attempt)) == (None, False), "its job was never started"
    attempts.begin(store.database, attempt)
    begun = attempts.current(store.database, attempt.run_id)
    assert begun
    lost = executor.exit(begun)
    assert (lost.note, lost.host_lost) == ("the cluster was restarted and no longer knows its job", True)

    def after(state: Any, seconds_ago: float) -> tuple[Exit | None, bool]:
        ended_ms = 1000 * (time.time() - seconds_ago)
        client.job = SimpleNamespace(status=state, end_time=ended_ms, message="l" * 400 + "\n a  reason")
        return executor.exit(begun), executor.alive(begun)

    copied = SimpleNamespace(attempt=0, exit={"code": 3})
    monkeypatch.setattr(ray.mirror, "look", lambda *_: copied)
    assert after(status.RUNNING, 100) == (None, True)
    assert after(status.FAILED, 0.5) == (None, True), "a shared folder may show its exit record late"
    reason = "l" * 291 + " a reason"
    failed = Exit(note=f"its job on the cluster ended: failed, {reason}")
    for _ in range(2):  # a scheduler that could not close the attempt asks a second time
        assert after(status.FAILED, settings.lease_s + 1) == (failed, False)
    files = RunFiles(settings.runs_dir, attempt.run_id)
    assert files.log.read_text().split("\n") == [*(f"line {number}" for number in range(11, 31)), ""]
    assert after(status.STOPPED, 0.5)[0] == Exit(note=f"its job on the cluster ended: stopped, {reason}")
    copied.attempt = attempt.number
    assert after(status.FAILED, 0.5)[0] == Exit(3), "its worker's own files are on another disk"

    def end_meanwhile() -> Any:
        write_json(files.exit(1), {"code": 1})
        return SimpleNamespace(status=status.FAILED, end_time=0, message="")

    client.job = end_meanwhile
    assert executor.exit(begun) == Exit(1)
    files.exit(1).unlink()
    client.job = RuntimeError("Request failed with status code 500: ...")
    assert (executor.exit(begun), executor.alive(begun)) == (None, True)
    nodes, executor._nodes = executor._nodes, None
    client.job = SimpleNamespace(status=status.STOPPED, end_time=0, message="")
    assert (executor.exit(begun), executor.alive(begun)) == (None, True), "the cluster does not answer"
    executor.stop(begun, force=True)
    assert client.stopped == []
    executor._nodes = nodes | {one.host: node(ray, "1", alive=False)}
    assert executor.exit(begun) == Exit(note="its node 10.0.0.1 left the cluster", host_lost=True)
    path = files.exit(attempt.number)
    for code, host_lost in ((1, False), (failures.HOST_LOST, True)):
        write_json(path, {"code": code, "out_of_memory": False, "note": "", "host_lost": False})
        assert executor.exit(begun) == Exit(code, host_lost=host_lost)


def test_only_a_worker_that_has_begun_ends_itself(ray: Any, settings: Settings, store: Store) -> None:
    executor, client, attempt = started(ray, settings, store, DeviceSpec(device=CPU), node(ray, "1"))
    executor.stop(attempt, force=False)
    assert client.stopped == [executor._job_id(attempt)]
    attempts.begin(store.database, attempt)
    begun = attempts.current(store.database, attempt.run_id)
    executor.stop(begun, force=False)
    assert len(client.stopped) == 1
    executor.stop(begun, force=True)
    assert len(client.stopped) == 2
    elsewhere = settings.model_copy(update={"runs_dir": settings.runs_dir / "other"})
    ids = {executor._job_id(attempt), ray.Executor(elsewhere, store)._job_id(attempt)}
    assert len(ids) == 2, "two stores may use one cluster"


def test_nodes_are_read_again_after_a_pause_that_is_longer_after_a_failure(
    ray: Any, settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, looks, checks = 100.0, list[str](), list[str]()
    one, two, dead = node(ray, "1"), node(ray, "2"), node(ray, "2", alive=False)
    found: list[Any] = [[one], RuntimeError("no answer"), [one, dead], [one, two]]

    def look(address: str) -> Any:
        looks.append(address)
        result = found[len(looks) - 1]
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(time, "monotonic", lambda: clock)
    monkeypatch.setattr(ray, "nodes_of", look)
    monkeypatch.setattr(ray, "refuse_open_cluster", checks.append)
    monkeypatch.setattr(ray, "Client", lambda address: Client())
    executor = ray.Executor(settings.model_copy(update={"ray_address": "http://head"}), store)

    def after(seconds: float) -> tuple[int, int, int]:
        """Return the number of looks, of living nodes and of CPUs in the store."""
        nonlocal clock
        clock += seconds
        with suppress(RuntimeError):
            executor.tend()
        cluster = store.cluster()
        return len(looks), len(executor.offers), cluster.threads if cluster else 0

    assert after(0) == (1, 1, 8)
    saved = store.revision()
    assert after(ray.LOOK_S - 1) == (1, 1, 8)
    assert after(1) == (2, 0, 8)
    assert after(ray.RETRY_S - 1) == (2, 0, 8)
    assert after(1) == (3, 1, 8)
    assert store.revision() == saved, "the devices of living nodes are the same"
    assert after(ray.LOOK_S) == (4, 2, 16)
    assert checks == ["http://head"], "once, when the client is made"


def test_cluster_that_takes_jobs_from_everybody_is_refused(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def get(address: str, **_: Any) -> Any:
        asked.append(address)
        return SimpleNamespace(ok=len(asked) == 1)

    monkeypatch.setattr(ray.requests, "get", get)
    with pytest.raises(Refused, match="takes jobs from everybody"):
        ray.refuse_open_cluster("http://head/")
    ray.refuse_open_cluster("http://head/")
    limits = list[object]()
    monkeypatch.setattr(ray.JobSubmissionClient, "_do_request", lambda *_, **options: limits.append(options))
    ray.Client.__new__(ray.Client)._do_request("GET", "/api/jobs/")
    assert limits == [{"timeout": ray.ANSWER_S}], "the scheduler must not wait longer"
    assert asked == ["http://head/api/jobs/"] * 2
