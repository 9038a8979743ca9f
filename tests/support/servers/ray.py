"""Run a throwaway Ray cluster of several nodes on this machine, for the tests marked `cluster`."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

TOKEN = secrets.token_hex(32)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A head node that takes jobs on a loopback port, and the nodes added to it."""

    def __init__(self, folder: Path, environment: Mapping[str, str], cpus: int) -> None:
        """Start the head. environment: additional variables of every node, as in a service's environment file."""
        self._folder = folder
        self.variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        # no other variables of the test, because tests find our processes by their variables
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **self.variables, **environment}
        self._gcs, dashboard = free_port(), free_port()
        self.drivers = self.variables | {"RAY_ADDRESS": f"127.0.0.1:{self._gcs}"}
        """Variables of a process that connects to the cluster."""
        self.address = f"http://127.0.0.1:{dashboard}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        head = ["--head", "--port", str(self._gcs), "--dashboard-port", str(dashboard), "--temp-dir", str(folder)]
        self._start(
            *head,
            "--num-cpus",
            str(cpus),
            "--num-gpus",
            "0",
            "--disable-usage-stats",
            "--ray-client-server-port",
            str(free_port()),
        )

    def add_node(self, **variables: str) -> None:
        """Start a node that reports two GPUs. Ray reserves them without checking that they exist.

        variables: environment variables that replace those of all nodes.
        """
        gpus = ["--num-gpus", "2", "--labels", "ray.io/accelerator-type=H100"]
        once = ["--include-log-monitor", "false"]  # with two monitors on a machine, a driver gets every line twice
        variables = {"TEST_HOST_NAME": f"node-{len(self.nodes)}"} | variables
        self._start("--address", f"127.0.0.1:{self._gcs}", "--num-cpus", "3", *gpus, *once, **variables)

    def kill_node(self, number: int) -> None:
        """Kill all processes of a node at once, as a power cut does."""
        process = psutil.Process(self.nodes[number].pid)
        for member in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # the process ended with its parent
                member.send_signal(signal.SIGKILL)
        self.nodes[number].wait()

    def _start(self, *arguments: str, **variables: str) -> None:
        options = ["--object-store-memory", "80000000", "--block"]
        # the agent takes jobs; other clusters on this machine may use its default port
        agent = ["--dashboard-agent-listen-port", str(free_port())]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, *agent, *options]
        with (self._folder / f"node-{len(self.nodes)}.log").open("wb") as log:
            environment = self._environment | variables
            started = subprocess.Popen(command, cwd=self._folder, env=environment, stdout=log, stderr=log)
        self.nodes.append(started)

    def stop(self) -> None:
        """End every node."""
        for number, node in enumerate(self.nodes):
            if node.poll() is None:
                self.kill_node(number)


@contextmanager
def cluster(environment: Mapping[str, str], *, cpus: int = 1) -> Iterator[Cluster]:
    """Run a cluster with only a head node, and delete its files afterwards. cpus: cores that the head offers."""
    folder = Path(tempfile.mkdtemp(prefix="vitals-ray-", dir="/tmp"))  # Ray's sockets need a short path
    running = Cluster(folder, environment, cpus)
    try:
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)
