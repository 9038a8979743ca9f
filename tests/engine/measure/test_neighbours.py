"""Who disturbs a timing: the busiest other processes, by name and share."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.measure import contention
from engine.measure.contention import Process, busiest
from engine.replicates.benchmark import rows
from engine.replicates.benchmark.rows import Outcome
from engine.replicates.messages import Measured
from engine.results import Contention
from engine.specs import BenchmarkSpec


def test_shares_by_hand() -> None:
    """10 s on 4 CPUs: 40 s of CPU time."""
    before = {(1, 0.0): Process("python", 5), (2, 0.0): Process("python", 1), (3, 0.0): Process("gone", 9)}
    after = {
        (1, 0.0): Process("python", 9),
        (2, 0.0): Process("python", 5),
        (3, 7.0): Process("new", 4),  # its id was used before
        (4, 0.0): Process("idle", 0.3),
        (5, 7.0): Process("least", 0.5),
        (6, 7.0): Process("most", 20),
    }
    assert busiest(before, after, 10, 4) == pytest.approx({"most": 0.5, "python": 0.2, "new": 0.1})
    assert list(busiest(before, after, 10, 4)) == ["most", "python", "new"]
    assert busiest(before, {(4, 0.0): Process("idle", 0.3)}, 10, 4) == {}
    assert busiest(before, after, 0.9, 4) == {}, "too short for the system's steps"


@pytest.mark.slow
def test_a_busy_neighbour_is_named() -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:

        def only() -> contention.Snapshot:
            return {key: one for key, one in contention.processes_now().items() if key[0] == neighbour.pid}

        before, begun = only(), time.monotonic()
        while not (found := busiest(before, only(), time.monotonic() - begun, 1)):
            time.sleep(0.2)
    finally:
        neighbour.kill()
        neighbour.wait()
    (name,) = found
    assert name.startswith("python")


@pytest.mark.skipif(sys.platform != "linux", reason="names are cut where Linux cuts them")
def test_of_a_command_line_nothing_is_seen(tmp_path: Path) -> None:
    """A process may write what it likes into its command line, and psutil completes long names from there."""
    program = tmp_path / "a-name-of-many-words"
    program.symlink_to(shutil.which("sleep") or "/bin/sleep")
    process = subprocess.Popen(["a-name-of-many-words password=hunter2", "60"], executable=program)
    try:
        names = [one.name for key, one in contention.processes_now().items() if key[0] == process.pid]
    finally:
        process.kill()
        process.wait()
    assert names == ["a-name-of-many-"]


def test_a_contended_row_says_who_disturbed_it() -> None:
    busy = Contention(cpu_share=0.5, neighbour_share=0.6, switches_per_s=1)
    figures = {"rounds": (0, 1), "phases": {"forward": (1.0, 1.0)}, "calls": (1, 1), "contention": busy}
    found = [
        Measured(label="eager", **figures, neighbours={"ffmpeg": 0.4, "python": 0.1}),
        Measured(label="eager", **figures, neighbours={"python": 0.5}),
    ]
    spec = BenchmarkSpec(models="timm:toy", batch_size=2)
    common = {"library": "timm", "model": "toy", "device": "cpu", "batch_size_requested": "2"}
    processes = tuple({item.label: item} for item in found)
    (row,) = rows.rows(spec, common, Outcome("inference", 2, processes))
    assert "contended" in row.flags
    assert row.neighbours == {"python": 0.5, "ffmpeg": 0.4}
    assert "busiest others: python 50.0%, ffmpeg 40.0% of the CPUs" in row.notes
    calm = [item.model_copy(update={"contention": None}) for item in found]
    (row,) = rows.rows(spec, common, Outcome("inference", 2, tuple({item.label: item} for item in calm)))
    assert not any("busiest" in note for note in row.notes), "whoever was there did not disturb"
