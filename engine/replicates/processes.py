"""The fresh processes of one model, one after the other: the batch size they end at, and what is done when one dies."""

import os
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path

from engine.replicates import child
from engine.replicates.child import Ended
from engine.replicates.combine import Outcome, failed
from engine.replicates.messages import Job, Measured, Report
from engine.results import Progress
from engine.specs import BenchmarkSpec
from engine.specs.benchmark import SEARCH_END, Mode

CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
Found = dict[str, Measured]
Reports = Callable[[Job, Mapping[str, str], float], Generator[Report | Ended | None]]


def decayed(batch_size: int) -> int:
    """The next smaller of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, ... as timm's benchmark steps down; 0 below 1."""
    powers = [2**power for power in range(batch_size.bit_length())]
    return max((size for size in (*powers, *(3 * power // 2 for power in powers[1:])) if size < batch_size), default=0)


class Processes:
    """All that is done for one model. Waiting yields progress, if an unchanged one: that gives leave to stop."""

    def __init__(
        self, spec: BenchmarkSpec, model: str, folder: Path, deadline: float, reports: Reports = child.reports
    ) -> None:
        """folder: temporary, for compilers' caches. deadline: by time.monotonic(). reports: does one job elsewhere."""
        self.spec = spec
        self.model = model
        self.folder = folder
        self.deadline = deadline
        self.reports = reports
        self.exhausted = False
        """Whether memory or time has run out, so that a larger batch need not be tried."""
        self._baseline = spec.plan[0].label
        self._caches = folder

    def outcome(self, mode: Mode, size: int, progress: Progress) -> Generator[Progress, None, Outcome]:
        """What all processes have measured, at this batch size or, after out-of-memory, at a smaller one.

        size: 0 for the largest that fits.
        """
        notes: list[str] = []
        if size == 0:
            size = yield from self._largest(mode, notes, progress)
        decays = self.spec.batch_size != "sweep"
        asked = size
        while True:
            found = yield from self._processes(mode, size, decays and size > 1, progress)
            statuses = {process[self._baseline].status for process in found if self._baseline in process}
            timed_out = any(each.status == "timeout" for process in found for each in process.values())
            if "out_of_memory" in statuses and decays and size > 1 and not timed_out:
                size = decayed(size)
                continue
            self.exhausted = self.exhausted or timed_out or "out_of_memory" in statuses
            if size != asked:
                notes.append(f"batch size {size} instead of {asked}, which ran out of memory")
            return Outcome(mode, size, tuple(found), tuple(notes))

    def _processes(
        self, mode: Mode, size: int, decays: bool, progress: Progress
    ) -> Generator[Progress, None, list[Found]]:
        found: list[Found] = []
        failures: Found = {}
        for number in range(self.spec.processes):
            job = Job(
                spec=self.spec,
                model=self.model,
                mode=mode,
                batch_size=size,
                process=number,
                skip=tuple(failures),
                decays=decays,
                parent=os.getpid(),
            )
            where = f"{self.model}: {mode}, batch {size}, process {number + 1} of {self.spec.processes}"
            found.append((yield from self._process(job, progress.model_copy(update={"note": where}))))
            failures |= {label: each for label, each in found[-1].items() if each.status != "ok"}
            baseline = failures.get(self._baseline)
            if (baseline and baseline.status == "out_of_memory" and decays) or len(failures) == len(self.spec.plan):
                break
        return found

    def _process(self, job: Job, progress: Progress) -> Generator[Progress, None, Found]:
        """One repetition. A variant whose preparation ends the process is left out of another that is started."""
        failures: Found = {}
        while True:
            found: Found = dict(failures)
            attempt = job.model_copy(update={"skip": (*job.skip, *failures)})
            labels = [variant.label for variant in self.spec.plan if variant.label not in attempt.skip]
            if not labels:
                return found
            at, ended = "", None
            with closing(self.reports(attempt, self._environment(job), self.deadline)) as heard:
                for each in heard:
                    if isinstance(each, Ended):
                        ended = each
                    elif each and each.measured:
                        found[each.measured.variant] = each.measured
                    elif each:
                        at = each.variant
                        progress = progress.model_copy(update={"note": f"{_where(progress)}; {each.doing}"})
                    yield progress
            if ended is None:
                return found
            if at in labels and ended.status != "timeout":
                failures = {label: one for label, one in found.items() if one.status != "ok"}
                failures[at] = failed(at, ended.status, ended.error, self.spec)
                if job.decays and at == self._baseline and ended.status == "out_of_memory":
                    return failures
                continue
            missing = [label for label in labels if label not in found]
            return found | {label: failed(label, ended.status, ended.error, self.spec) for label in missing}

    def _environment(self, job: Job) -> dict[str, str]:
        """The first process compiles into empty caches, the others find what it has left there."""
        if job.process == 0:
            self._caches = Path(tempfile.mkdtemp(dir=self.folder))
        found = {name: str(self._caches / part) for name, part in CACHES.items()}
        if self.spec.reproducible:
            found["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it, cuBLAS refuses to be deterministic
        return found

    def _largest(self, mode: Mode, notes: list[str], progress: Progress) -> Generator[Progress, None, int]:
        """The largest batch size that the baseline runs at, to within a sixteenth; 1 when there is none."""
        limit = self.spec.max_batch_size or SEARCH_END
        fits, fails, why = 0, None, ""
        while True:
            job = Job(
                spec=self.spec, model=self.model, mode=mode, batch_size=limit, search=(fits, fails), parent=os.getpid()
            )
            tried, ended = 0, None
            with closing(self.reports(job, self._environment(job), self.deadline)) as heard:
                for each in heard:
                    if isinstance(each, Ended):
                        ended = each
                    elif each:
                        tried, fits, fails = each.trying or tried, each.fits or fits, each.fails or fails
                        why = each.doing if each.fails else why
                        progress = progress.model_copy(update={"note": f"{self.model}: {mode}, trying batch {tried}"})
                    yield progress
            if ended and ended.status == "out_of_memory" and tried > fits:
                fails, why = tried, ended.error
                continue
            if fits == 0:
                return 1  # which fails again when it is timed, and says why
            notes.append(
                f"{fits} fit, {fails} did not: {why}" if fails else f"{fits} fit, and no more were to be tried"
            )
            return fits


def _where(progress: Progress) -> str:
    return progress.note.partition("; ")[0]
