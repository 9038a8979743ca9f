"""Time all variants of one model in one process, in turns."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.measure import trace
from engine.measure.plan import Plan
from engine.measure.stopwatch import Stopwatch, first_call_ms, flusher, stopwatch_for
from engine.models import library, steps, variants
from engine.models.built import one_line
from engine.models.variants import Builder
from engine.replicates import compiling, side_by_side
from engine.replicates.benchmark.job import Job
from engine.replicates.benchmark.prepared import Made, prepare, wanted
from engine.replicates.messages import Measured, Report
from engine.replicates.ready import Ready, load_libraries, resident
from engine.results import trace_name
from engine.specs import Variant

Counts = dict[tuple[str, bool], dict[str, float | None]]
"""Fields of a row with counts, by type of weights and whether branches are merged."""
Added = tuple[dict[str, Any], tuple[str, ...]]
"""Fields of a row, and notes."""


def measure(job: Job, build: Builder) -> Iterator[Report]:
    """Yield progress and the result of each variant.

    The first process also counts FLOPs and parameters. If it is the only one, it also compiles a second time.
    """
    spec = job.spec
    stopwatch = stopwatch_for(spec.device)
    library.load(job.model)  # before the first variant, whose memory would include it
    load_libraries(spec.device)
    resident_mb = resident()
    by_label = {variant.label: variant for variant in spec.plan}
    made: dict[str, Made] = {}
    counts: Counts = {}
    traces: dict[str, Added] = {}

    def ready(label: str) -> Ready:
        made[label] = prepare(job, by_label[label], stopwatch, build, resident_mb)
        return made[label].ready

    def afterwards(ready: Ready, measured: Measured) -> Iterator[Report | Measured]:
        if job.traces and not traces:  # all variants at once: `_compile_again` makes torch forget what it has compiled
            for label, one in made.items():
                yield Report(doing=f"{label}: recording a trace")
                traces[label] = _trace(job, one.ready, job.traces)
        traced, notes = traces.get(ready.label, ({}, ()))
        yield Report(doing=f"{ready.label}: counting")
        counted, more_notes = _counts(job, made[ready.label], counts, build)
        row, notes = measured.row | traced | counted, (*measured.notes, *notes, *more_notes)
        measured = measured.model_copy(update={"row": row, "notes": notes})
        yield _compile_again(measured, job, made[ready.label], stopwatch)

    return side_by_side.measure(
        job,
        stopwatch,
        Plan(
            min_samples=spec.floor_samples,
            min_seconds=spec.floor_seconds,
            max_seconds=spec.max_seconds or math.inf,
            seed=spec.seed + job.process,
        ),
        ready,
        flush=flusher(spec.device) if spec.cache == "cold" else None,
        afterwards=afterwards,
    )


def _trace(job: Job, ready: Ready, folder: Path) -> Added:
    """Record a trace of a few calls, after all samples. folder: where traces are written."""
    name = trace_name(job.model.library, job.model.model, job.mode, job.batch_size, ready.label)
    try:
        with ready.settings():
            slowest = trace.record(ready.phases, job.spec.device, folder.parent / name)
    except Exception as error:  # noqa: BLE001 - profilers fail in their own ways; the timing stands without a trace
        return {}, (f"no trace: {one_line(error)}",)
    notes = () if slowest else (f"the profiler saw no kernels of {job.spec.device}",)
    return {"trace_file": name, "slowest": [one.model_dump() for one in slowest]}, notes


def _counts(job: Job, made: Made, counts: Counts, build: Builder) -> Added:
    """Return parameters, FLOPs, activations and intensity. counts: those of earlier variants, added to."""
    key = made.types.weights, made.variant.reparameterized
    if key not in counts:
        try:
            counts[key] = _count(job, made, build)
        except Exception as error:  # noqa: BLE001 - models may raise any error; the timing is valid without a count
            return {}, (f"not counted: {one_line(error)}",)
    unknown = {"intensity": None} if made.types.autocast else {}  # the types of traffic are only known when it runs
    return counts[key] | unknown, ()


def _count(job: Job, made: Made, build: Builder) -> dict[str, float | None]:
    """Return counts per sample of an eager forward pass at the timed sizes, with branches merged as in the variant."""
    from engine.measure.counting import flops

    eager = Variant(reparameterized=made.variant.reparameterized)
    description = replace(wanted(job, made.types), device="meta", seed=None)
    built = variants.build(job.model, description, eager, training=False, build=build)
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
        "intensity": counted.intensity,
    }


def _compile_again(measured: Measured, job: Job, made: Made, stopwatch: Stopwatch) -> Measured:
    """Add the time of a second compilation, if no second process measures it."""
    if made.variant.execution != "compile" or job.spec.processes > 1:
        return measured
    torch.compiler.reset()
    compiling.own_caches(made.variant.label, job.spec.device, made.variant.backend)
    training = job.mode == "training"
    try:
        with made.ready.settings():
            run = variants.runner(made.variant, made.built, made.types, job.spec.device)
            phases = steps.phases(job.model, made.built.model, run, training=training, kind=job.spec.optimizer)
            calls = 1 + variants.settling_calls(made.variant, job.spec.device)
            again_ms = sum(first_call_ms(stopwatch, list(phases.values())) for _ in range(calls))
    except Exception as error:  # noqa: BLE001 - as above; the first timing is valid
        note = f"not compiled a second time: {one_line(error)}"
        return measured.model_copy(update={"notes": (*measured.notes, note)})
    return measured.model_copy(update={"compile_again_ms": again_ms})
