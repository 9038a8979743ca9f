"""Run one job in a fresh process: yield its reports as they come, and how it ended."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

from engine.process import oom_kills, signal_group
from engine.replicates.messages import Job, Report
from engine.results import Status
from engine.settings import ROOT

TICK_S = 1.0
"""Seconds between two wake-ups of the waiting process. It does nothing else while samples are taken."""


@dataclass(frozen=True)
class Ended:
    """The failure of a process: killed by the kernel for memory, out of time, or ended with an error."""

    status: Status
    error: str


def reports(job: Job, environment: Mapping[str, str], deadline: float) -> Generator[Report | Ended | None]:
    """Yield the reports of the process, None about once a second while there are none, and Ended if it failed.

    deadline: by time.monotonic(). Closing this generator kills the process and all its children.
    """
    kills = oom_kills()
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.replicates", job.kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **environment},
        process_group=0,  # its own, so that its children can be killed with it and Ctrl-C does not reach it
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process has died already: see below
            process.stdin.write(job.model_dump_json().encode())
            process.stdin.close()
        for line in _lines(process.stdout.fileno(), deadline):
            yield Report.model_validate_json(line) if line else None
        # threads and exit functions of a model may keep the process from ending
        while process.poll() is None and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(TICK_S, left))
            yield None
        if time.monotonic() >= deadline:
            yield Ended("timeout", f"the time limit of {job.spec.time_limit:g} s is over")
        elif code := process.wait():
            yield ended(code, killed_for_memory=oom_kills() > kills)
    finally:
        signal_group(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe and pipe.close()


def _lines(fileno: int, deadline: float) -> Iterator[bytes]:
    """Yield whole lines until the end of the pipe or the deadline; an empty line after each TICK_S without output."""
    rest = b""
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([fileno], [], [], min(TICK_S, left))
        if not ready:
            yield b""
            continue
        if not (chunk := os.read(fileno, 1 << 20)):
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, lines)


def ended(code: int, *, killed_for_memory: bool) -> Ended:
    """Return the failure of a process with this exit code; negative: the number of the signal that killed it."""
    if code == -signal.SIGKILL and killed_for_memory:
        return Ended("out_of_memory", "the kernel killed the process: the machine was out of memory")
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return Ended("error", f"the process ended with {how}: the end of the log says more")
