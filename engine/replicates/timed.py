"""Timing all variants of one model in one process, in turns."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from engine.measure import gpu_watch, timing
from engine.measure.gpu_watch import Watched
from engine.measure.timing import Plan, Session, Stopwatch, Subject
from engine.models import library, steps, variants
from engine.models.variants import Builder
from engine.replicates.messages import Job, Measured, Report
from engine.replicates.prepared import Ready, failure, once, plan, prepare, release, resident, wanted

ENERGY_S = 1.0
"""Of calls in a loop of their own, over which a GPU's counter of its energy is read."""


def measure(job: Job, build: Builder) -> Iterator[Report]:
    """All variants prepared, one after the other, and then timed in turns. A failed one is a report like the others."""
    stopwatch = timing.stopwatch(job.spec.device)
    library.load(job.model)  # beforehand, so that it is not taken for memory of the first variant
    resident_mb = resident()
    ready: list[Ready] = []
    for variant in plan(job):
        yield Report(doing=f"{variant.label}: first call", variant=variant.label)
        try:
            ready.append(prepare(job, variant, stopwatch, build, resident_mb))
            continue
        except Exception as error:  # noqa: BLE001 - models are other people's code: whatever fails is that variant's row
            failed = failure(variant, error)
        release()
        yield Report(measured=failed)
        if job.decays and failed.status == "out_of_memory" and variant == job.spec.plan[0]:
            return  # a smaller batch is next, for all of them
    if not ready:
        return
    yield Report(doing="timing")
    session = _session(job, ready, stopwatch)
    counts: dict[str, dict[str, float | None]] = {}
    done = [(each, _measured(each, session, job)) for each in ready]  # before anything is compiled anew
    for each, measured in done:
        if measured.status == "ok" and job.process == 0:
            yield Report(doing=f"{each.variant.label}: counting")
            measured = _again(_counted(measured, job, each, counts, build), job, each, stopwatch)
        yield Report(measured=measured)


def _session(job: Job, ready: list[Ready], stopwatch: Stopwatch) -> Session:
    spec = job.spec
    subjects = [Subject(each.variant.label, each.phases, each.settings) for each in ready]
    floors = Plan(min_samples=spec.floor_samples, min_seconds=spec.floor_seconds, seed=spec.seed + job.process)
    flush = timing.flusher(spec.device) if spec.cache == "cold" else None
    return timing.measure(
        subjects,
        stopwatch,
        floors,
        flush=flush,
        threads=torch.get_num_threads() if spec.device == "cpu" else None,  # with a GPU, the CPU waits: no contention
        gpu=gpu_watch.watch(spec.device),
    )


def _measured(each: Ready, session: Session, job: Job) -> Measured:
    name = each.variant.label
    if error := session.failed.get(name):
        return failure(each.variant, error)
    timed = session.timed[name]
    try:
        with each.settings():
            joules = gpu_watch.joules(lambda: once(each.phases), job.spec.device, ENERGY_S)
    except Exception as error:  # noqa: BLE001 - as above
        return failure(each.variant, error)
    return each.measured.model_copy(
        update={
            "rounds": timed.rounds,
            "phases": dict(timed.phases),
            "calls": timed.calls,
            "loop_ms": timed.loop_ms,
            "gc_runs": timed.gc_runs,
            "joules_per_call": joules,
            "contention": session.contention,
            "foreign": _foreign(session.gpu),
            "throttled": _throttled(session.gpu),
        }
    )


def _foreign(gpu: Watched | None) -> tuple[str, ...]:
    return (f"{gpu.others} other processes were on the GPU",) if gpu and gpu.others else ()


def _throttled(gpu: Watched | None) -> str:
    if gpu is None or not gpu.throttled:
        return ""
    why = f": {', '.join(gpu.reasons)}" if gpu.reasons else ""
    low, high = gpu.clocks_mhz or ("?", "?")
    return f"the GPU held its clocks back, from {high} to {low} MHz{why}"


def _counted(
    measured: Measured, job: Job, each: Ready, counts: dict[str, dict[str, float | None]], build: Builder
) -> Measured:
    """With what the model costs on paper, counted once per type of weights. counts: what has been counted already."""
    weights = each.found.weights
    if weights not in counts:
        try:
            counts[weights] = _count(job, each, build)
        except Exception as error:  # noqa: BLE001 - as above; the timing stands without a count
            note = f"not counted: {' '.join(str(error).split())[:300]}"
            return measured.model_copy(update={"notes": (*measured.notes, note)})
    figures = dict(counts[weights])
    if each.found.autocast:
        figures["intensity"] = None  # its traffic is of two types, and which is not known before it runs
    return measured.model_copy(update={"row": measured.row | figures})


def _count(job: Job, each: Ready, build: Builder) -> dict[str, float | None]:
    """Per sample, of one forward pass without what variants do to it, at the batch and image size that is timed."""
    from engine.measure import flops

    built = build(job.model, replace(wanted(job, each.found), device="meta", seed=None))
    with torch.no_grad():
        counted = flops.count(built.model, built.inputs)
    mparams = sum(parameter.numel() for parameter in built.model.parameters()) / 1e6
    if counted.unknown:
        return {"mparams": mparams}
    return {
        "mparams": mparams,
        "gmacs": counted.flops / job.batch_size / 2e9,
        "gflops": counted.flops / job.batch_size / 1e9,
        "macts": counted.activations / job.batch_size / 1e6,
        "intensity": counted.flops / counted.traffic_bytes if counted.traffic_bytes else None,
    }


def _again(measured: Measured, job: Job, each: Ready, stopwatch: Stopwatch) -> Measured:
    """With the time of a second compilation, when there is no second process to tell it."""
    if each.variant.execution != "compile" or job.spec.processes > 1:
        return measured
    torch.compiler.reset()
    training = job.mode == "training"
    try:
        with each.settings():
            run = variants.runner(each.variant, each.built, each.found, job.spec.device)
            phases = steps.phases(job.model, each.built.model, run, training=training, kind=job.spec.optimizer)
            again_ms = timing.first_call(stopwatch, list(phases.values()))
    except Exception as error:  # noqa: BLE001 - as above; the timing stands
        note = f"not compiled a second time: {' '.join(str(error).split())[:300]}"
        return measured.model_copy(update={"notes": (*measured.notes, note)})
    return measured.model_copy(update={"compile_again_ms": again_ms})
