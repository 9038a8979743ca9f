"""Rows of timings of models: one per model, batch size, mode and variant."""

from typing import ClassVar, Literal

from engine.results.timed import TimedRow
from engine.specs.benchmark import CONDITIONS
from engine.specs.fields.building import OPTIONS

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
"""Results of a check with purpose accuracy, as PyTorch's dynamo benchmark names them."""


class BenchmarkRow(TimedRow):
    """The speed of one model as one variant, at one batch size."""

    kind: ClassVar[str] = "benchmark"
    comparable: ClassVar[tuple[str, ...]] = (
        *("mode", "tower", "device", "host", "threads", "batch_size", "image_size", "context_length", "precision"),
        *("dtype", "autocast_dtype", "tf32", "memory_format", *CONDITIONS, "optimizer", *OPTIONS),
    )

    date: str = ""
    """Start of the earlier attempt that timed this row; empty if the run's last attempt did."""
    family: str = ""
    tower: str = "whole"
    """Part of an open_clip model: `whole`, `image` or `text`."""
    purpose: Literal["performance", "accuracy", "tolerance"] = "performance"
    mode: Literal["inference", "training"]
    variant: str
    """The label of the variant, as `engine.specs.Variant.label` returns it."""
    batch_size_requested: str
    """The requested value: a number, several such as `1,16`, `recorded`, `listed`, `sweep` or `max`."""
    batch_size: int
    """The batch size used. After out-of-memory it is smaller than requested, and `notes` says so."""
    image_size: str = ""
    context_length: int | None = None
    num_classes: int | None = None
    """Classes of a timm model's head as requested; None: the model's own."""
    in_chans: int | None = None
    """Channels of the images as requested; None: the model's own, or 3 for a module of the user's own."""
    model_kwargs: str = ""
    """Keywords that the model was built with, as a JSON object; empty for none."""
    precision: str
    """The requested precision, such as `amp`."""
    dtype: str = ""
    """Data type of the weights, such as `float32`."""
    autocast_dtype: str = ""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    deterministic: bool = False
    cache: Literal["hot", "cold"] = "hot"
    optimizer: str = ""
    """Optimizer of a training step; empty for inference."""

    samples_per_s: float | None = None
    """Images (or texts, or pairs) per second: batch size / back-to-back time on an accelerator, / latency on a CPU."""
    optimizer_ms: float | None = None
    """Time of the optimizer in a training step, in ms."""

    joules_per_sample: float | None = None
    accuracy: AccuracyStatus | None = None
    gradient_deviation: float | None = None
    """Deviation of all gradients after the last step, taken as one vector: norm(result - reference) / norm(reference).

    The reference is computed in float64, or is eager's result where the model does not run in float64. Only for
    training with purpose accuracy.
    """
    max_deviation: float | None = None
    """Largest abs(result - reference) / (1 + abs(reference)); only for purpose tolerance."""
    mean_deviation: float | None = None
    """Mean of these deviations, like their standard deviation below."""
    std_deviation: float | None = None

    mparams: float | None = None
    gmacs: float | None = None
    """GMACs of a forward pass per sample, counted at this image size; None where the count is incomplete."""
    gflops: float | None = None
    macts: float | None = None
    intensity: float | None = None
    """FLOPs per byte of traffic of the whole batch's forward pass, operator by operator as eager mode runs it.

    A compiler that fuses operators moves fewer bytes, so its actual intensity is higher.
    """
