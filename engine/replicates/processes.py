"""Start the fresh processes of a job one after the other, and go on when one of them dies."""

import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path

from engine.replicates import child
from engine.replicates.child import Ended
from engine.replicates.messages import Job, Measured, Report
from engine.results import Parts, Progress

CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
Found = dict[str, Measured]
"""Results by label."""
Reports = Callable[[Job, Mapping[str, str], float], Generator[Report | Ended | None]]


class Processes:
    """Runs jobs in fresh processes, in one folder, until one deadline. Yields progress, so that the caller can stop."""

    def __init__(
        self,
        folder: Path,
        deadline: float,
        reports: Reports = child.reports,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the settings of all jobs. folder: temporary, for compilers' caches. deadline: by time.monotonic().

        reports: runs one job in another process. environment: additional variables for the processes.
        """
        self._folder = folder
        self._deadline = deadline
        self._reports = reports
        self._variables = dict(environment or {})
        self._caches = folder
        self.spent = dict.fromkeys(("starts_s", "compilation_s", "warmup_s", "sampled_s"), 0.0)
        """Seconds of each part of a timing since `parts` was last called."""

    def parts(self, seconds: float) -> Parts:
        """Return the parts of a timing that took `seconds` in total, which they add up to. The next timing begins."""
        rounded = {name: round(value, 3) for name, value in self.spent.items()}
        self.spent = dict.fromkeys(self.spent, 0.0)
        return Parts(**rounded, rest_s=round(max(0.0, seconds - sum(rounded.values())), 3))

    def repeat(self, job: Job, progress: Progress) -> Generator[Progress, None, list[Found]]:
        """Yield progress, and return the results of as many processes as the spec requests. Progress counts them.

        A subject that fails in one process is left out of the following ones.
        """
        found: list[Found] = []
        failures: Found = {}
        baseline = job.all_labels[0]
        for number in range(job.spec.processes):
            process_job = job.model_copy(update={"process": number, "skip": tuple(failures)})
            where = f"{job.title}, process {number + 1} of {job.spec.processes}"
            process_progress = progress.model_copy(update={"note": where, "done": progress.done + number})
            found.append((yield from self._run_once(process_job, process_progress)))
            failures |= {label: one for label, one in found[-1].items() if one.status != "ok"}
            needs_smaller_job = job.decays and baseline in failures and failures[baseline].status == "out_of_memory"
            if needs_smaller_job or len(failures) == len(job.all_labels):
                break
        return found

    def _run_once(self, job: Job, progress: Progress) -> Generator[Progress, None, Found]:
        """Yield progress, and return the results of one process.

        If a subject ends the process while it is prepared, another process is started without it. The subject's error
        is the one that the process has reported, or else how the process ended.
        """
        failures: Found = {}
        where = progress.note
        while True:
            found: Found = dict(failures)
            attempt = job.model_copy(update={"skip": (*job.skip, *failures)})
            if not attempt.labels:
                return found
            current, ended = "", None
            with closing(self.reports(attempt)) as reports:
                for report in reports:
                    if isinstance(report, Ended):
                        ended = report
                    elif report and report.measured:
                        found[report.measured.label] = report.measured
                    elif report and report.doing:
                        current = report.label
                        progress = progress.model_copy(update={"note": f"{where}; {report.doing}"})
                    yield progress
            missing = [label for label in attempt.labels if label not in found]
            if ended is None or not missing:
                return found
            if current not in attempt.labels or ended.status == "timeout":
                return found | {label: job.failed(label, ended.status, ended.error) for label in missing}
            failures = {label: one for label, one in found.items() if one.status != "ok"}
            failures.setdefault(current, job.failed(current, ended.status, ended.error))
            if job.decays and current == job.all_labels[0] and failures[current].status == "out_of_memory":
                return failures

    def reports(self, job: Job) -> Generator[Report | Ended | None]:
        """Yield a process's reports, and add up its times. The first of a job fills the caches that the others use."""
        if job.process == 0:
            self._caches = Path(tempfile.mkdtemp(dir=self._folder))
        caches = {name: str(self._caches / part) for name, part in CACHES.items()}
        since, starting = time.monotonic(), True
        with closing(self._reports(job, caches | self._variables, self._deadline)) as reports:
            for report in reports:
                if report:
                    if starting:
                        self.spent["starts_s"] += time.monotonic() - since
                    since, starting = time.monotonic(), False
                    if isinstance(report, Report):
                        self.spent["warmup_s"] += report.warmup_s
                        self.spent["sampled_s"] += report.sampled_s
                        if one := report.measured:
                            compiling_ms = (one.compile_ms or 0.0) + (one.compile_again_ms or 0.0)
                            self.spent["compilation_s"] += one.loading_s + compiling_ms / 1e3
                yield report
        self.spent["starts_s"] += time.monotonic() - since  # ending a process takes time as well
