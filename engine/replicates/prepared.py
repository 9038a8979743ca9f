"""A job's variants, each made ready to run: built, captured, called once, its memory measured."""

import gc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch

from engine import suite
from engine.measure import timing
from engine.measure.peak import give_back_workspaces, peak
from engine.measure.timing import Phase, Stopwatch
from engine.models import steps, variants
from engine.models.built import Built, Wanted, out_of_memory
from engine.models.variants import Builder, Numbers
from engine.replicates.messages import Job, Measured, described
from engine.results import Status
from engine.specs import Variant, format_image_size

HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Ready:
    """A variant that has made its first call."""

    variant: Variant
    built: Built
    found: Numbers
    phases: Mapping[str, Phase]
    settings: Callable[[], AbstractContextManager[None]]
    measured: Measured


def plan(job: Job) -> list[Variant]:
    """The variants that are left to do."""
    return [variant for variant in job.spec.plan if variant.label not in job.skip]


def numbers(job: Job, variant: Variant) -> tuple[Numbers, tuple[str, ...]]:
    """Of a variant, with notes; the suite runs a few models in amp where a half precision is asked for."""
    assert variant.precision is not None, "a spec's plan names every precision"
    precision: str = variant.precision
    notes: tuple[str, ...] = ()
    if precision in HALF and suite.is_in(job.model, suite.FORCED_AMP):
        notes = (f"run in amp_{precision} instead of {precision}, as PyTorch's benchmark does with this model",)
        precision = f"amp_{precision}"
    return variants.numbers(precision, job.spec.device), notes


def wanted(job: Job, found: Numbers) -> Wanted:
    """The model and inputs of a job. A timm model is at its test size for inference, at its train size for training."""
    spec = job.spec
    return Wanted(
        device=spec.device,
        batch_size=job.batch_size,
        image_size=spec.image_size,
        context_length=spec.context_length,
        precision=found.weights,
        test_size=job.mode == "inference",
        tower=spec.tower,
        seed=spec.seed,
    )


def switches(job: Job, found: Numbers) -> Callable[[], AbstractContextManager[None]]:
    """What is to be set globally while a variant runs."""
    spec = job.spec
    return partial(
        variants.switches,
        found,
        training=job.mode == "training",
        cudnn_benchmark=spec.cudnn_benchmark,
        deterministic=spec.reproducible,
        strict=spec.deterministic,
    )


def prepare(job: Job, variant: Variant, stopwatch: Stopwatch, build: Builder, resident_mb: float) -> Ready:
    """Build a variant, make its first call, then measure its memory, less what the process held for other variants.

    resident_mb: what the process held before its first variant. Errors: whatever the model raises.
    """
    training = job.mode == "training"
    gc.collect()
    give_back_workspaces(job.spec.device)
    held_mb = max(0.0, resident() - resident_mb)
    allocated_mb = _allocated(job.spec.device)
    found, notes = numbers(job, variant)
    variants.check(variant, job.spec.device)
    built = variants.build(job.model, wanted(job, found), variant, training=training, build=build)
    settings = switches(job, found)
    counters = fresh_counters(variant)
    with settings():
        runs: list[Callable[[], Any]] = []
        capture = lambda: runs.append(variants.runner(variant, built, found, job.spec.device))  # noqa: E731
        took: list[float] = []
        captured_mb, _ = peak(lambda: took.append(timing.first_call(stopwatch, [capture])), job.spec.device, calls=1)
        phases = steps.phases(job.model, built.model, runs[0], training=training, kind=job.spec.optimizer)
        first_ms = timing.first_call(stopwatch, list(phases.values()))
        device_mb, process_mb = peak(lambda: once(phases), job.spec.device)
    if variant.execution == "cudagraphs" and device_mb is not None and captured_mb is not None:
        device_mb = max(device_mb, captured_mb)  # a graph keeps what its capture took, and replays allocate nothing
    measured = Measured(
        variant=variant.label,
        first_call_ms=first_ms,
        compile_ms=None if variant.execution == "eager" else took[0] + first_ms,
        device_peak_mb=None if device_mb is None else device_mb - allocated_mb,
        process_peak_mb=None if process_mb is None else process_mb - held_mb,
        row=describe(job, built, found) | graphs(counters),
        notes=notes,
    )
    return Ready(variant, built, found, phases, settings, measured)


def once(phases: Mapping[str, Phase]) -> None:
    """One call."""
    for phase in phases.values():
        phase()


def describe(job: Job, built: Built, found: Numbers) -> dict[str, Any]:
    """What a row says of the model and of how it was run."""
    return {
        "family": built.family,
        "image_size": format_image_size(built.image_size) if _has_images(built) else "",
        "context_length": built.context_length if len(built.inputs) > 1 or not _has_images(built) else None,
        "dtype": found.weights,
        "autocast_dtype": found.autocast,
        "tf32": found.tf32,
        "threads": torch.get_num_threads(),
    }


def _has_images(built: Built) -> bool:
    return built.inputs[0].dim() == 4


def failure(variant: Variant, error: Exception) -> Measured:
    """The report of a variant that did not work."""
    status: Status = "out_of_memory" if out_of_memory(error) else "error"
    return Measured(variant=variant.label, status=status, error=described(error))


def release() -> None:
    """Give back what a failed variant held."""
    gc.collect()
    if torch.backends.mps.is_available():  # whose allocator torch.accelerator does not know
        torch.mps.empty_cache()
    elif torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def resident() -> float:
    """Memory of this process, in MB."""
    return float(psutil.Process().memory_info().rss / 1e6)


def _allocated(device: str) -> float:
    """Memory this process has allocated on an accelerator, in MB; 0 where torch keeps no such account."""
    if device == "cpu":
        return 0.0
    try:
        return torch.accelerator.memory_allocated(device) / 1e6
    except RuntimeError:  # mps: there is no peak to take it from either
        return 0.0


def fresh_counters(variant: Variant) -> Any:
    """What torch.compile counts of graphs, from zero; None of what does not use it."""
    if variant.execution != "compile":
        return None
    from torch._dynamo.utils import counters

    counters.clear()
    return counters


def graphs(counters: Any) -> dict[str, int]:
    """What torch.compile made of a model since its counters were fresh, as fields of a row."""
    if counters is None:
        return {}
    return {
        "calls_captured": counters["stats"]["calls_captured"],
        "unique_graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "unique_graph_breaks": len(counters["graph_break"]),
    }
