"""Who else used the CPUs while something was timed."""

import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from engine.results import Contention

LEAST_CPU_SHARE = 0.9
MOST_NEIGHBOUR_SHARE = 0.05
MOST_SWITCHES_PER_S = 100.0
SHORTEST_S = 1.0
"""The system counts each CPU's time in steps of 10 ms. Over less than this, two steps would be 2 % and more."""


@dataclass(frozen=True)
class Usage:
    """Counters at one moment; only differences mean anything."""

    wall_s: float
    own_s: float
    """CPU time of this process, all its threads."""
    busy_s: float
    """What all processes, and the hypervisor's other guests, used of the CPUs that this process may use."""
    cpus: int
    """How many those are."""
    switches: int
    """Times that a thread of this process was made to wait though it could have gone on."""


def snapshot() -> Usage:
    """Return the counters now. Costs about 0.1 ms."""
    per_cpu = psutil.cpu_times(percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(per_cpu))
    counted = [per_cpu[cpu] for cpu in allowed]
    return Usage(
        wall_s=time.perf_counter(),
        own_s=time.process_time(),
        busy_s=sum(_busy(times._asdict()) for times in counted),
        cpus=len(counted),
        switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
    )


def _busy(times: dict[str, float]) -> float:
    """Seconds one CPU did not idle. Guests' time is counted within user and nice already."""
    return sum(seconds for name, seconds in times.items() if name not in ("idle", "iowait", "guest", "guest_nice"))


def contention(before: Usage, after: Usage, threads: int | None) -> Contention:
    """Return what the CPUs did between two snapshots.

    threads: those that should be busy; None where the CPU waits for an accelerator, and then there is no cpu_share.
    cpu_share is CPU time / (wall time x threads). It falls when others take the CPUs, and just so when a model is too
    small to keep its threads busy, or waits for a disk or a lock; neighbour_share and switches_per_s tell these apart.
    """
    wall = after.wall_s - before.wall_s
    own = after.own_s - before.own_s
    others = after.busy_s - before.busy_s - own
    return Contention(
        cpu_share=own / (wall * threads) if threads else None,
        neighbour_share=max(0.0, others) / (wall * after.cpus) if wall >= SHORTEST_S else None,
        switches_per_s=(after.switches - before.switches) / wall,
    )


def contended(found: Contention) -> list[str]:
    """In what a timing was disturbed, in words; empty when it was not."""
    reasons = []
    if found.cpu_share is not None and found.cpu_share < LEAST_CPU_SHARE:
        reasons.append(
            f"the threads ran {found.cpu_share:.1%} of the time (at least {LEAST_CPU_SHARE:.0%}): they waited for "
            "others, or the model is too small for so many"
        )
    if found.neighbour_share is not None and found.neighbour_share > MOST_NEIGHBOUR_SHARE:
        reasons.append(f"others used {found.neighbour_share:.1%} of the CPUs (at most {MOST_NEIGHBOUR_SHARE:.0%})")
    if found.switches_per_s is not None and found.switches_per_s > MOST_SWITCHES_PER_S:
        reasons.append(f"{found.switches_per_s:.0f} involuntary switches/s (at most {MOST_SWITCHES_PER_S:.0f})")
    return reasons


NAME_LENGTH = 15
"""Characters kept of a name, as many as Linux keeps. psutil completes longer ones from the command line, which may hold
secrets."""
MOST_NAMES = 3
"""Names reported: those that matter, in a note of one line."""
LEAST_SHARE = 0.01
"""Smaller shares of the CPUs are left out: a desktop has dozens, and they disturb nothing."""


@dataclass(frozen=True)
class Process:
    """One process at one moment."""

    name: str
    cpu_s: float
    """CPU time so far, all its threads."""


Snapshot = Mapping[tuple[int, float], Process]
"""By process id and time of its start, because ids are used again."""


def processes_now() -> Snapshot:
    """Return all other processes that can be seen. Costs about 0.2 ms per process."""
    found = {}
    for process in psutil.process_iter(["pid", "create_time", "name", "cpu_times"]):
        known = process.info
        if known["pid"] != os.getpid() and known["cpu_times"] is not None:
            cpu_s = known["cpu_times"].user + known["cpu_times"].system
            found[known["pid"], known["create_time"]] = Process((known["name"] or "?")[:NAME_LENGTH], cpu_s)
    return found


def busiest(before: Snapshot, after: Snapshot, wall_s: float, cpus: int) -> dict[str, float]:
    """Return the share of the CPUs that other processes used between two snapshots, by name, the busiest first.

    Processes of one name are added up. One that began and ended in between is not seen. Nothing is known of less than
    a second, because the system counts CPU time in steps of 10 ms.
    """
    if wall_s < SHORTEST_S:
        return {}
    used: dict[str, float] = {}
    for key, process in after.items():
        earlier = before[key].cpu_s if key in before else 0.0
        used[process.name] = used.get(process.name, 0.0) + process.cpu_s - earlier
    shares = sorted(((cpu_s / (wall_s * cpus), name) for name, cpu_s in used.items()), reverse=True)
    return {name: share for share, name in shares[:MOST_NAMES] if share >= LEAST_SHARE}


def named(shares: Mapping[str, float]) -> str:
    """Return `ffmpeg 41.0%, python 12.3% of the CPUs`."""
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items()) + " of the CPUs"
