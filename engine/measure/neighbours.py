"""Which other processes used the CPUs while something was timed, by name."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from engine.measure.contention import SHORTEST_S

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


def snapshot() -> Snapshot:
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
