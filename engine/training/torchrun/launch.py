"""Start several training processes with torchrun, and read the events of the first one from a file.

`across.py` does the same on several nodes of a cluster.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import psutil

from engine.results import Artifact, Event, Metric, Progress
from engine.results.clip import TrainRow
from engine.settings import ROOT
from engine.specs import Refused
from engine.specs.base import Frozen
from engine.specs.train import TrainSpec

EVENTS = "events.jsonl"
JOB = "job.json"
FAILURE = "failure.json"
TICK_S = 0.1
"""Seconds between two readings of the events."""
GRACE_S, GONE_S = 30, 5
"""Seconds that processes get to save a checkpoint after a stop, and seconds to wait until killed ones have ended."""
EVENT_TYPES: dict[str, type[Event]] = {event.__name__: event for event in (TrainRow, Metric, Progress, Artifact)}


class Job(Frozen):
    """The message to every process of a training."""

    spec: TrainSpec
    run_dir: Path
    device_name: str
    parent: int
    """Id of the process that waits for the training processes, on the same machine. They end when it ends."""
    notes: tuple[str, ...] = ()
    """Messages for the log and the rows."""


class TrainingFailed(RuntimeError):
    """One of the processes has failed; its error is in the log."""


class Processes(Protocol):
    """The processes of a training."""

    def poll(self) -> int | None:
        """Return 0 once all processes have succeeded, another number once one has failed, and None before."""

    def stop(self) -> None:
        """End the processes that still run, if needed by force. Return when they have ended."""


class Torchrun:
    """The processes of a training on this machine, started by torchrun."""

    def __init__(self, job: Job, processes: int, *rendezvous: str, name: str = JOB) -> None:
        """Start the processes. rendezvous: torchrun's options, if other machines train too. name: of the job's file."""
        path = job.run_dir / name
        alone = ["--standalone", "--local-addr", "localhost"]  # else torchrun needs a host name that resolves
        # fmt: off
        command = [
            sys.executable, "-m", "torch.distributed.run", *(rendezvous or alone),
            "--nproc-per-node", str(processes), "-m", "engine.training.torchrun", str(path),
        ]
        # fmt: on
        path.write_bytes(job.model_dump_json().encode())  # a request with many class names is too long for an argument
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0)
        self.poll, self.wait = self._process.poll, self._process.wait

    def stop(self) -> None:
        """Ask the processes to stop, wait up to GRACE_S for their checkpoint, and kill those that are left."""
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                _kill(self._process)


def train_in_processes(
    spec: TrainSpec,
    run_dir: Path,
    device_name: str,
    start: Callable[[Job], Processes] = lambda job: Torchrun(job, job.spec.nproc),
) -> Iterator[Event]:
    """Start the processes, by default all on this machine, and yield the events of the first one.

    While there are no events, its progress is yielded again, so that the caller can close this generator. Closing it
    asks all processes to stop, and waits up to GRACE_S for their checkpoint.
    """
    events_file = run_dir / EVENTS
    for name in (EVENTS, FAILURE):
        (run_dir / name).unlink(missing_ok=True)
    job = Job(spec=spec, run_dir=run_dir, device_name=device_name, parent=os.getpid())
    processes = start(job)
    progress = Progress(done=0, note=f"starting {spec.nproc} processes")
    read = 0
    try:
        yield progress
        while True:
            code = processes.poll()  # before reading, so that the last events are read
            events, read = _read_events(events_file, read)
            for event in events:
                progress = event if isinstance(event, Progress) else progress
                yield event
            if code is not None:
                break
            if not events:
                yield progress
                time.sleep(TICK_S)
        if code:
            raise _failure(run_dir, spec.nproc)
    finally:
        processes.stop()
        events_file.unlink(missing_ok=True)


def _kill(launcher: subprocess.Popen[bytes]) -> None:
    """Kill the launcher and its process tree: torchrun gives each process its own session."""
    children = psutil.Process(launcher.pid).children(recursive=True)
    launcher.kill()  # first, so that it cannot start or report on others
    for process in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(children, timeout=GONE_S)
    launcher.wait()


def write_failure(error: Exception, run_dir: Path) -> None:
    """Record why a process has failed, for the process that waits for it. Only the first failure is kept."""
    with contextlib.suppress(FileExistsError), (run_dir / FAILURE).open("x") as file:
        json.dump({"refused": isinstance(error, Refused), "error": f"{error}", "type": type(error).__name__}, file)


def _failure(run_dir: Path, processes: int) -> Exception:
    try:
        failure = json.loads((run_dir / FAILURE).read_text())
    except (OSError, ValueError):
        return TrainingFailed(f"one of {processes} processes has ended: the end of the log says more")
    return Refused(failure["error"]) if failure["refused"] else TrainingFailed(f"{failure['type']}: {failure['error']}")


def write(event: Event, run_dir: Path) -> None:
    """Append an event to the file that the waiting process reads."""
    with (run_dir / EVENTS).open("a", encoding="utf-8") as file:
        file.write(f"{type(event).__name__} {event.model_dump_json()}\n")


def _read_events(path: Path, read: int) -> tuple[list[Event], int]:
    """Return the events of the complete lines after the first `read` bytes, and how many bytes are read now."""
    if not path.is_file():
        return [], read
    with path.open("rb") as file:
        file.seek(read)
        complete = file.read()
    complete = complete[: complete.rfind(b"\n") + 1]
    entries = (line.partition(b" ") for line in complete.splitlines())
    events = [EVENT_TYPES[name.decode()].model_validate_json(payload) for name, _, payload in entries]
    return events, read + len(complete)
