"""Contention: counters on both sides of each limit, and a real neighbour on the same CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from engine.measure import contention as cpu
from engine.measure.contention import Usage, contended, contention, snapshot
from engine.settings import ROOT

START = Usage(wall_s=100.0, own_s=50.0, busy_s=1000.0, cpus=4, switches=7)


def after(wall: float, own: float, others: float = 0.0, switches: int = 0) -> Usage:
    """The counters once `wall` seconds have gone by."""
    return Usage(
        wall_s=START.wall_s + wall,
        own_s=START.own_s + own,
        busy_s=START.busy_s + own + others,
        cpus=START.cpus,
        switches=START.switches + switches,
    )


def test_the_cpus_of_this_process_are_found_where_others_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU 1 is offline: /proc/stat skips it. A container's own list may have other numbers: all its CPUs count then."""
    busy = [10.0, 20.0, 30.0]
    listed = [SimpleNamespace(_asdict=lambda user=user: {"user": user, "idle": 99.0}) for user in busy]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: listed)
    monkeypatch.setattr(cpu, "STAT", tmp_path / "stat")
    (tmp_path / "stat").write_text("cpu  60 0 0\ncpu0 10 0 0\ncpu2 20 0 0\ncpu3 30 0 0\nintr 5\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    assert (snapshot().busy_s, snapshot().cpus) == (50.0, 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 8})
    assert (snapshot().busy_s, snapshot().cpus) == (60.0, 3)


def test_shares_by_hand() -> None:
    """2 threads ran 15 of 20 s; others took 4 of the 40 s of 4 CPUs; 300 switches in 10 s."""
    found = contention(START, after(10, own=15, others=4, switches=300), threads=2)
    assert found.cpu_share == pytest.approx(0.75)
    assert found.neighbour_share == pytest.approx(0.1)
    assert found.switches_per_s == pytest.approx(30)


@pytest.mark.parametrize(
    ("counters", "reason"),
    [
        (after(10, own=18.01), None),
        (after(10, own=17.98), "the threads ran 89.9% of the time"),
        (after(10, own=20, others=1.99), None),
        (after(10, own=20, others=2.04), "other processes used 5.1% of the CPUs"),
        (after(10, own=20, switches=1000), None),
        (after(10, own=20, switches=1001), "100 involuntary switches/s"),
    ],
)
def test_both_sides_of_each_limit(counters: Usage, reason: str | None) -> None:
    reasons = contended(contention(START, counters, threads=2))
    assert len(reasons) == (0 if reason is None else 1)
    assert reason is None or reason in reasons[0]


def test_all_reasons_are_told() -> None:
    assert len(contended(contention(START, after(10, own=10, others=20, switches=5000), threads=2))) == 3


def test_the_host_of_a_gpu_may_wait_but_not_be_disturbed() -> None:
    """A model of many short kernels is as slow as the CPU that launches them; that CPU waits for the GPU otherwise."""
    calm = contention(START, after(10, own=0.5), threads=None)
    assert (calm.cpu_share, calm.neighbour_share, contended(calm)) == (None, 0, [])
    disturbed = contended(contention(START, after(10, own=9, others=4, switches=5000), threads=None))
    assert len(disturbed) == 2
    assert "other processes used 10.0% of the CPUs" in disturbed[0]
    assert "500 involuntary switches/s" in disturbed[1]


def test_a_neighbour_is_not_told_from_a_moment_too_short_for_the_systems_steps() -> None:
    """A step of 10 ms on each of 4 CPUs would be a share of 5 % of 0.2 s."""
    found = contention(START, after(0.9, own=1.8, others=0.8), threads=2)
    assert found.neighbour_share is None
    assert contended(found) == []
    assert contention(START, after(1.0, own=2.0, others=0.8), threads=2).neighbour_share == pytest.approx(0.2)


def test_steps_that_round_below_our_own_time_are_no_neighbour() -> None:
    assert contention(START, after(10, own=20, others=-0.03), threads=2).neighbour_share == 0


def test_only_the_cpus_we_may_use_count_and_idling_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU 0 idles, CPU 1 is ours, CPU 2 is somebody else's. Guests' time is within user's, stolen time is others'."""

    class Times(SimpleNamespace):
        def _asdict(self) -> dict[str, float]:
            return vars(self)

    idle = dict(user=0.0, nice=0.0, system=0.0, iowait=3.0, irq=0.0, softirq=0.0, steal=0.0, guest=0.0, guest_nice=0.0)
    per_cpu = [
        Times(**idle | {"idle": 100.0}),
        Times(**idle | {"idle": 50.0, "user": 30.0, "guest": 10.0, "system": 5.0, "softirq": 1.0, "steal": 2.0}),
        Times(**idle | {"idle": 0.0, "user": 97.0}),
    ]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: per_cpu)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = snapshot()
    assert (found.busy_s, found.cpus) == (38.0, 2)


def test_own_time_holds_all_threads_and_no_children() -> None:
    """A child that works for as long as we wait is a neighbour."""
    before = snapshot()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    seen = snapshot()
    assert seen.own_s - before.own_s < 0.5 * (seen.wall_s - before.wall_s)


BUSY_NEIGHBOUR = """
import json, os, subprocess, sys, time
from engine.measure.contention import contended, contention, snapshot
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
neighbour = subprocess.Popen(
    [sys.executable, "-c", "print('ready', flush=True)\\nwhile True: pass"], stdout=subprocess.PIPE
)
try:
    neighbour.stdout.readline()
    before = snapshot()
    while time.perf_counter() - before.wall_s < 2:
        pass
    found = contention(before, snapshot(), threads=1)
finally:
    neighbour.kill()
    neighbour.wait()
print(json.dumps(found.model_dump() | {"reasons": contended(found)}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no process to a CPU")
def test_a_busy_loop_on_the_same_cpu_is_caught() -> None:
    """Both want the whole CPU and each gets about half, or less when the machine is busy besides."""
    done = subprocess.run(
        [sys.executable, "-c", BUSY_NEIGHBOUR], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    found = json.loads(done.stdout)
    assert found["cpu_share"] < cpu.LEAST_CPU_SHARE
    assert found["neighbour_share"] > cpu.MOST_NEIGHBOUR_SHARE
    assert len(found["reasons"]) >= 2
