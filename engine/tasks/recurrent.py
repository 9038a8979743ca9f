"""Time recurrent layers: the task of a RecurrentSpec.

This process takes no measurements. It starts a fresh one per repetition, waits, and makes rows from their reports.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from engine.measure import environment
from engine.replicates import summary
from engine.replicates.processes import Processes
from engine.replicates.recurrent import rows
from engine.replicates.recurrent.job import Job
from engine.results import Event, Progress, samples_name
from engine.specs import RecurrentSpec


def run(spec: RecurrentSpec, run_dir: Path) -> Iterator[Event]:
    """Yield the environment, then per family and size the file of samples, and a row per runner.

    Errors: Refused.
    """
    machine = environment.current(spec.device, spec.seed)
    yield machine
    progress = Progress(done=0, total=sum(comparison.processes for comparison in spec.comparisons))
    for comparison in spec.comparisons:
        progress = progress.model_copy(update={"note": comparison.summary})
        yield progress
        yield from _side_by_side(comparison, _samples_name(spec, comparison), run_dir, progress, machine.device_name)
        progress = progress.model_copy(update={"done": progress.done + comparison.processes})
    yield progress.model_copy(update={"note": ""})


def _samples_name(spec: RecurrentSpec, comparison: RecurrentSpec) -> str:
    """Return the name of a comparison's file of samples. It contains the swept size if its family has several."""
    swept = sum(other.family == comparison.family for other in spec.comparisons) > 1
    return samples_name(comparison.family, *((spec.sweep, getattr(comparison, spec.sweep)) if swept else ()))


def _side_by_side(
    spec: RecurrentSpec, file: str, run_dir: Path, progress: Progress, device_name: str
) -> Iterator[Event]:
    """Time all runners of a comparison, and yield its file of samples and its rows.

    spec: one of `RecurrentSpec.comparisons`. file: name of the file of samples, relative to run_dir.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vitals-", ignore_cleanup_errors=True) as folder:
        processes = Processes(Path(folder), started + spec.time_limit)
        found = yield from processes.repeat(Job(spec=spec, parent=os.getpid()), progress)
    common = {
        "device": spec.device,
        "device_name": device_name,
        "threads": spec.threads or environment.threads(),
        "seconds": (seconds := round(time.monotonic() - started, 3)),
        "parts": processes.parts(seconds),
    }
    for artifact in summary.write_samples(
        run_dir, file, found, set(), constants={}, label="runner", phases=rows.PHASES
    ):
        common["samples_file"] = file
        yield artifact
    yield from rows.rows(spec, common, found)
