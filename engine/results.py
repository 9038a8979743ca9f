"""What comes back: the events a task yields, and the rows among them, typed per kind.

Units stand in names: `gflops` 1e9 FLOPs, `gmacs` 1e9 multiply-adds (2 FLOPs each), `macts` 1e6 elements,
`mparams` 1e6 parameters, `_mb` 1e6 bytes. Counts are per sample (one image, one text), so that they compare
across batch sizes; traffic and memory are those of the whole batch.
"""

import re
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["ok", "error", "out_of_memory"]


class Event(BaseModel):
    """Anything a task yields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Progress(Event):
    """How far a run has come; `total` is None while unknown."""

    done: int
    total: int | None = None
    note: str = ""


class Metric(Event):
    """One point of a curve."""

    step: int
    name: str
    value: float


class Artifact(Event):
    """A file the task has written; `name` is its path below the run's folder."""

    name: str
    kind: str


class Environment(Event):
    """Where and with what the rows that follow were made."""

    host: str
    platform: str
    python: str
    cpu: str
    threads: int
    memory_gb: float
    device: str
    device_name: str
    driver: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    tf32: bool = False
    seed: int | None = None
    date: str
    """UTC, ISO 8601."""


class Device(BaseModel):
    """One device of a machine, under the name a spec asks for it by."""

    model_config = ConfigDict(frozen=True)

    name: str
    """`cpu`, `cuda:0`, `mps`, ..."""
    model: str
    memory_gb: float | None = None
    driver: str = ""


class Machine(BaseModel):
    """What a host is, as its last probe found it; lets the light side refuse an absent device without torch."""

    model_config = ConfigDict(frozen=True)

    host: str
    platform: str
    cpu: str
    threads: int
    memory_gb: float
    devices: tuple[Device, ...]
    versions: dict[str, str] = Field(default_factory=dict)
    date: str
    """UTC, ISO 8601."""


class Row(Event):
    """One result. A failed model is a row with its status and error, never a gap."""

    kind: ClassVar[str]
    library: str
    model: str
    status: Status = "ok"
    error: str = ""


Work = Literal["counted", "free", "minor", "unknown"]
"""What a count makes of an operator: it has a formula; it is a view, a copy or elementwise, which are free; it has no
formula, but touches each element a fixed few times (normalisation, softmax, reductions, pooling, resampling); it has no
formula and could be anything, which makes the count incomplete.
"""


class OperatorCount(BaseModel):
    """All calls of one operator kind in one forward pass of the whole batch."""

    model_config = ConfigDict(frozen=True)

    operator: str
    calls: int
    flops: int
    """For the whole batch, 2 per multiply-add."""
    activations: int
    """Elements of counted outputs, fvcore's definition."""
    read_bytes: int
    written_bytes: int
    work: Work


class Difference(BaseModel):
    """Where two counters disagree on one operator, in GMACs per sample, and what explains it."""

    model_config = ConfigDict(frozen=True)

    operator: str
    torch_gmacs: float
    fvcore_gmacs: float
    explanation: str


class ProfileRow(Row):
    """What one model costs at one image size."""

    kind: ClassVar[str] = "profile"

    family: str = ""
    counter: Literal["torch", "fvcore", "both"]
    device: str
    """As requested."""
    device_used: str = ""
    """Differs from `device` only after out-of-memory on an accelerator, and then `notes` says so."""
    batch_size: int
    precision: str
    image_size: str = ""
    """`224` or `224x320` (height x width in pixels), as used."""
    context_length: int | None = None

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
    """Operators fvcore skipped, with their calls."""
    differences: tuple[Difference, ...] = ()

    traffic_mb: float | None = None
    """Bytes all operators read and write in one forward pass of the batch, were nothing cached or fused."""
    intensity: float | None = None
    """FLOPs per byte of traffic."""
    weights_mb: float | None = None
    inference_peak_mb: float | None = None
    training_peak_mb: float | None = None
    """Weights, gradients, AdamW's two moments and saved activations; only when asked for."""

    complete: bool = True
    """False: work of unknown size is missing from the figures; `notes` names it."""
    uncounted: dict[str, int] = Field(default_factory=dict)
    """Calls of every operator without a formula that is neither a view nor elementwise: minor and unknown work."""
    operators: tuple[OperatorCount, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    """What counting took."""


class ModuleCount(BaseModel):
    """One module of a model, all below it included: a line of the detail artifact (JSON list, outermost first)."""

    model_config = ConfigDict(frozen=True)

    path: str
    """Dotted, "" for the whole model."""
    type: str
    mparams: float
    gmacs: float
    macts: float
    calls: int


def detail_name(library: str, model: str) -> str:
    """Where the per-module table of a model lies, below its run's folder."""
    return f"detail/{re.sub(r'[^A-Za-z0-9._-]', '_', f'{library}__{model}')}.json"


def load(kind: str, payload: dict[str, Any]) -> Row:
    """The row of `kind` from its stored payload."""
    for row in Row.__subclasses__():
        if row.kind == kind:
            return row.model_validate(payload)
    raise LookupError(f"no kind of row is called {kind!r}")
