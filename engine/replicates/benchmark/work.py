"""What a fresh process of a benchmark does."""

from collections.abc import Iterator

from engine.models import library
from engine.models.variants import Builder
from engine.replicates.benchmark.job import Job
from engine.replicates.messages import Report

__all__ = ["Job", "work"]


def work(job: Job, build: Builder = library.build) -> Iterator[Report]:
    """Whatever the job is."""
    if job.search:
        from engine.replicates.benchmark import search

        return search.largest(job, build)
    if job.spec.purpose == "performance":
        from engine.replicates.benchmark import timed

        return timed.measure(job, build)
    from engine.replicates.benchmark import agreement

    return agreement.compare(job, build)
