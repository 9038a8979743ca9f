"""Measure how much other processes used the CPUs during a timing."""

import math
import os
import re
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.results import Contention

STAT = Path("/proc/stat")
LEAST_CPU_SHARE = 0.9
MOST_NEIGHBOUR_SHARE = 0.05
MOST_SWITCHES_PER_S = 100.0
"""Beyond these limits, a timing counts as disturbed. They apply to the fields of `Contention`."""
NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")
"""Times of a CPU that do not count as busy: the system adds those of guests to user and nice."""
SHORTEST_S = 1.0
"""Measure shares of the CPUs only over at least this many seconds. The system counts CPU time in steps of 10 ms, so two
steps would be 2 % or more of a shorter time."""


@dataclass(frozen=True)
class Usage:
    """Counters at one moment. Only differences between two moments have a meaning."""

    wall_s: float
    own_s: float
    """CPU time of all threads of this process, or of a process and all its descendants."""
    busy_s: float
    """CPU time of all processes, and of the hypervisor's other guests, on the CPUs that this process may use."""
    cpus: int
    """Number of CPUs that this process may use."""
    switches: int
    """Involuntary context switches: a thread of this process was ready to run but had to wait."""


def snapshot(root: int | None = None) -> Usage:
    """Return the current counters. Takes about 0.1 ms.

    root: id of the process whose descendants also count as our own, such as loaders of data; takes about 5 ms.
    """
    per_cpu = psutil.cpu_times(percpu=True)
    lines = STAT.read_text().splitlines() if STAT.is_file() else []
    numbers = [int(found[1]) for line in lines if (found := re.match(r"cpu(\d+) ", line))]  # without CPUs offline
    if len(numbers) != len(per_cpu):  # not Linux, or a CPU was switched on or off in between
        numbers = list(range(len(per_cpu)))
    by_number = dict(zip(numbers, per_cpu, strict=True))
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(by_number)
    # a container's own /proc/stat lists only its CPUs, with numbers of its own
    counted = [by_number[cpu] for cpu in allowed] if allowed <= by_number.keys() else per_cpu
    return Usage(
        wall_s=time.perf_counter(),
        own_s=time.process_time() if root is None else _family_s(psutil.Process(root)),
        busy_s=sum(seconds for times in counted for name, seconds in times._asdict().items() if name not in NOT_BUSY),
        cpus=len(counted),
        switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
    )


def _family_s(root: psutil.Process) -> float:
    """Return the CPU time of a process and all its descendants, including those that have ended."""
    seconds = 0.0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended: its parent has its time once it has waited for it
            seconds += math.fsum(process.cpu_times()[:4])  # user, system, and both of ended children
    return seconds


def contention(before: Usage, after: Usage, threads: int | None) -> Contention:
    """Return how the CPUs were used between two snapshots.

    threads: number of threads that should be busy. None for an accelerator, because the CPU waits for it; cpu_share is
    then None. cpu_share falls when other processes take the CPUs, but also when a model is too small to keep its
    threads busy or waits for a disk or a lock. neighbour_share and switches_per_s show which of these it is.
    """
    wall_s = after.wall_s - before.wall_s
    own_s = after.own_s - before.own_s
    others_s = after.busy_s - before.busy_s - own_s
    reported = wall_s >= SHORTEST_S and after.busy_s > 0  # gVisor's /proc/stat has only zeros
    return Contention(
        cpu_share=own_s / (wall_s * threads) if threads else None,
        neighbour_share=max(0.0, others_s) / (wall_s * after.cpus) if reported else None,
        switches_per_s=(after.switches - before.switches) / wall_s,
    )


def why_contended(contention: Contention) -> list[str]:
    """Return the reasons why a timing was disturbed, one text each. Empty when it was not disturbed."""
    reasons = []
    if contention.cpu_share is not None and contention.cpu_share < LEAST_CPU_SHARE:
        reasons.append(
            f"the threads ran {100 * contention.cpu_share:.1f} % of the time (at least {100 * LEAST_CPU_SHARE:.0f} %): "
            "other processes took the CPUs, there are more threads than CPUs, or the model is too small for so many "
            "threads"
        )
    if contention.neighbour_share is not None and contention.neighbour_share > MOST_NEIGHBOUR_SHARE:
        reasons.append(
            f"other processes used {100 * contention.neighbour_share:.1f} % of the CPUs "
            f"(at most {100 * MOST_NEIGHBOUR_SHARE:.0f} %)"
        )
    if contention.switches_per_s is not None and contention.switches_per_s > MOST_SWITCHES_PER_S:
        reasons.append(f"{contention.switches_per_s:.0f} involuntary switches/s (at most {MOST_SWITCHES_PER_S:.0f})")
    return reasons


NAME_LENGTH = 15
"""Cut process names to this length, as Linux does: psutil completes them from command lines, which may hold secrets."""
MOST_NAMES = 3
"""Report at most this many names, so that the note fits on one line."""
LEAST_SHARE = 0.01
"""Leave out processes with a smaller share of the CPUs. A desktop has dozens of them, and they disturb nothing."""


Snapshot = Mapping[tuple[int, float], tuple[str, float]]
"""Name of each process, and the CPU time of all its threads since it started in s, by process id and start time. The
start time is needed because process ids are reused."""


def processes_now() -> Snapshot:
    """Return all other processes that are visible. Takes about 0.2 ms per process."""
    processes = {}
    for process in psutil.process_iter(["pid", "create_time", "name", "cpu_times"]):
        info = process.info
        if info["pid"] != os.getpid() and info["cpu_times"] is not None:
            cpu_s = info["cpu_times"].user + info["cpu_times"].system
            processes[info["pid"], info["create_time"]] = (info["name"] or "?")[:NAME_LENGTH], cpu_s
    return processes


def busiest(before: Snapshot, after: Snapshot, wall_s: float, cpus: int) -> dict[str, float]:
    """Return the share of the CPUs that other processes used between two snapshots, by name, the busiest first.

    Processes with the same name are added up. A process that began and ended in between is not seen. Empty for less
    than SHORTEST_S.
    """
    if wall_s < SHORTEST_S:
        return {}
    used: dict[str, float] = {}
    for key, (name, cpu_s) in after.items():
        earlier = before[key][1] if key in before else 0.0
        used[name] = used.get(name, 0.0) + cpu_s - earlier
    shares = sorted(((cpu_s / (wall_s * cpus), name) for name, cpu_s in used.items()), reverse=True)
    return {name: share for share, name in shares[:MOST_NAMES] if share >= LEAST_SHARE}


def shares_text(shares: Mapping[str, float]) -> str:
    """Return the shares as text, such as `ffmpeg 41.0 %, python 12.3 % of the CPUs`."""
    return ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items()) + " of the CPUs"
