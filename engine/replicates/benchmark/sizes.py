"""The batch size of a model's timing: as requested, smaller after out-of-memory, or the largest that fits."""

import os
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from engine.replicates.benchmark.job import Job
from engine.replicates.benchmark.rows import Outcome
from engine.replicates.child import Ended
from engine.replicates.processes import Processes
from engine.results import Progress
from engine.specs import BenchmarkSpec, ModelName
from engine.specs.benchmark import Mode
from engine.specs.fields.batch import SEARCH_END


def decayed(batch_size: int) -> int:
    """Return the next smaller of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, ..., as timm's benchmark does; 0 below 1."""
    powers = [2**power for power in range(batch_size.bit_length())]
    return max((size for size in (*powers, *(3 * power // 2 for power in powers[1:])) if size < batch_size), default=0)


class Sizes:
    """Runs one model at its batch sizes."""

    def __init__(self, spec: BenchmarkSpec, model: ModelName, processes: Processes, traces: Path | None = None) -> None:
        """traces: the folder where traces are written; None without them."""
        self.spec = spec
        self.model = model
        self.exhausted = False
        """True if memory or time has run out, so that no larger batch is tried."""
        self._processes = processes
        self._traces = traces
        self._baseline = spec.plan[0].label

    def outcome(self, mode: Mode, size: int | None, progress: Progress) -> Generator[Progress, None, Outcome]:
        """Yield progress, and return the measurements at this batch size or, after out-of-memory, at a smaller one.

        size: None for the largest that fits.
        """
        notes: list[str] = []
        if size is None:
            size = yield from self._largest(mode, notes, progress)
        decays = not self.spec.sweeps
        first_size = size
        while True:
            job = self._job(mode, size, decays=decays and size > 1, traces=self._traces)
            found = yield from self._processes.repeat(job, progress)
            statuses = {process[self._baseline].status for process in found if self._baseline in process}
            timed_out = any(measured.status == "timeout" for process in found for measured in process.values())
            if "out_of_memory" in statuses and decays and size > 1 and not timed_out:
                size = decayed(size)
                continue
            self.exhausted = self.exhausted or timed_out or "out_of_memory" in statuses
            if size != first_size:
                notes.append(f"batch size {size} instead of {first_size}, which ran out of memory")
            return Outcome(mode, size, tuple(found), tuple(notes))

    def _job(self, mode: Mode, size: int, **options: Any) -> Job:
        return Job(spec=self.spec, model=self.model, mode=mode, batch_size=size, parent=os.getpid(), **options)

    def _largest(self, mode: Mode, notes: list[str], progress: Progress) -> Generator[Progress, None, int]:
        """Yield progress, and return the largest batch size at which the baseline runs, to within a sixteenth.

        1 if none fits. notes: gets a note about the limit.
        """
        limit = self.spec.max_batch_size or SEARCH_END
        fits, fails, reason = 0, None, ""
        while True:
            tried, ended = 0, None
            with closing(self._processes.reports(self._job(mode, limit, bounds=(fits, fails)))) as reports:
                for report in reports:
                    if isinstance(report, Ended):
                        ended = report
                    elif report:
                        tried, fits, fails = report.trying or tried, report.fits or fits, report.fails or fails
                        reason = report.doing if report.fails else reason
                        progress = progress.model_copy(update={"note": f"{self.model}: {mode}, trying batch {tried}"})
                    yield progress
            if ended and ended.status != "timeout" and tried:  # a later process goes on from these bounds
                if tried not in (fits, fails):
                    fails, reason = tried, ended.error
                continue
            if fits == 0:
                return 1  # which fails again when it is timed, with the reason
            if fails:
                notes.append(f"{fits} fit, {fails} did not: {reason}")
            elif ended:
                notes.append(f"{fits} fit, and no larger one was finished: {ended.error}")
            else:
                notes.append(f"{fits} fit, and no more were to be tried")
            return fits
