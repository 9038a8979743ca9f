"""Train on several nodes of a Ray cluster. Each runs torchrun, which Ray starts on all nodes but the first.

This process is on the first node, as is the process of rank 0. So both use the files of one machine.
"""

import logging
import os
import socket
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from engine.process import HostLost, Share
from engine.specs import Refused
from engine.training.torchrun.launch import GONE_S, GRACE_S, Job, Torchrun
from engine.words import plural

log = logging.getLogger(__name__)

ANSWER_S = 120.0
"""Wait at most this many seconds for the answer of a node after a failure. Ray finds a dead node in about a minute."""
LOOK_S = 1.0
"""Seconds to wait for an answer, and between two checks of the nodes, after a failure."""
SHARED = "nodes.txt"
"""File in the run's folder by which further nodes see that they share it."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables that name the network interface of torch's backends."""


def check_shared(folder: Path, token: str) -> None:
    """Check that a run's folder is that of the first node, which has written `token` there. Errors: Refused.

    All processes read the checkpoint from which a training continues.
    """
    path = folder / SHARED
    if not path.is_file() or path.read_text() != token:
        raise Refused(
            f"a training on several nodes needs a runs folder that they share, and {folder} is another folder on "
            f"{socket.gethostname()}: ask for at most as many processes as one node has, or mount one folder on all"
        )


class Agent:
    """Runs torchrun on a further node, in a process of Ray's that ends with ours."""

    def __init__(self) -> None:
        self._torchrun: Torchrun | None = None

    def address(self) -> str:
        """Return the address of this node."""
        return _address()

    def check(self, folder: Path, token: str) -> str:
        """Return the address of this node. Errors: Refused, as `check_shared`."""
        check_shared(folder, token)
        return _address()

    def train(self, job: Job, processes: int, rendezvous: list[str], node_rank: int) -> int:
        """Train to the end, and return torchrun's exit code."""
        _use_interface_of(_address())
        local_job = job.model_copy(update={"parent": os.getpid()})
        options = (*rendezvous, "--node-rank", str(node_rank))
        self._torchrun = Torchrun(local_job, processes, *options, name=f"job-{node_rank}.json")
        return self._torchrun.wait()

    def stop(self) -> None:
        """End the processes of this node."""
        if self._torchrun:
            self._torchrun.stop()


class Across:
    """The processes of a training on this node and on further ones."""

    def __init__(self, ray: Any, shares: dict[str, Share], job: Job) -> None:
        """Reserve the further nodes; `poll` starts the processes when they are reserved. ray: the module, connected."""
        self._ray, self._shares, self._job = ray, shares, job
        on_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        self._agents = [
            ray.remote(Agent)
            .options(
                max_concurrency=3,  # `train` occupies one
                num_cpus=share.num_cpus,
                num_gpus=share.num_gpus,
                scheduling_strategy=on_node(node, soft=False),
            )
            .remote()
            for node, share in shares.items()
        ]
        token = uuid4().hex
        (job.run_dir / SHARED).write_text(token)
        self._addresses = [agent.check.remote(job.run_dir, token) for agent in self._agents]
        self._local: Torchrun | None = None
        self._codes: list[Any] = []

    def poll(self) -> int | None:
        """Return 0 once all processes have succeeded, 1 once one has failed, and None before. Errors: HostLost."""
        codes: list[int | None]
        try:
            if self._local is None:
                addresses = [self._result(address) for address in self._addresses]
                if None not in addresses:
                    self._local = self._start(addresses)
                return None
            codes = [self._local.poll(), *(self._result(code) for code in self._codes)]
        except self._ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), Refused):
                raise cause from None
            log.error("%s", error)
            codes = [1]
        if any(codes):
            self._check_nodes()
            return 1
        return None if None in codes else 0

    def stop(self) -> None:
        """End all processes, on all nodes at the same time, because they agree on the step at which they stop."""
        if self._local is None:
            return  # Ray ends the agents with this process
        stops = [agent.stop.remote() for agent in self._agents]
        self._local.stop()
        self._ray.wait(stops, num_returns=len(stops), timeout=GRACE_S + GONE_S)

    def _result(self, reference: Any) -> Any:
        """Return the result of a call; None before it has one. Errors: any of Ray's."""
        return self._ray.get(reference) if self._ray.wait([reference], timeout=0)[0] else None

    def _start(self, addresses: list[str]) -> Torchrun:
        """Start torchrun on each node. addresses: of the further nodes."""
        local_address = _address()
        counts = [share.processes for share in self._shares.values()]
        counts = [self._job.spec.nproc - sum(counts), *counts]
        nodes = zip(counts, (local_address, *addresses), strict=True)
        places = ", ".join(f"{count} on {address}" for count, address in nodes)
        note = f"{self._job.spec.nproc} processes on {len(counts)} nodes, in the order of their ranks: {places}"
        job = self._job.model_copy(update={"notes": (note,)})
        _use_interface_of(local_address)
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        rendezvous = ["--nnodes", str(len(counts)), "--master-addr", local_address, "--master-port", str(port)]
        self._codes = [
            agent.train.remote(job, count, rendezvous, rank)
            for rank, (agent, count) in enumerate(zip(self._agents, counts[1:], strict=True), 1)
        ]
        return Torchrun(job, counts[0], *rendezvous, "--node-rank", "0")

    def _check_nodes(self) -> None:
        """Wait until every further node has answered. Errors: HostLost if one is dead."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                self._ray.get([agent.address.remote() for agent in self._agents], timeout=LOOK_S)
                return
            except self._ray.exceptions.RayError as error:
                dead = [node for node in self._ray.nodes() if node["NodeID"] in self._shares and not node["Alive"]]
                if dead:
                    names = ", ".join(node["NodeManagerAddress"] for node in dead)
                    raise HostLost(f"{plural(len(dead), 'node')} left the cluster: {names}") from error
                if isinstance(error, self._ray.exceptions.ActorDiedError) or time.monotonic() > deadline:
                    return  # an agent that died on a living node was killed
            time.sleep(LOOK_S)


def _address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def _use_interface_of(address: str) -> None:
    """Let torch's backends connect through the interface of the cluster, unless the node's environment names another.

    Otherwise gloo takes the address of the host's name, which on many systems is one that other hosts cannot reach.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            for variable in INTERFACES:
                os.environ.setdefault(variable, name)
