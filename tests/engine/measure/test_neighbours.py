"""The processes that disturb a timing, by name and share of the CPUs."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.measure import contention
from engine.measure.contention import busiest
from engine.measure.plan import Timed
from engine.replicates.benchmark import rows
from engine.replicates.benchmark.rows import Outcome
from engine.replicates.messages import Measured
from engine.results import Contention
from engine.specs import BenchmarkSpec


def test_busiest_processes_have_their_share_of_cpu_time() -> None:
    """Shares are of 40 s of CPU time: 10 s on 4 CPUs."""
    before = {(1, 0.0): ("python", 5), (2, 0.0): ("python", 1), (3, 0.0): ("gone", 9)}
    after = {
        (1, 0.0): ("python", 9),
        (2, 0.0): ("python", 5),
        (3, 7.0): ("new", 4),  # another process had this pid before
        (4, 0.0): ("idle", 0.3),
        (5, 7.0): ("least", 0.5),
        (6, 7.0): ("most", 20),
    }
    assert busiest(before, after, 10, 4) == pytest.approx({"most": 0.5, "python": 0.2, "new": 0.1})
    assert list(busiest(before, after, 10, 4)) == ["most", "python", "new"]
    assert busiest(before, {(4, 0.0): ("idle", 0.3)}, 10, 4) == {}
    assert busiest(before, after, 0.9, 4) == {}, "too short for the 10 ms steps of the system"


@pytest.mark.slow
def test_busy_process_is_found_by_name() -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:

        def neighbour_only() -> contention.Snapshot:
            return {key: process for key, process in contention.processes_now().items() if key[0] == neighbour.pid}

        before, begun = neighbour_only(), time.monotonic()
        while not (found := busiest(before, neighbour_only(), time.monotonic() - begun, 1)):
            time.sleep(0.2)
    finally:
        neighbour.kill()
        neighbour.wait()
    (name,) = found
    assert name.startswith("python")


@pytest.mark.skipif(sys.platform != "linux", reason="the expected length is that of Linux")
def test_process_names_show_nothing_of_the_command_line(tmp_path: Path) -> None:
    """Command lines can hold secrets, and psutil completes long names from them."""
    program = tmp_path / "a-name-of-many-words"
    program.symlink_to(shutil.which("sleep") or "/bin/sleep")
    process = subprocess.Popen(["a-name-of-many-words password=hunter2", "60"], executable=program)
    try:
        names = [name for key, (name, _) in contention.processes_now().items() if key[0] == process.pid]
    finally:
        process.kill()
        process.wait()
    assert names == ["a-name-of-many-"]


def test_contended_row_lists_the_busiest_processes() -> None:
    busy = Contention(cpu_share=0.5, neighbour_share=0.6, switches_per_s=1)
    timed = Timed(rounds=(0, 1), phases={"forward": (1.0, 1.0)}, calls=(1, 1))
    fields = {"timed": timed, "contention": busy}
    found = [
        Measured(label="eager", **fields, neighbours={"ffmpeg": 0.4, "python": 0.1}),
        Measured(label="eager", **fields, neighbours={"python": 0.5}),
    ]
    spec = BenchmarkSpec(models="timm:toy", batch_size=2)
    common = {"library": "timm", "model": "toy", "device": "cpu", "batch_size_requested": "2"}
    processes = tuple({item.label: item} for item in found)
    (row,) = rows.rows(spec, common, Outcome("inference", 2, processes))
    assert "contended" in row.flags
    assert row.neighbours == {"python": 0.5, "ffmpeg": 0.4}
    assert "busiest others: python 50.0 %, ffmpeg 40.0 % of the CPUs" in row.notes
    calm = [item.model_copy(update={"contention": None}) for item in found]
    (row,) = rows.rows(spec, common, Outcome("inference", 2, tuple({item.label: item} for item in calm)))
    assert not any("busiest" in note for note in row.notes), "processes are listed only if they disturbed the timing"
