"""Several processes that train together: torchrun starts them, and the first one's events come here through a file."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from engine.results import Artifact, Event, Metric, Progress
from engine.results.clip import TrainRow
from engine.settings import ROOT
from engine.specs import Refused
from engine.specs.train import TrainSpec

EVENTS = "events.jsonl"
JOB = "job.json"
FAILURE = "failure.json"
TICK_S = 0.1
GRACE_S, GONE_S = 30, 5
"""After being asked to stop, the processes have so long to save a checkpoint; once killed, so long to be gone."""
TOLD: dict[str, type[Event]] = {each.__name__: each for each in (TrainRow, Metric, Progress, Artifact)}


class Job(BaseModel):
    """The message to every process of a training."""

    model_config = ConfigDict(frozen=True)

    spec: TrainSpec
    run_dir: Path
    device_name: str
    parent: int
    """The process that waits; when it is gone, the others end."""


class TrainingFailed(RuntimeError):
    """One of the processes has ended badly; what it said is in the log."""


def together(spec: TrainSpec, run_dir: Path, device_name: str) -> Iterator[Event]:
    """Yield the events of the first process; as long as it is silent, its progress again, so that this can be closed.

    Closing this asks all to stop, and waits for their checkpoint.
    """
    told = run_dir / EVENTS
    for name in (EVENTS, FAILURE):
        (run_dir / name).unlink(missing_ok=True)
    job = Job(spec=spec, run_dir=run_dir, device_name=device_name, parent=os.getpid())
    # fmt: off
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(spec.nproc),
        "-m", "engine.training", str(run_dir / JOB),
    ]
    # fmt: on
    (run_dir / JOB).write_text(job.model_dump_json())  # a request with many class names is no command-line argument
    launcher = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0)
    progress = Progress(done=0, note=f"starting {spec.nproc} processes")
    yield progress
    read = 0
    try:
        while True:
            ended = launcher.poll() is not None  # before reading, so that what was written last is read
            events, read = _since(told, read)
            for event in events:
                progress = event if isinstance(event, Progress) else progress
                yield event
            if ended:
                break
            if not events:
                yield progress
                time.sleep(TICK_S)
        if launcher.returncode:
            raise _failure(run_dir, spec.nproc)
    finally:
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGTERM)
            try:
                launcher.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                _kill(launcher)
        told.unlink(missing_ok=True)


def _kill(launcher: subprocess.Popen[bytes]) -> None:
    """Kill the launcher with its process tree: torchrun gives each process a session of its own."""
    below = psutil.Process(launcher.pid).children(recursive=True)
    launcher.kill()  # before it can start others, or tell of their end
    for each in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(below, timeout=GONE_S)
    launcher.wait()


def fail(error: Exception, run_dir: Path) -> None:
    """Tell whoever waits why a process has failed; the first one that does is heard."""
    with contextlib.suppress(FileExistsError), (run_dir / FAILURE).open("x") as file:
        json.dump({"refused": isinstance(error, Refused), "error": f"{error}", "type": type(error).__name__}, file)


def _failure(run_dir: Path, processes: int) -> Exception:
    try:
        told = json.loads((run_dir / FAILURE).read_text())
    except (OSError, ValueError):
        return TrainingFailed(f"one of {processes} processes has ended: its last words are in the log")
    return Refused(told["error"]) if told["refused"] else TrainingFailed(f"{told['type']}: {told['error']}")


def write(event: Event, run_dir: Path) -> None:
    """Tell whoever waits of an event."""
    with (run_dir / EVENTS).open("a") as file:
        file.write(f"{type(event).__name__} {event.model_dump_json()}\n")


def _since(path: Path, read: int) -> tuple[list[Event], int]:
    """Events written after so many bytes, and how many bytes there are now. A line that is being written can wait."""
    if not path.is_file():
        return [], read
    with path.open("rb") as file:
        file.seek(read)
        whole = file.read()
    whole = whole[: whole.rfind(b"\n") + 1]
    named = (line.partition(b" ") for line in whole.splitlines())
    return [TOLD[name.decode()].model_validate_json(payload) for name, _, payload in named], read + len(whole)
