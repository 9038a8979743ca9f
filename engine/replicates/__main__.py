"""One fresh process of a timing: `python -m engine.replicates KIND`, a job on stdin, reports on stdout.

It is started with exec, not forked from a warm process, and imports only what its job needs. So memory layout and the
first CPU core differ between processes, and the spread between processes includes their effect.
"""

import os
import resource
import sys
from collections.abc import Iterator
from importlib import import_module

from engine.process import collect_rarely, die_with_parent, leave, own_stdout

collect_rarely()

import psutil
import torch

from engine.measure import environment
from engine.replicates.messages import Job, Report


def main() -> None:
    """Do the job on stdin and write its reports. Errors of the work become a traceback in the log and an exit code."""
    out = own_stdout()
    work = import_module(f"engine.replicates.{sys.argv[1]}.work")
    job: Job = work.Job.model_validate_json(sys.stdin.buffer.read())
    die_with_parent()
    if sys.platform == "linux" and os.getppid() != job.parent:
        sys.exit("the timing has ended before this process began")
    if job.spec.device == "cpu":
        _limit_memory()
    elif ":" in job.spec.device:
        torch.accelerator.set_device_index(job.spec.device)  # streams and graphs are created on the current device
    torch.set_num_threads(job.spec.threads or environment.threads())
    reports: Iterator[Report] = work.work(job)
    for report in reports:
        out.write(report.model_dump_json(exclude_defaults=True) + "\n")
        out.flush()


def _limit_memory() -> None:
    """Limit this process's memory, so that it gets an exception before the kernel kills some process (Linux)."""
    if sys.platform == "linux":
        used = psutil.Process().memory_info().data
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = used + environment.available_bytes()
        resource.setrlimit(resource.RLIMIT_DATA, (most if soft == resource.RLIM_INFINITY else min(most, soft), hard))


if __name__ == "__main__":
    main()
    leave(0)
