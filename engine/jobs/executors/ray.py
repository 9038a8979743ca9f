"""Run attempts as Ray Jobs. Imported only if a cluster is configured.

A node of the cluster is a host of the store: its slots are claimed like those of any host, and a timing takes all of
it. A training of several processes may take slots of several nodes. Ray only starts the worker on the first one, tells
whether it lives, and ends it. Rows and states travel through the store, logs and artifacts through the runs folder,
which every node mounts, or through VITALS_ARTIFACTS_URL.
"""

import json
import logging
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import requests
from ray import __version__ as ray_version
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient
from ray.util.state import list_nodes

from engine.jobs.attempt import failures
from engine.jobs.hosts import NODE
from engine.jobs.lifecycle import environment
from engine.jobs.processes import read_json
from engine.process import NODES
from engine.results import Device, Machine
from engine.settings import Settings
from engine.specs import Refused, Spec
from engine.specs.base import CLUSTER
from engine.store import Attempt, Damaged, Exit, Store, queue
from engine.store.copies import mirror, remote
from engine.store.files import RunFiles
from engine.words import plural

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Look at the nodes every 2 s."""
RETRY_S = 15.0
"""Wait this many seconds after a failed look, because each request may take ANSWER_S."""
ANSWER_S = 5.0
"""Time limit of each request to the cluster, in seconds. The scheduler must not wait longer: it serves other runs."""
MOST_NODES = 1000
"""Read at most this many nodes."""
WORKER_SETTINGS = "ray_address artifacts_url runs_dir catalog_dir lease_s min_free_gb data_roots log_limit_mb".split()
"""Settings that a worker gets as environment variables."""
LONGEST_REASON = 300
"""Show at most this many characters from the end of Ray's message: up to 20,000 characters of log precede the error."""
LOG_LINES = 20
"""Lines of Ray's log that explain why a job failed before its worker began."""


@dataclass(frozen=True)
class Node:
    """A node of the cluster."""

    id: str
    alive: bool
    head: bool
    address: str
    cpus: int
    gpus: int
    accelerator: str
    """Ray's name of its GPUs, such as H100; empty without GPUs, or if Ray does not know them."""
    memory_gb: float

    @property
    def host(self) -> str:
        """Return the name of this node as a host of the store."""
        return f"{self.address}{NODE}{self.id}"

    @property
    def offers(self) -> dict[str, tuple[str, ...]]:
        """Return the slots that serve each device.

        A profile on cluster:meta runs on the head, which spreads its models over the cluster: without its head, the
        cluster ends anyway.
        """
        kinds = [*(["meta"] if self.head else []), *(["cpu"] if self.cpus else [])]
        served: dict[str, tuple[str, ...]] = {f"{CLUSTER}{kind}": (f"{CLUSTER}{kind}",) for kind in kinds}
        if not self.cpus:
            return served
        if gpus := tuple(f"{CLUSTER}gpu {number}" for number in range(self.gpus)):
            served[f"{CLUSTER}gpu"] = gpus
            if self.accelerator:
                served[f"{CLUSTER}gpu:{self.accelerator}"] = gpus
        return served

    def reserved(self, spec: Spec, processes: int) -> dict[str, int]:
        """Return the resources that `processes` of a run reserve with Ray: the whole node for a timing.

        A run on the CPU leaves a core for each GPU. A profile on cluster:meta reserves nothing here: its shards reserve
        their own cores, perhaps on other nodes.
        """
        if spec.exclusive:
            return {"num_cpus": self.cpus, "num_gpus": self.gpus}
        device = spec.devices[0].removeprefix(CLUSTER)
        if device == "meta":
            return {"num_cpus": 0, "num_gpus": 0}
        if device == "cpu":
            return {"num_cpus": max(1, self.cpus - self.gpus), "num_gpus": 0}
        return {"num_cpus": min(processes, self.cpus), "num_gpus": processes}


class Client(JobSubmissionClient):  # type: ignore[misc]  # Ray's client has no types here
    """Ray's client with a time limit for every request, which it lacks."""

    def _do_request(self, *arguments: Any, **options: Any) -> Any:
        return super()._do_request(*arguments, **{"timeout": ANSWER_S} | options)


