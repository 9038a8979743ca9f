"""What timing a model gives: one row per model, batch size, mode and variant."""

import re
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from engine.results.base import Row

Flag = Literal["single_process", "unstable", "contended", "drifting", "throttled", "below_floor"]
"""What is to be known before quoting a timing.

single_process: one process says nothing of the spread between processes. unstable: the processes' medians differ by
more than 5 %. contended: something else used the CPUs (or the GPU). drifting: the first and last third of the samples
differ by 2 % or more. throttled: the GPU held its clocks back. below_floor: fewer samples, seconds or processes
were asked for than such a result needs.
"""

Verdict = Literal["faster", "slower", "no difference", "undecided", "not comparable"]
"""Of a variant against its baseline. no difference: the interval of the ratio lies within the margin of 2 %.
undecided: it is too wide to tell. not comparable: settings differ that change what is computed; the ratio stands."""

AccuracyStatus = Literal[
    "pass",
    "pass_due_to_skip",
    "fail_accuracy",
    "fail_to_run",
    "OOM",
    "eager_two_runs_differ",
    "model_fail_to_load",
    "eager_fail_to_run",
    "timeout",
]


class Contention(BaseModel):
    """Who else used the CPUs while samples were taken, the worst of all processes."""

    model_config = ConfigDict(frozen=True)

    cpu_share: float
    """CPU time / (wall time x threads): below 0.9 the threads waited, for others or for each other."""
    neighbour_share: float | None
    """What others used of the CPUs we may use; None where the system does not tell."""
    switches_per_s: float | None
    """Involuntary context switches."""


COMPARABLE = (
    *("mode", "tower", "device", "threads", "batch_size", "image_size", "context_length", "precision", "dtype"),
    *("autocast_dtype", "tf32", "memory_format", "cudnn_benchmark", "deterministic", "cache", "optimizer"),
)
"""What two rows must have in common for one to be called faster than the other."""


class BenchmarkRow(Row):
    """How fast one model is in one way, at one batch size."""

    kind: ClassVar[str] = "benchmark"

    family: str = ""
    tower: str = "whole"
    purpose: Literal["performance", "accuracy", "tolerance"] = "performance"
    mode: Literal["inference", "training"]
    variant: str
    """As `engine.specs.Variant.label` writes it."""
    baseline: str = ""
    """The variant that `speedup` and `verdict` refer to; empty for the baseline itself."""
    device: str
    device_name: str = ""
    threads: int | None = None
    batch_size_requested: str
    """As asked: a number, `recorded`, `sweep` or `max`."""
    batch_size: int
    """As used; smaller than asked after out-of-memory, and then `notes` says so."""
    image_size: str = ""
    context_length: int | None = None
    precision: str
    """As asked, such as `amp`."""
    dtype: str = ""
    """Of the weights, such as `float32`."""
    autocast_dtype: str = ""
    tf32: bool = False
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    cudnn_benchmark: bool = False
    deterministic: bool = False
    cache: Literal["hot", "cold"] = "hot"
    optimizer: str = ""
    """Of a training step."""

    latency_ms: float | None = None
    """Median of all samples: time per call, that is per batch."""
    p90_ms: float | None = None
    """From 64 samples on; p95 from 130, p99 from 662."""
    p95_ms: float | None = None
    p99_ms: float | None = None
    mean_ms: float | None = None
    std_ms: float | None = None
    samples_per_s: float | None = None
    """Batch size / median latency: images (or texts, or pairs) per second."""
    forward_ms: float | None = None
    """Medians of a training step's parts."""
    backward_ms: float | None = None
    optimizer_ms: float | None = None
    first_call_ms: float | None = None
    compile_cold_ms: float | None = None
    """Compilation and first call in a process with an empty cache folder."""
    compile_warm_ms: float | None = None
    """The same with the caches that the first process has left."""
    samples: int = 0
    """Of all processes together."""
    calls_per_sample: int | None = None
    """Short calls are timed in blocks of at least 1 ms."""
    loop_ms: float | None = None
    """What the timing loop itself costs per call; it is not subtracted."""
    processes: int = 0
    process_medians_ms: tuple[float, ...] = ()
    spread: float | None = None
    """(largest - smallest) / median of the processes' medians; None of one process."""
    flags: tuple[Flag, ...] = ()
    contention: Contention | None = None

    speedup: float | None = None
    """Median latency of the baseline / of this variant, with its bootstrap interval (99 %)."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: Verdict | None = None
    differs_in: tuple[str, ...] = ()
    """Settings in which this variant differs from its baseline, for which the two are not comparable."""

    device_peak_mb: float | None = None
    """Most memory allocated on the accelerator, in a loop of its own; None on a CPU."""
    process_peak_mb: float | None = None
    """Most resident memory of the process, likewise."""
    joules_per_sample: float | None = None

    calls_captured: int | None = None
    unique_graphs: int | None = None
    graph_breaks: int | None = None
    unique_graph_breaks: int | None = None

    accuracy: AccuracyStatus | None = None
    max_deviation: float | None = None
    """Of abs(result - reference) / (1 + abs(reference)), purpose tolerance."""
    mean_deviation: float | None = None
    std_deviation: float | None = None

    mparams: float | None = None
    gmacs: float | None = None
    """Per sample, of a forward pass, counted at this image size; None where the count is incomplete."""
    gflops: float | None = None
    macts: float | None = None
    intensity: float | None = None
    """FLOPs per byte of traffic of the whole batch's forward pass."""

    samples_file: str = ""
    """The artifact with every sample: process, mode, variant, round, calls, and per phase the ms per call."""
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    """What timing this model took, all its variants and processes together."""

    def differences(self, other: "BenchmarkRow") -> tuple[str, ...]:
        """The settings for which this row and another are not comparable."""
        return tuple(name for name in COMPARABLE if getattr(self, name) != getattr(other, name))


def samples_name(library: str, model: str, batch_size: int) -> str:
    """Where the samples of a model lie, below its run's folder."""
    return f"samples/{re.sub(r'[^A-Za-z0-9._-]', '_', f'{library}__{model}')}__{batch_size}.csv"
