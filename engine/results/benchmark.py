"""Rows of timings of models: one per model, batch size, mode and variant."""

from typing import ClassVar, Literal

from engine.results.timed import TimedRow

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


class BenchmarkRow(TimedRow):
    """How fast one model is in one way, at one batch size."""

    kind: ClassVar[str] = "benchmark"
    comparable: ClassVar[tuple[str, ...]] = (
        *("mode", "tower", "device", "threads", "batch_size", "image_size", "context_length", "precision", "dtype"),
        *("autocast_dtype", "tf32", "memory_format", "cudnn_benchmark", "deterministic", "cache", "optimizer"),
    )

    family: str = ""
    tower: str = "whole"
    purpose: Literal["performance", "accuracy", "tolerance"] = "performance"
    mode: Literal["inference", "training"]
    variant: str
    """As `engine.specs.Variant.label` writes it."""
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
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    deterministic: bool = False
    cache: Literal["hot", "cold"] = "hot"
    optimizer: str = ""
    """Of a training step."""

    samples_per_s: float | None = None
    """Images (or texts, or pairs) per second: batch size / back-to-back time on an accelerator, / latency on a CPU."""
    optimizer_ms: float | None = None
    """Beside a training step's other parts."""

    joules_per_sample: float | None = None
    accuracy: AccuracyStatus | None = None
    gradient_deviation: float | None = None
    """Of all gradients after the last step, as one vector: norm(result - reference) / norm(reference); reference: in
    float64, or eager's where the model does not run in it. Purpose accuracy, in training."""
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
    """FLOPs per byte of traffic of the whole batch's forward pass, operator by operator as eager runs it. A compiler
    that fuses operators moves less memory: its own intensity is larger."""