class Executor:
    """Starts, watches and ends attempts on the cluster. A new scheduler finds them by run, number and host."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._client: Client | None = None
        self._nodes: dict[str, Node] | None = None
        """The nodes by host, dead ones too; None while the cluster cannot be reached."""
        self._next_look = 0.0
        self._known: tuple[Device, ...] | None = None
        """The devices last saved to the store."""

    @property
    def offers(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Return what the living nodes offer, by host; first the head, because without it every run ends anyway."""
        living = [node for node in (self._nodes or {}).values() if node.alive]
        return {node.host: node.offers for node in sorted(living, key=lambda node: (not node.head, node.host))}

    def tend(self) -> None:
        """Read the nodes every LOOK_S (RETRY_S after a failure), and save their devices to the store when they change.

        Errors: Refused for a cluster without a token; any of Ray's. The scheduler logs them and tries again.
        """
        if time.monotonic() < self._next_look:
            return
        self._nodes, self._next_look = None, time.monotonic() + RETRY_S
        if self._client is None:
            refuse_open_cluster(self._settings.ray_address)
            self._client = Client(self._settings.ray_address)
        self._nodes = {node.host: node for node in nodes_of(self._settings.ray_address)}
        self._next_look = time.monotonic() + LOOK_S
        living = [node for node in self._nodes.values() if node.alive]
        if (devices := devices_of(living)) != self._known:
            # forms and submissions read the cluster as a machine of the store
            cluster = Machine(
                host=CLUSTER,
                platform=f"Ray {ray_version}",
                cpu="",
                threads=sum(node.cpus for node in living),
                memory_gb=sum(node.memory_gb for node in living),
                devices=devices,
                date=datetime.now(UTC).isoformat(),
            )
            self._store.save_machine(cluster)
            self._known = devices

    def start(self, attempt: Attempt) -> None:
        """Submit the attempt's worker to its node. If that fails, the attempt has no job, and `alive` returns False."""
        files = self._files(attempt)
        if self._settings.artifacts_url:
            files.dir.mkdir(parents=True, exist_ok=True)
        else:
            files.prepare(attempt.number)
        places = queue.places_of(self._store.database, attempt)
        nodes = {host: node for host, node in (self._nodes or {}).items() if host in places and node.alive}
        if self._client is None or nodes.keys() != places.keys():
            return
        spec = self._store.run(attempt.run_id).spec
        reserved = {host: node.reserved(spec, places[host]) for host, node in nodes.items()}
        job_resources = reserved[attempt.host]
        if spec.exclusive and len(nodes) > 1:
            # the worker only waits for its processes, which reserve all nodes, its own too
            job_resources = dict.fromkeys(job_resources, 0)
        else:
            del reserved[attempt.host]
        others = {nodes[host].id: {"processes": places[host], **amounts} for host, amounts in sorted(reserved.items())}
        try:
            self._client.submit_job(
                # run_id is a number: nothing that a user has typed reaches the node's shell
                entrypoint=shlex.join([sys.executable, "-m", "engine", "work", str(int(attempt.run_id))]),
                submission_id=self._job_id(attempt),
                runtime_env={"env_vars": variables(self._settings) | ({NODES: json.dumps(others)} if others else {})},
                entrypoint_label_selector={"ray.io/node-id": nodes[attempt.host].id},
                **{f"entrypoint_{resource}": amount for resource, amount in job_resources.items()},
            )
        except (OSError, RuntimeError):
            log.exception("run %d, attempt %d could not be submitted", attempt.run_id, attempt.number)

    def alive(self, attempt: Attempt) -> bool:
        """Return whether the attempt's job waits or runs. True also if the cluster does not answer."""
        try:
            job = self._job(attempt)
        except (OSError, RuntimeError):
            return True
        return job is not None and not self._is_over(job)

    def exit(self, attempt: Attempt) -> Exit | None:
        """Return the end of an attempt, once it is known."""
        if record := read_json(self._files(attempt).exit(attempt.number)):
            return _exit(record)
        node = (self._nodes or {}).get(attempt.host)
        if node and not node.alive:
            return Exit(note=f"its node {node.address} left the cluster", host_lost=True)
        try:
            job = self._job(attempt)
        except (OSError, RuntimeError):
            return None
        if job is None:
            note = "the cluster was restarted and no longer knows its job"
            return Exit(note=note, host_lost=True) if attempt.begun_at else None
        if not job.status.is_terminal():
            return None
        if record := read_json(self._files(attempt).exit(attempt.number)):  # it may have ended since the first look
            return _exit(record)
        try:
            copies = mirror.look(self._settings, self._store.run(attempt.run_id))
            if copies and copies.attempt == attempt.number and copies.exit:
                return _exit(copies.exit)
        except (remote.Unreachable, Damaged) as error:
            log.warning("the recorded end of run %d cannot be read: %s", attempt.run_id, error)
        if not self._is_over(job):
            return None
        return Exit(note=f"its job on the cluster ended: {self._reason(attempt, job)}")

    def _is_over(self, job: JobDetails) -> bool:
        """Return whether a job was stopped, or ended a lease ago: a shared folder may show its exit record late."""
        if job.status == JobStatus.STOPPED:
            return True
        return job.status.is_terminal() and time.time() - (job.end_time or 0) / 1000 >= self._settings.lease_s

    def stop(self, attempt: Attempt, *, force: bool) -> None:
        """Stop the job with force, or if its worker has not begun. A worker that has begun reads the request itself."""
        if not force and attempt.begun_at is not None:
            return
        try:
            if self._client and self._nodes is not None:
                self._client.stop_job(self._job_id(attempt))
        except (OSError, RuntimeError) as error:
            log.warning("run %d could not be stopped: %s", attempt.run_id, error)

    def _job(self, attempt: Attempt) -> JobDetails | None:
        """Return the attempt's job; None if the cluster has none. Errors: OSError, RuntimeError without an answer."""
        if self._client is None or self._nodes is None:
            raise ConnectionError("the cluster cannot be reached")
        try:
            return self._client.get_job_info(self._job_id(attempt))
        except RuntimeError as error:
            if "status code 404" in str(error):
                return None
            raise

    def _reason(self, attempt: Attempt, job: JobDetails) -> str:
        """Return why a job ended without a record of its worker, and append the end of Ray's log to the run's log."""
        try:
            assert self._client
            lines = self._client.get_job_logs(self._job_id(attempt)).splitlines()[-LOG_LINES:]
            files, tail = self._files(attempt), "".join(f"{line}\n" for line in lines)
            # equal if an earlier call appended it, but the attempt could not be closed then
            if files.log_tail(len(lines)) != tail:
                with files.log.open("a", encoding="utf-8") as file:
                    file.write(tail)
        except (OSError, RuntimeError) as error:
            log.warning("the log of run %d cannot be read: %s", attempt.run_id, error)
        message = " ".join((job.message or "without a reason").split())
        return f"{JobStatus(job.status).value.lower()}, {message[-LONGEST_REASON:]}"

    def _job_id(self, attempt: Attempt) -> str:
        """Return the job's id. Several stores may use one cluster: each has a runs folder of its own."""
        store_hash = sha256(str(self._settings.runs_dir.resolve()).encode()).hexdigest()[:12]
        return f"vitals-{store_hash}-{attempt.run_id}-{attempt.number}"

    def _files(self, attempt: Attempt) -> RunFiles:
        return RunFiles(self._settings.runs_dir, attempt.run_id)


