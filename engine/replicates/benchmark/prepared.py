"""Prepare a benchmark's variants for timing: build and capture a model, call it once, measure its memory."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from engine import suite
from engine.measure.stopwatch import Stopwatch
from engine.models import steps, variants
from engine.models.built import Built, Wanted
from engine.models.variants import Builder, Numbers
from engine.replicates import compiling
from engine.replicates.benchmark.job import Job
from engine.replicates.graphs import fresh_counters, graphs, notes_on
from engine.replicates.ready import Held, Ready, first_call
from engine.specs import Variant, format_image_size

HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Made:
    """A variant after its first call, with its model and number types."""

    variant: Variant
    built: Built
    types: Numbers
    ready: Ready


def numbers(job: Job, variant: Variant) -> tuple[Numbers, tuple[str, ...]]:
    """Return the number types of a variant, and notes.

    Like PyTorch's benchmark, a few models of the suite run in amp where half precision is requested.
    """
    assert variant.precision is not None, "a spec's plan names every precision"
    precision: str = variant.precision
    notes: tuple[str, ...] = ()
    if precision in HALF and suite.is_in(job.model, suite.FORCED_AMP):
        notes = (f"run in amp_{precision} instead of {precision}, as PyTorch's benchmark does with this model",)
        precision = f"amp_{precision}"
    return variants.numbers(precision, job.spec.device), notes


def wanted(job: Job, types: Numbers) -> Wanted:
    """Return the description of a job's model and inputs. timm models have their test size only for inference."""
    spec = job.spec
    return Wanted.of(
        spec,
        job.model,
        device=spec.device,
        batch_size=job.batch_size,
        image_size=spec.image_size,
        precision=types.weights,
        test_size=job.mode == "inference",
        tower=spec.tower,
        seed=spec.seed,
    )


def build_variant(job: Job, variant: Variant, build: Builder) -> tuple[Built, Numbers, tuple[str, ...]]:
    """Return a fresh model for a variant, its number types and notes. Errors: Refused, and those of building."""
    types, notes = numbers(job, variant)
    built = variants.build(job.model, wanted(job, types), variant, training=job.mode == "training", build=build)
    return built, types, notes


def switches(job: Job, types: Numbers, variant: Variant) -> Callable[[], AbstractContextManager[None]]:
    """Return a function that makes the context of global settings in which a variant runs."""
    spec = job.spec
    return partial(
        variants.switches,
        types,
        training=job.mode == "training",
        cudnn_benchmark=spec.cudnn_benchmark,
        deterministic=spec.reproducible,
        strict=spec.deterministic,
        freezing=variant.freezing,
    )


def prepare(job: Job, variant: Variant, stopwatch: Stopwatch, build: Builder, resident_mb: float) -> Made:
    """Build a variant, make its first call, and measure its memory without what the process holds for other variants.

    resident_mb: memory of the process before its first variant. Errors: any error of the model.
    """
    training = job.mode == "training"
    compiles = variant.execution == "compile"
    loading_s = compiling.own_caches(variant.label, job.spec.device, variant.backend) if compiles else 0.0
    held, settling = Held.now(job.spec.device, resident_mb), variants.settling_calls(variant, job.spec.device)
    built, types, notes = build_variant(job, variant, build)
    settings = switches(job, types, variant)
    counters = fresh_counters(compiles=compiles)
    with settings():
        _, phases, measured = first_call(
            variant.label,
            lambda: variants.runner(variant, built, types, job.spec.device),
            lambda run: steps.phases(job.model, built.model, run, training=training, kind=job.spec.optimizer),
            stopwatch,
            held,
            compiles=variant.execution != "eager",
            settling=settling,
            records_graphs=variant.execution == "cudagraphs" or settling > 0,
        )
    if settling and counters["inductor"]["cudagraph_skips"]:
        notes = (*notes, "torch runs compiled graphs of this variant without CUDA graphs; the log says why")
    row = describe(job, built, types) | graphs(counters)
    measured = measured.model_copy(update={"loading_s": loading_s, "row": row, "notes": notes + notes_on(counters)})
    return Made(variant, built, types, Ready(variant.label, phases, settings, measured))


def describe(job: Job, built: Built, types: Numbers) -> dict[str, Any]:
    """Return the fields of a row that describe the model and how it was run."""
    return {
        "family": built.family,
        "image_size": format_image_size(built.image_size) if _has_images(built) else "",
        "context_length": built.context_length if len(built.inputs) > 1 or not _has_images(built) else None,
        "dtype": types.weights,
        "autocast_dtype": types.autocast,
        "tf32": types.tf32,
        "threads": torch.get_num_threads(),
    }


def _has_images(built: Built) -> bool:
    return built.inputs[0].dim() == 4
