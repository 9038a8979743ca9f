"""The work of one fresh process of a benchmark: timing, accuracy checks, or finding the largest batch."""

from collections.abc import Iterator

from engine.measure.stopwatch import first_call_ms, stopwatch_for
from engine.models import library, steps, variants
from engine.models.variants import Builder
from engine.replicates.benchmark.job import Job
from engine.replicates.benchmark.prepared import build_variant, switches
from engine.replicates.messages import Report, error_text
from engine.replicates.ready import once, release


def work(job: Job, build: Builder = library.build) -> Iterator[Report]:
    """Run the job and yield its reports."""
    if job.bounds:
        return largest(job, build)
    if job.spec.purpose == "performance":
        from engine.replicates.benchmark import timed

        return timed.measure(job, build)
    from engine.replicates.benchmark import agreement

    return agreement.compare(job, build)


RESOLUTION = 16
"""Stop when the gap between a size that fits and one that fails is at most 1/16 of the size: the exact limit depends on
the memory layout."""


def largest(job: Job, build: Builder) -> Iterator[Report]:
    """Double the batch size until it fails, then halve the gap. Any failure counts as a size that does not fit."""
    assert job.bounds is not None
    fits, fails = job.bounds
    while size := _next(fits, fails, job.batch_size):
        yield Report(trying=size)
        try:
            _try(job.model_copy(update={"batch_size": size}), build)
        except Exception as error:  # noqa: BLE001 - kernels raise various errors for large batches
            fails = size
            report = Report(fails=size, doing=error_text(error))
        else:
            fits = size
            report = Report(fits=size)
        yield report  # before `release`, which fails where an error has broken the device's context
        release()


def _next(fits: int, fails: int | None, limit: int) -> int:
    """Return the next size to try; 0 when the gap is small enough."""
    if fails is None:
        return 0 if fits == limit else min(max(1, 2 * fits), limit)
    return (fits + fails) // 2 if fails - fits > max(1, fits // RESOLUTION) else 0


def _try(job: Job, build: Builder) -> None:
    """Make two calls at the job's batch size. What the first call allocates still takes memory in the second."""
    baseline = job.spec.plan[0]
    training = job.mode == "training"
    built, types, _ = build_variant(job, baseline, build)
    with switches(job, types, baseline)():
        run = variants.runner(baseline, built, types, job.spec.device)
        phases = steps.phases(job.model, built.model, run, training=training, kind=job.spec.optimizer)
        first_call_ms(stopwatch_for(job.spec.device), [lambda: once(phases), lambda: once(phases)])
