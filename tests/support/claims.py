"""Run several processes that claim runs of one store at the same time."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from engine.settings import ROOT
from engine.specs import ProfileSpec
from engine.store import Filter, State, Store

CLAIM = """
import sys, time
from engine.settings import Settings
from engine.store import Cause, Exit, attempts, open_store, queue
store = open_store(Settings())
print("ready", flush=True)
sys.stdin.readline()
left = int(sys.argv[2])
while left:
    if attempt := queue.claim(store.database, sys.argv[1]):
        left -= 1
        print(attempt.run_id, attempt.number, attempt.token)
        attempts.close(store.database, attempt, Exit(-9), Cause.KILLED, "")  # queues it again, up to MOST_STARTS times
    else:
        time.sleep(0.01)
store.close()
"""
SHORT = 20
"""Number of queued runs. It is small, so that all processes compete for the same runs."""
START_S = 120
"""Wait at most this many seconds for all processes to start."""


@dataclass(frozen=True)
class Race:
    """Result of a race. claims: (run id, attempt number, token), one per claim of any process."""

    claims: list[tuple[int, int, int]]
    problems: list[str]
    """All other lines that the processes printed, such as "database is locked"."""
    seconds: float

    @property
    def duplicates(self) -> int:
        """Return the number of claims of attempts that were already claimed."""
        distinct = len({claim[:2] for claim in self.claims}), len({claim[2] for claim in self.claims})
        return len(self.claims) - min(distinct)


def race(store: Store, claimers: int, share: int, folder: Path, environment: dict[str, str] | None = None) -> Race:
    """Run `claimers` processes, each with a host name, that claim and close `share` attempts each.

    The queue is refilled to SHORT runs until all processes end.

    environment: variables that name the store, if they differ from those of this process.
    """
    outputs, processes = [folder / f"{number}.txt" for number in range(claimers)], []
    for number, path in enumerate(outputs):
        command = [sys.executable, "-W", "error", "-c", CLAIM, f"host {number}", str(share)]
        with path.open("w") as output:
            options = {"stdin": subprocess.PIPE, "stdout": output, "stderr": output, "text": True, "cwd": ROOT}
            processes.append(subprocess.Popen(command, env=os.environ | (environment or {}), **options))
    deadline = time.monotonic() + START_S
    while not all(path.read_text() == "ready\n" for path in outputs):
        assert time.monotonic() < deadline, [path.read_text() for path in outputs]
        time.sleep(0.02)
    begun = time.monotonic()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.close()
    while any(process.poll() is None for process in processes):
        for _ in range(SHORT - store.count(Filter(states=(State.QUEUED,)))):
            store.enqueue(ProfileSpec(models=("a",), device="cpu"))
        time.sleep(0.05)
    lines = [line for path in outputs for line in path.read_text().splitlines()[1:]]
    claims = [line.split() for line in lines if line.replace(" ", "").isdecimal()]
    return Race(
        [(int(run), int(number), int(token)) for run, number, token in claims],
        [line for line in lines if not line.replace(" ", "").isdecimal()],
        time.monotonic() - begun,
    )
