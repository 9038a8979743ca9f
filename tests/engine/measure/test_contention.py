"""Contention with other processes: counters at both sides of each limit, and a real process on the same CPU."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from engine.measure import contention as cpu
from engine.measure.contention import Usage, contention, snapshot, why_contended
from engine.settings import ROOT

START = Usage(wall_s=100.0, own_s=50.0, busy_s=1000.0, cpus=4, switches=7)


def after(wall: float, own: float, others: float = 0.0, switches: int = 0) -> Usage:
    """Return the counters `wall` seconds after START. own, others: CPU seconds used since then."""
    return Usage(
        wall_s=START.wall_s + wall,
        own_s=START.own_s + own,
        busy_s=START.busy_s + own + others,
        cpus=START.cpus,
        switches=START.switches + switches,
    )


def test_own_cpus_are_found_when_some_cpus_are_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU 1 is offline, so /proc/stat skips it. If a container numbers its CPUs differently, all of them count."""
    busy = [10.0, 20.0, 30.0]
    cpu_times = [SimpleNamespace(_asdict=lambda user=user: {"user": user, "idle": 99.0}) for user in busy]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: cpu_times)
    monkeypatch.setattr(cpu, "STAT", tmp_path / "stat")
    (tmp_path / "stat").write_text("cpu  60 0 0\ncpu0 10 0 0\ncpu2 20 0 0\ncpu3 30 0 0\nintr 5\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3}, raising=False)
    assert (snapshot().busy_s, snapshot().cpus) == (50.0, 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 8}, raising=False)
    assert (snapshot().busy_s, snapshot().cpus) == (60.0, 3)


def test_contention_shares_equal_a_sum_by_hand() -> None:
    """In 10 s, 2 threads ran 15 of 20 s, others used 4 of the 40 s of 4 CPUs, and there were 300 switches."""
    found = contention(START, after(10, own=15, others=4, switches=300), threads=2)
    assert found.cpu_share == pytest.approx(0.75)
    assert found.neighbour_share == pytest.approx(0.1)
    assert found.switches_per_s == pytest.approx(30)


def test_use_by_others_is_unknown_if_the_system_counts_no_time_of_cpus() -> None:
    """All values of the CPUs in gVisor's /proc/stat are zero."""
    zeros = replace(START, busy_s=0)
    found = contention(zeros, replace(after(10, own=20), busy_s=0), threads=2)
    assert (found.neighbour_share, found.cpu_share) == (None, pytest.approx(1))


@pytest.mark.parametrize(
    ("counters", "reason"),
    [
        (after(10, own=18.01), None),
        (after(10, own=17.98), "the threads ran 89.9 % of the time"),
        (after(10, own=20, others=1.99), None),
        (after(10, own=20, others=2.04), "other processes used 5.1 % of the CPUs"),
        (after(10, own=20, switches=1000), None),
        (after(10, own=20, switches=1001), "100 involuntary switches/s"),
    ],
)
def test_contention_reason_at_both_sides_of_each_limit(counters: Usage, reason: str | None) -> None:
    reasons = why_contended(contention(START, counters, threads=2))
    assert len(reasons) == (0 if reason is None else 1)
    assert reason is None or reason in reasons[0]


def test_all_contention_reasons_are_listed() -> None:
    assert len(why_contended(contention(START, after(10, own=10, others=20, switches=5000), threads=2))) == 3


def test_host_of_a_gpu_may_be_idle_but_not_disturbed() -> None:
    """The CPU may wait for the GPU, but it must launch short kernels without delay."""
    calm = contention(START, after(10, own=0.5), threads=None)
    assert (calm.cpu_share, calm.neighbour_share, why_contended(calm)) == (None, 0, [])
    disturbed = why_contended(contention(START, after(10, own=9, others=4, switches=5000), threads=None))
    assert len(disturbed) == 2
    assert "other processes used 10.0 % of the CPUs" in disturbed[0]
    assert "500 involuntary switches/s" in disturbed[1]


def test_neighbour_share_is_unknown_for_less_than_a_second() -> None:
    """The system counts in steps of 10 ms. One step on each of 4 CPUs would be a share of 5 % in 0.2 s."""
    found = contention(START, after(0.9, own=1.8, others=0.8), threads=2)
    assert found.neighbour_share is None
    assert why_contended(found) == []
    assert contention(START, after(1.0, own=2.0, others=0.8), threads=2).neighbour_share == pytest.approx(0.2)


def test_neighbour_share_is_never_negative() -> None:
    assert contention(START, after(10, own=20, others=-0.03), threads=2).neighbour_share == 0


def test_busy_time_is_that_of_allowed_cpus_without_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU 0 is idle, CPU 1 is busy, CPU 2 is not allowed. User time includes guest time; stolen time counts as busy."""

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
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    found = snapshot()
    assert (found.busy_s, found.cpus) == (38.0, 2)


def test_own_time_excludes_child_processes() -> None:
    """A child process counts as a neighbour, because its time is not our own."""
    before = snapshot()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    after_child = snapshot()
    assert after_child.own_s - before.own_s < 0.5 * (after_child.wall_s - before.wall_s)


WORK = "import subprocess, sys, time\nwhile time.process_time() < 0.2: pass\n"
GRANDCHILD = WORK + "print(flush=True)\nsys.stdin.read()"


def test_own_time_can_include_descendants_that_run_or_have_ended() -> None:
    """Child and grandchild use 0.2 s each. The system cuts each of their user and system times to steps of 10 ms."""
    before = snapshot(os.getpid())
    child = WORK + f"subprocess.run([sys.executable, '-c', {GRANDCHILD!r}])"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", child], **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert snapshot(os.getpid()).own_s - before.own_s > 0.3, "both run"
    assert snapshot(os.getpid()).own_s - before.own_s > 0.3, "both have ended"


BUSY_NEIGHBOUR = """
import json, os, subprocess, sys, time
from engine.measure.contention import contention, snapshot, why_contended
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
print(json.dumps(found.model_dump() | {"reasons": why_contended(found)}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin a process to a CPU")
def test_busy_loop_on_the_same_cpu_is_detected() -> None:
    """Two processes compete for one CPU, so each gets about half of it, or less on a busy machine."""
    child = subprocess.run(
        [sys.executable, "-c", BUSY_NEIGHBOUR], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    found = json.loads(child.stdout)
    assert found["cpu_share"] < cpu.LEAST_CPU_SHARE
    assert found["neighbour_share"] > cpu.MOST_NEIGHBOUR_SHARE
    assert len(found["reasons"]) >= 2
