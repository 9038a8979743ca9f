"""The fresh processes of what is timed side by side, one after the other, and what is done when one dies."""

import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path

from engine.replicates import child
from engine.replicates.child import Ended
from engine.replicates.messages import Job, Measured, Report
from engine.results import Progress

CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
Found = dict[str, Measured]
"""By label."""
Reports = Callable[[Job, Mapping[str, str], float], Generator[Report | Ended | None]]


class Processes:
    """Where and until when jobs are done. Waiting yields progress, if an unchanged one: that gives leave to stop."""

    def __init__(
        self,
        folder: Path,
        deadline: float,
        reports: Reports = child.reports,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """folder: temporary, for compilers' caches. deadline: by time.monotonic(). reports: does one job elsewhere.
        environment: variables that the processes get."""
        self._folder = folder
        self._deadline = deadline
        self._begin = reports
        self._own = dict(environment or {})
        self._caches = folder

    def repeat(self, job: Job, progress: Progress) -> Generator[Progress, None, list[Found]]:
        """The job in as many processes as its spec asks for. What has failed in one is in none that follow."""
        found: list[Found] = []
        failures: Found = {}
        baseline = job.all_labels[0]
        for number in range(job.spec.processes):
            each = job.model_copy(update={"process": number, "skip": tuple(failures)})
            where = f"{job.title}, process {number + 1} of {job.spec.processes}"
            found.append((yield from self._once(each, progress.model_copy(update={"note": where}))))
            failures |= {label: one for label, one in found[-1].items() if one.status != "ok"}
            smaller = job.decays and baseline in failures and failures[baseline].status == "out_of_memory"
            if smaller or len(failures) == len(job.all_labels):
                break
        return found

    def _once(self, job: Job, progress: Progress) -> Generator[Progress, None, Found]:
        """One repetition. What ends the process while it is prepared is left out of another that is started."""
        failures: Found = {}
        while True:
            found: Found = dict(failures)
            attempt = job.model_copy(update={"skip": (*job.skip, *failures)})
            if not attempt.labels:
                return found
            at, ended = "", None
            with closing(self.reports(attempt)) as heard:
                for each in heard:
                    if isinstance(each, Ended):
                        ended = each
                    elif each and each.measured:
                        found[each.measured.label] = each.measured
                    elif each:
                        at = each.label
                        progress = progress.model_copy(update={"note": f"{_where(progress)}; {each.doing}"})
                    yield progress
            if ended is None:
                return found
            if at in attempt.labels and ended.status != "timeout":
                failures = {label: one for label, one in found.items() if one.status != "ok"}
                failures[at] = job.failed(at, ended.status, ended.error)
                if job.decays and at == job.all_labels[0] and ended.status == "out_of_memory":
                    return failures
                continue
            missing = [label for label in attempt.labels if label not in found]
            return found | {label: job.failed(label, ended.status, ended.error) for label in missing}

    def reports(self, job: Job) -> Generator[Report | Ended | None]:
        """What one process says. The first of several compiles into empty caches, the others find what it has left."""
        if job.process == 0:
            self._caches = Path(tempfile.mkdtemp(dir=self._folder))
        caches = {name: str(self._caches / part) for name, part in CACHES.items()}
        return self._begin(job, caches | self._own, self._deadline)


def _where(progress: Progress) -> str:
    return progress.note.partition("; ")[0]
