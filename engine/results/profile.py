"""Rows of profile runs, which count what models cost."""

import re
from typing import ClassVar, Literal

from pydantic import Field

from engine.results.base import DeviceName, Row
from engine.specs.base import Frozen

Work = Literal["counted", "free", "minor", "unknown"]
"""The treatment of an operator in a count:

counted: it has a formula.
free: it is a view, a copy or elementwise.
minor: it has no formula, but touches each element a small fixed number of times (normalisation, softmax, reductions,
pooling, resampling).
unknown: it has no formula and its work is not bounded, which makes the count incomplete.
"""
LOW_MEMORY = (
    "memory of training is too low for a CPU, where LSTMs keep 2 to 3 times as much for the backward pass as is counted"
)
"""A note of rows whose `training_peak_mb` or `kept_mb` is too low. docs/decisions.md says why it is not counted."""


class OperatorCount(Frozen):
    """All calls of one operator kind in one forward pass of the whole batch."""

    operator: str
    calls: int
    flops: int
    """FLOPs of the whole batch, 2 per multiply-add."""
    activations: int
    """Number of elements in counted outputs, as fvcore defines activations."""
    read_bytes: int
    written_bytes: int
    work: Work


class Difference(Frozen):
    """A disagreement of two counters on one operator, in GMACs per sample, and its explanation."""

    operator: str
    torch_gmacs: float
    fvcore_gmacs: float
    explanation: str


class ProfileRow(Row):
    """The costs of one model at one image size."""

    kind: ClassVar[str] = "profile"

    family: str = ""
    counter: Literal["torch", "fvcore", "both"]
    device: DeviceName
    """The requested device."""
    device_used: DeviceName = ""
    """The device used. It differs from `device` only after out-of-memory on an accelerator; `notes` then says so."""
    batch_size: int
    precision: str
    image_size: str = ""
    """The image size used: `224` or `224x320` (height x width in pixels)."""
    test_size: str = ""
    """The publisher's test size, at which inference is timed; empty if it is the model's own size."""
    context_length: int | None = None
    num_classes: int | None = None
    """Classes of a timm model's head as requested; None: the model's own."""
    in_chans: int | None = None
    """Channels of the images as requested; None: the model's own, or 3 for a module of the user's own."""
    model_kwargs: str = ""
    """Keywords that the model was built with, as a JSON object; empty for none."""

    image_width: int | None = None
    text_width: int | None = None
    embed_dim: int | None = None

    mparams: float | None = None
    image_mparams: float | None = None
    text_mparams: float | None = None
    other_mparams: float | None = None
    trainable_mparams: float | None = None
    mbuffers: float | None = None

    gmacs: float | None = None
    image_gmacs: float | None = None
    text_gmacs: float | None = None
    other_gmacs: float | None = None
    gflops: float | None = None
    image_gflops: float | None = None
    text_gflops: float | None = None
    other_gflops: float | None = None
    macts: float | None = None
    image_macts: float | None = None
    text_macts: float | None = None
    other_macts: float | None = None

    fvcore_gmacs: float | None = None
    fvcore_image_gmacs: float | None = None
    fvcore_text_gmacs: float | None = None
    fvcore_macts: float | None = None
    fvcore_image_macts: float | None = None
    fvcore_text_macts: float | None = None
    fvcore_unsupported: dict[str, int] = Field(default_factory=dict)
    """Calls of the operators that fvcore skipped, by operator."""
    differences: tuple[Difference, ...] = ()

    traffic_mb: float | None = None
    """MB that all operators read and write in one forward pass of the batch if nothing is cached or fused."""
    intensity: float | None = None
    """FLOPs per byte of traffic."""
    weights_mb: float | None = None
    inference_peak_mb: float | None = None
    live_mb: float | None = None
    """MB per image, or image and text, of the inference peak of 64 without the weights; only in the catalogue."""
    training_peak_mb: float | None = None
    """MB of weights, gradients, AdamW's two moments and saved activations; only on request."""
    kept_mb: float | None = None
    """MB per image, or image and text, that a training step keeps from its forward to its backward pass.

    In `precision`, which is float32 in the catalogue. Only on request, and in the catalogue, which divides the MB of 64
    images."""

    complete: bool | None = None
    """False if work of unknown size is missing from the counts; `notes` names it. None without counts."""
    uncounted: dict[str, int] = Field(default_factory=dict)
    """Calls of every operator without a formula that is neither a view nor elementwise: minor and unknown work."""
    operators: tuple[OperatorCount, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    """Seconds that the count took."""
    detail_file: str = ""
    """Name of the artifact with the table of modules; empty without one. For rows of older runs use `detail_name`."""


class ModuleCount(Frozen):
    """One module of a model with all its submodules: an entry of the detail artifact (JSON list, outermost first)."""

    path: str
    """Dotted path of the module; "" for the whole model."""
    type: str
    mparams: float
    gmacs: float
    macts: float
    calls: int
    output: str = ""
    """Shape of the (first) tensor returned by the last call, with the batch: `1×64×112×112`."""
    kernel: str = ""
    """Kernel size of a convolution or a pooling: `7×7`."""
    stride: str = ""


def detail_name(library: str, model: str, image_size: str = "", batch_size: int | None = None) -> str:
    """Return the path of a model's table of modules in its run's folder.

    In older runs, the path has no image size and no batch size: leave both out.
    """
    suffix = f"@{image_size}@{batch_size}" if batch_size else ""
    return f"detail/{re.sub(r'[^A-Za-z0-9._-]', '_', f'{library}__{model}')}{suffix}.json"
