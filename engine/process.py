"""What our processes share: they end with their parent, keep stdout for messages, and see kills for memory."""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import TextIO

PR_SET_PDEATHSIG = 1
CGROUPS = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")


def die_with_parent() -> None:
    """Ask the kernel to kill the calling process when its parent ends, however it ends. Does nothing outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def own_stdout() -> TextIO:
    """Return the stdout this process was given, for messages alone: what libraries print goes to stderr instead."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory so far; 0 where it does not say.

    Counts those of our own cgroup, so that a neighbour's kill is not taken for ours; those of the whole machine where
    the cgroup has no counter.
    """
    return max((_counter(path) for path in _counters()), default=0)


def _counters() -> tuple[Path, ...]:
    """Return the files that count kills: of this process's cgroup (version 2 or 1), or else of the machine."""
    found = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found.append(CGROUPS / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            # a container sees its own cgroup at the root, under the path that it has outside
            found += [CGROUPS / "memory" / inner / "memory.oom_control" for inner in (path.lstrip("/"), "")]
    return tuple([path for path in found if "oom_kill " in _read(path)][:1]) or (VMSTAT,)


def _counter(path: Path) -> int:
    return next((int(line.split()[1]) for line in _read(path).splitlines() if line.startswith("oom_kill ")), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