def _exit(record: dict[str, Any]) -> Exit:
    """Return the end that a supervisor has recorded."""
    return Exit(**record | {"host_lost": record["code"] == failures.HOST_LOST})


def refuse_open_cluster(address: str) -> None:
    """Check that the cluster takes no requests without its token. Errors: Refused; OSError if it does not answer."""
    if requests.get(f"{address.rstrip('/')}/api/jobs/", timeout=ANSWER_S).ok:
        raise Refused(
            f"the Ray cluster at {address} takes jobs from everybody who reaches it: start each node with "
            "RAY_AUTH_MODE=token, and the scheduler too"
        )


def variables(settings: Settings) -> dict[str, str]:
    """Return the variables of a worker: the settings that it needs, but no secrets, which Ray would store and show.

    The database's URL is in the environment that `ray start` was given on each node.
    """
    shared = environment(settings)
    names = ["PYTHONPATH", *(f"VITALS_{name.upper()}" for name in WORKER_SETTINGS)]
    if settings.artifacts_url:  # each node's environment names the runs folder on its own disk
        names.remove("VITALS_RUNS_DIR")
    return {name: shared[name] for name in names}


def nodes_of(address: str) -> list[Node]:
    """Return the nodes of the cluster, dead ones too. Errors: any of Ray's when it cannot be asked."""
    found = list_nodes(address=address, detail=True, limit=MOST_NODES, timeout=int(ANSWER_S))
    return [
        Node(
            id=state.node_id,
            alive=state.state == "ALIVE",
            head=state.is_head_node,
            address=state.node_ip,
            cpus=int(state.resources_total.get("CPU", 0)),
            gpus=int(state.resources_total.get("GPU", 0)),
            accelerator=state.labels.get("ray.io/accelerator-type", ""),
            memory_gb=state.resources_total.get("memory", 0) / 1e9,
        )
        for state in found
    ]


def devices_of(nodes: Iterable[Node]) -> tuple[Device, ...]:
    """Return the devices that any node offers, with the number of slots and of nodes that have each."""
    slot_counts: dict[str, list[int]] = defaultdict(list)
    for node in nodes:
        for device, slots in node.offers.items():
            slot_counts[device].append(len(slots))
    return tuple(
        Device(name=name, model=f"on {plural(len(counts), 'node')}", count=sum(counts), nodes=len(counts))
        for name, counts in sorted(slot_counts.items())
    )
