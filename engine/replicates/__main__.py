"""One fresh process of a timing: `python -m engine.replicates KIND`, a job on stdin, reports on stdout.

It is exec'd, not forked from a warm one, and imports what its job needs and no more: how memory happens to lie and
which processor it starts on are part of what differs between processes, and what their spread is to show.
"""

import os
import resource
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import torch

from engine.measure import environment
from engine.process import die_with_parent, own_stdout
from engine.replicates.messages import Job, Report

STATUS = Path("/proc/self/status")


def main() -> None:
    """Errors: those of the work, as a traceback in the run's log and an exit code."""
    out = own_stdout()
    work = import_module(f"engine.replicates.{sys.argv[1]}.work")
    job: Job = work.Job.model_validate_json(sys.stdin.buffer.read())
    _die_with(job.parent)
    if job.spec.device == "cpu":
        _limit_memory()
    elif ":" in job.spec.device:
        torch.accelerator.set_device_index(job.spec.device)  # streams and graphs are made on the current one
    torch.set_num_threads(job.spec.threads or environment.threads())
    reports: Iterator[Report] = work.work(job)
    for report in reports:
        out.write(report.model_dump_json(exclude_defaults=True) + "\n")
        out.flush()


def _die_with(parent: int) -> None:
    """Be killed when the parent ends, however it does (Linux); leave at once if it has ended already."""
    die_with_parent()
    if sys.platform == "linux" and os.getppid() != parent:
        sys.exit("the timing has ended before this process began")


def _limit_memory() -> None:
    """Make running out of memory an exception here, before it becomes the kernel's choice of whom to kill (Linux)."""
    if STATUS.is_file():
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        used = int(lines["VmData"].split()[0]) * 1024
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = used + environment.available_bytes()
        resource.setrlimit(resource.RLIMIT_DATA, (most if soft == resource.RLIM_INFINITY else min(most, soft), hard))


if __name__ == "__main__":
    main()
