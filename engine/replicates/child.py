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

from engine.process import how_ended, oom_kills, signal_group
from engine.replicates.messages import Job, Report
from engine.results import Status
from engine.settings import ROOT

TICK_S = 1.0
"""Seconds between two wake-ups of the waiting process. It does nothing else while samples are taken."""
END_S = 30.0
"""Kill a process that has not ended this many seconds after its work: later processes need the time."""


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
        [sys.executable, "-m", "engine.replicates", job.spec.kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **environment},
        process_group=0,  # its own, so that its children can be killed with it and Ctrl-C does not reach it
    )
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has died already: see below
            process.stdin.write(job.model_dump_json().encode())
            process.stdin.close()
        for line in _lines(process, deadline):
            yield Report.model_validate_json(line) if line else None
        # threads and exit functions of a model may keep the process from ending
        end = min(deadline, time.monotonic() + END_S)
        while process.poll() is None and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(TICK_S, left))
            yield None
        if time.monotonic() >= deadline:
            yield Ended("timeout", f"the time limit of {job.spec.time_limit:g} s is over")
        elif (code := process.poll()) is None:
            yield Ended(
                "error", f"the process did not end within {END_S:g} s after its work: the end of the log says more"
            )
        elif code:
            yield ended(code, killed_for_memory=oom_kills() > kills)
    finally:
        signal_group(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe and pipe.close()


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes]:
    """Yield whole lines of a process's output until its end or the deadline; an empty one after each TICK_S without.

    A child that the process has forked may keep the pipe open, so the end of the process ends the output too.
    """
    assert process.stdout is not None
    fileno, rest = process.stdout.fileno(), b""
    while (left := deadline - time.monotonic()) > 0:
        is_over = process.poll() is not None  # before `select`, so that the last lines are read
        ready, _, _ = select.select([fileno], [], [], min(TICK_S, left))
        if not ready and is_over:
            return
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
    return Ended("error", f"the process ended ({how_ended(code)}): the end of the log says more")
