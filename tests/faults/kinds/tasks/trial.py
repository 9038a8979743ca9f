"""The task of a `trial` run: count, and misbehave as the spec requests."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import trial_kinds

from engine.results import Artifact, Event, Progress
from engine.specs import Refused

MEGABYTE = 1_000_000


def run(spec: trial_kinds.Steps, run_dir: Path, row: type = trial_kinds.TrialRow) -> Iterator[Event]:
    try:
        for step in range(1, spec.steps + 1):
            if step == spec.at:
                yield from make_trouble(spec, run_dir)
            time.sleep(spec.seconds)
            print("step", step)
            yield row(library="none", model=f"step {step}", step=step, pid=os.getpid())
            yield Progress(done=step, total=spec.steps)
        if spec.at > spec.steps:
            yield from make_trouble(spec, run_dir)
    finally:
        (run_dir / "finally.txt").write_text("saved what is worth saving")


def make_trouble(spec: trial_kinds.Steps, run_dir: Path) -> Iterator[Event]:
    match spec.trouble:
        case "raise":
            raise ValueError("<b>no</b>")
        case "refuse":
            raise Refused("no such thing; there are others")
        case "kill itself":
            print("the last line", end="")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop itself":  # the worker holds no lock on the database here
            os.kill(os.getpid(), signal.SIGSTOP)
        case "send itself SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        case "exit 137":
            os._exit(137)
        case "eat memory":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + spec.limit, used + spec.limit))
            bytearray(2 * spec.limit)
        case "eat all memory":
            blocks = []
            while len(blocks) * MEGABYTE < spec.limit:
                blocks.append(b"x" * MEGABYTE)
        case "fill the disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (spec.limit, spec.limit))
            (run_dir / "large").write_bytes(b"x" * 2 * spec.limit)
        case "flood the log":
            line = b"\x1b]0;title\x07<script>" + b"x" * 983 + b"\n"
            for _ in range(spec.limit // len(line)):
                os.write(2, line)
        case "say nothing new":
            while True:
                yield Progress(done=0, total=spec.steps, note="waiting")
                time.sleep(0.01)
        case "ignore SIGTERM":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.Popen([sys.executable, "-S", "-c", IGNORE_SIGTERM])
            time.sleep(3600)
        case "leave children":
            subprocess.Popen([sys.executable, "-S", "-c", IGNORE_SIGTERM])
        case "write outside":
            (run_dir.parent / "outside.txt").write_text("outside")
            yield Artifact(name="../outside.txt", kind="text")
        case "write an artifact":
            (run_dir / "numbers.txt").write_text("1 2 3")
            yield Artifact(name="numbers.txt", kind="text")


IGNORE_SIGTERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
