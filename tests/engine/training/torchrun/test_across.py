"""Trainings on several nodes: what each node is asked to do, and what the end of one means. No cluster is needed."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from engine.process import HostLost, Share
from engine.specs import Refused
from engine.training.torchrun import across, launch
from tests.support.training import tiny

HERE = "10.0.0.1"
SHARES = {"two": Share(processes=1, num_cpus=1, num_gpus=0), "three": Share(processes=2, num_cpus=2, num_gpus=0)}
METHODS = [name for name in vars(across.Agent) if not name.startswith("_")]
NETWORKS = {"lo": [SimpleNamespace(address="127.0.0.1")], "eth1": [SimpleNamespace(address=HERE)]}
VARIABLES = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "eth1"}
ADDRESSES = {"two": "10.0.0.2", "three": "10.0.0.3", "other": "10.0.0.4"}


class RayError(Exception):
    """An error of a call, with the exception that the call raised."""

    cause: Exception | None = None


class ActorDied(RayError):
    pass


class Ray:
    """Stands for the module ray. The test sets the results of calls, by (node, method)."""

    def __init__(self) -> None:
        self.results: dict[tuple[str, str], Any] = {}
        self.calls: dict[tuple[str, str], tuple[Any, ...]] = {}
        self.dead: set[str] = set()
        self.exceptions = SimpleNamespace(RayError=RayError, ActorDiedError=ActorDied)
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        self.util = SimpleNamespace(scheduling_strategies=strategies)

    def remote(self, _agent: type) -> Any:
        return SimpleNamespace(options=lambda scheduling_strategy, **_: self._node(scheduling_strategy))

    def _node(self, node: str) -> Any:
        def called(method: str, *arguments: Any) -> tuple[str, str]:
            self.calls[node, method] = arguments
            return node, method

        methods = {name: SimpleNamespace(remote=lambda *given, name=name: called(name, *given)) for name in METHODS}
        return SimpleNamespace(remote=lambda: SimpleNamespace(**methods))

    def wait(self, calls: list[tuple[str, str]], **_: Any) -> tuple[list[tuple[str, str]], None]:
        return [call for call in calls if call in self.results], None

    def get(self, calls: Any, timeout: float | None = None) -> Any:
        if isinstance(calls, list):
            return [self.get(call) for call in calls]
        result = self.results.get(calls, RayError("no answer in time"))
        if isinstance(result, Exception):
            raise result
        return result

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": node, "Alive": node not in self.dead, "NodeManagerAddress": address}
            for node, address in ADDRESSES.items()
        ]


class Torchrun:
    """Stands for the processes of this machine. Keeps its arguments."""

    code: int | None = None
    started: "Torchrun | None" = None

    def __init__(self, job: launch.Job, processes: int, *options: str, name: str = launch.JOB) -> None:
        self.job, self.processes, self.options, self.name, self.stopped = job, processes, options, name, False
        Torchrun.started = self

    def poll(self) -> int | None:
        return Torchrun.code

    def wait(self) -> int:
        return 7

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    clock = iter(range(0, 100_000, 10))
    monkeypatch.setattr(across, "Torchrun", Torchrun)
    monkeypatch.setattr(across, "_address", lambda: HERE)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(time, "sleep", lambda _: next(clock))
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: NETWORKS)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(Torchrun, "code", None)
    monkeypatch.setattr(Torchrun, "started", None)
    return Ray()


def interfaces() -> dict[str, str]:
    return {name: os.environ[name] for name in across.INTERFACES}


def job_in(folder: Path) -> launch.Job:
    return launch.Job(spec=tiny(nproc=6), run_dir=folder, device_name="here", parent=1)


def started(ray: Ray, folder: Path) -> across.Across:
    """Return a training whose nodes have all answered, so that it has started."""
    processes = across.Across(ray, SHARES, job_in(folder))
    ray.results |= {(node, "check"): ADDRESSES[node] for node in SHARES}
    assert processes.poll() is None
    assert Torchrun.started
    return processes


def test_every_node_starts_its_processes_once_all_are_reserved(ray: Ray, tmp_path: Path) -> None:
    processes = across.Across(ray, SHARES, job_in(tmp_path))
    assert {ray.calls[node, "check"] for node in SHARES} == {(tmp_path, (tmp_path / across.SHARED).read_text())}
    ray.results["two", "check"] = ADDRESSES["two"]
    assert processes.poll() is None
    assert Torchrun.started is None
    processes.stop()
    ray.results["three", "check"] = ADDRESSES["three"]
    assert processes.poll() is None
    local = Torchrun.started
    assert local
    *rendezvous, rank_option, rank = local.options
    assert (local.processes, rank_option, rank) == (3, "--node-rank", "0")
    assert rendezvous[:5] == ["--nnodes", "3", "--master-addr", HERE, "--master-port"]
    assert interfaces() == VARIABLES
    places = "3 on 10.0.0.1, 1 on 10.0.0.2, 2 on 10.0.0.3"
    assert local.job.notes == (f"6 processes on 3 nodes, in the order of their ranks: {places}",)
    assert ray.calls["two", "train"] == (local.job, 1, rendezvous, 1)
    assert ray.calls["three", "train"] == (local.job, 2, rendezvous, 2)
    Torchrun.code = ray.results["two", "train"] = 0
    assert processes.poll() is None
    assert (local.stopped, ("two", "stop") in ray.calls) == (False, False)
    processes.stop()
    assert (local.stopped, ("two", "stop") in ray.calls, ("three", "stop") in ray.calls) == (True, True, True)
    ray.results["three", "train"] = 0
    assert processes.poll() == 0


@pytest.mark.parametrize(
    ("train", "address", "dead"),
    [
        (1, HERE, set()),
        (ActorDied("killed"), ActorDied("killed"), set()),
        (RayError("no answer"), RayError("no answer"), {"other"}),
        (1, RayError("no answer"), {"two"}),
    ],
    ids=["a process failed", "an agent was killed", "no answer for minutes", "the node is dead"],
)
def test_failure_is_a_lost_host_only_if_a_node_of_the_run_is_dead(
    ray: Ray, tmp_path: Path, train: object, address: object, dead: set[str]
) -> None:
    processes = started(ray, tmp_path)
    ray.results |= {("two", "train"): train, ("two", "address"): address, ("three", "address"): HERE}
    ray.dead = dead
    if "two" in dead:
        with pytest.raises(HostLost, match=r"^1 node left the cluster: 10\.0\.0\.2$"):
            processes.poll()
    else:
        assert processes.poll() == 1


def test_failure_of_this_node_fails_the_training(ray: Ray, tmp_path: Path) -> None:
    processes = started(ray, tmp_path)
    ray.results |= {(node, "address"): HERE for node in SHARES}
    Torchrun.code = 1
    assert processes.poll() == 1


def test_refusal_of_a_node_is_raised_here(ray: Ray, tmp_path: Path) -> None:
    processes = across.Across(ray, SHARES, job_in(tmp_path))
    ray.results["two", "check"] = error = RayError("the call failed")
    error.cause = Refused("another folder")
    with pytest.raises(Refused, match=r"^another folder$"):
        processes.poll()


@pytest.mark.usefixtures("ray")
def test_processes_of_a_further_node_end_with_its_agent(tmp_path: Path) -> None:
    agent = across.Agent()
    agent.stop()
    assert agent.train(job_in(tmp_path), 2, ["--nnodes", "3"], 1) == 7
    assert interfaces() == VARIABLES
    local = Torchrun.started
    assert local
    assert (local.job.parent, local.processes, local.name) == (os.getpid(), 2, "job-1.json")
    assert local.options == ("--nnodes", "3", "--node-rank", "1")
    agent.stop()
    assert local.stopped


@pytest.mark.usefixtures("ray")
def test_network_that_a_node_names_itself_is_kept() -> None:
    os.environ["NCCL_SOCKET_IFNAME"] = "ib0"
    across._use_interface_of(HERE)
    assert interfaces() == VARIABLES | {"NCCL_SOCKET_IFNAME": "ib0"}
