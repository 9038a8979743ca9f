"""Time recurrent layers: the task of a RecurrentSpec.

This process takes no measurements. It starts a fresh one per repetition, waits, and makes rows from their reports.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.measure import environment
from engine.replicates import summary
from engine.replicates.processes import Processes
from engine.replicates.recurrent import rows
from engine.replicates.recurrent.work import Job
from engine.results import Event, Progress, samples_name
from engine.specs import RecurrentSpec


def run(spec: RecurrentSpec, run_dir: Path) -> Iterator[Event]:
    """Yield the environment, then per family and size the file of samples, and a row per runner. Errors: Refused."""
    machine = environment.current(spec.device, spec.seed)
    yield machine
    progress = Progress(done=0, total=sum(comparison.processes for comparison in spec.comparisons))
    for comparison in spec.comparisons:
        progress = progress.model_copy(update={"note": comparison.summary})
        yield progress
        file, started = _samples_name(spec, comparison), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="vitals-", ignore_cleanup_errors=True) as folder:
            processes = Processes(Path(folder), started + comparison.time_limit)
            found = yield from processes.repeat(Job(spec=comparison, parent=os.getpid()), progress)
        common = {
            "device": spec.device,
            "device_name": machine.device_name,
            "threads": spec.threads or environment.threads(),
            "seconds": (seconds := round(time.monotonic() - started, 3)),
            "parts": processes.parts(seconds),
        }
        columns: dict[str, Any] = {"constants": {}, "label": "runner", "phases": rows.PHASES}
        for artifact in summary.write_samples(run_dir, file, found, set(), **columns):
            common["samples_file"] = file
            yield artifact
        yield from rows.rows(comparison, common, found)
        progress = progress.model_copy(update={"done": progress.done + comparison.processes})
    yield progress.model_copy(update={"note": ""})


def _samples_name(spec: RecurrentSpec, comparison: RecurrentSpec) -> str:
    """Return the name of a comparison's file of samples. It contains the swept size if its family has several."""
    swept = sum(other.family == comparison.family for other in spec.comparisons) > 1
    return samples_name(comparison.family, *((spec.sweep, getattr(comparison, spec.sweep)) if swept else ()))
