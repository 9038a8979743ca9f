"""Time all subjects of a job in one process: prepare them one after the other, then time them in turns."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from engine.measure import gpu_watch, timing
from engine.measure.plan import Plan, Session, Subject
from engine.measure.stopwatch import Stopwatch
from engine.replicates.messages import Job, Measured, Report, error_text
from engine.replicates.ready import Ready, failure, once, release
from engine.replicates.summary import BACK_TO_BACK
from engine.words import plural

ENERGY_S = 1.0
"""Seconds of calls in a separate loop, during which a GPU's energy counter is read."""


def measure(
    job: Job,
    stopwatch: Stopwatch,
    plan: Plan,
    prepare: Callable[[str], Ready | Measured],
    *,
    flush: Callable[[], object] | None = None,
    afterwards: Callable[[Ready, Measured], Iterator[Report | Measured]] | None = None,
) -> Iterator[Report]:
    """Yield progress and one result per label of the job. A failure is a result, too.

    The latency of all prepared subjects is timed and, on an accelerator with hot caches, also calls back to back.

    prepare: prepares a subject, or returns a result if it must not be timed. afterwards: called in the first process
    for each timed subject, after all are timed; it yields reports and a new result.
    """
    ready: list[Ready] = []
    for place, label in enumerate(job.labels):
        yield Report(doing=f"{label}: first call", label=label)
        try:
            prepared = prepare(label)
        except Exception as error:  # noqa: BLE001 - models may raise any error, which becomes their row
            prepared = failure(label, error)
        if isinstance(prepared, Ready):
            row = prepared.measured.row | {"first_call_after": job.labels[:place]}
            ready.append(replace(prepared, measured=prepared.measured.model_copy(update={"row": row})))
            continue
        yield Report(measured=prepared)  # before `release`, which fails where an error has broken the device's context
        release()
        if job.decays and prepared.status == "out_of_memory" and label == job.all_labels[0]:
            return  # all subjects run again in a smaller job
    if not ready:
        return
    yield Report(doing="timing")
    device = job.spec.device
    subjects = [Subject(one.label, one.phases, one.settings) for one in ready]
    if device != "cpu" and flush is None:
        subjects += [
            Subject(_queued(one.label), {BACK_TO_BACK: partial(once, one.phases)}, one.settings, queued=True)
            for one in ready
        ]
    session = timing.measure(
        subjects,
        stopwatch,
        plan,
        flush=flush,
        threads=torch.get_num_threads() if device == "cpu" else None,  # with a GPU, the CPU only waits
        gpu=gpu_watch.watch(device),
    )
    yield Report(warmup_s=session.warmup_seconds, sampled_s=session.sampled_seconds)
    # all results before the first `afterwards`, which may compile again
    done = [(subject, _measured(subject, session, device)) for subject in ready]
    for subject, measured in done:
        if afterwards and measured.status == "ok" and job.process == 0:
            for found in afterwards(subject, measured):
                if isinstance(found, Report):
                    yield found
                else:
                    measured = found
        yield Report(measured=measured)


def _queued(label: str) -> str:
    return f"{label}, back to back"


def observations(session: Session) -> dict[str, Any]:
    """Return the load of the machine during a session, as fields of Measured."""
    return {
        "contention": session.contention,
        "neighbours": dict(session.neighbours),
        "foreign": gpu_watch.foreign(session.gpu),
        "throttled": gpu_watch.throttling(session.gpu),
    }


def _measured(subject: Ready, session: Session, device: str) -> Measured:
    if error := session.failed.get(subject.label):
        return failure(subject.label, error)
    timed = session.timed[subject.label]
    try:
        with subject.settings():
            joules = gpu_watch.joules(lambda: once(subject.phases), device, ENERGY_S)
    except Exception as error:  # noqa: BLE001 - as above
        return failure(subject.label, error)
    queued_error = session.failed.get(_queued(subject.label))
    notes = (f"not timed back to back: {error_text(queued_error)}",) if queued_error else ()
    cut = (f"sampling was cut off after {plural(len(timed.samples_ms), 'sample')}",) if timed.cut_off else ()
    reported = {name: ms for name, ms in timed.phases.items() if name not in subject.unreported}
    return subject.measured.model_copy(
        update={
            "timed": replace(timed, phases=reported),
            "back_to_back": session.timed.get(_queued(subject.label)),
            "joules_per_call": joules,
            **observations(session),
            "notes": (*subject.measured.notes, *cut, *notes, *gpu_watch.notes(device, session.gpu)),
        }
    )
