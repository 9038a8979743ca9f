"""What all results share: events of a task, machines, and the base class of rows."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from engine.specs.base import numbered
from engine.specs.model_name import ModelName

DeviceName = Annotated[str, AfterValidator(numbered)]
"""A device under its one name: rows stored as `cuda` are read as `cuda:0`."""

Status = Literal["ok", "error", "out_of_memory", "timeout"]
MEMORY_WORDS = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "failed to allocate", "not enough memory"),
    "bad_alloc",
    # states of cuBLAS, cuDNN, cuSOLVER and cuFFT, such as CUBLAS_STATUS_ALLOC_FAILED
    *("alloc_failed", "allocation_failed"),
    # cuDNN, when no algorithm gets the workspace it needs
    *("was unable to find an engine to execute this computation", "unable to find a valid cudnn algorithm"),
    "is killed by signal: killed",  # a process of a DataLoader, in practice by the kernel when memory has run out
)
"""Parts of messages, in lower case."""


def tells_of_memory(message: str) -> bool:
    """Return whether an error's message says that memory ran out. Few libraries have an error class for it."""
    return any(words in message.lower() for words in MEMORY_WORDS)


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
    """The host, device and versions with which the rows that follow were made."""

    host: str
    platform: str
    python: str
    cpu: str
    threads: int
    memory_gb: float
    device: DeviceName
    device_name: str
    driver: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of packages, torch with its build (`2.11.0+cu130`), and of what torch is built with: cuda, cudnn, triton."""
    gpu: dict[str, str] = Field(default_factory=dict)
    """Settings of an NVIDIA GPU on which times depend, such as {"power limit": "700 W"}; what NVML tells of them."""
    tf32: bool = False
    """Whether the process that makes the rows would compute float32 products in TF32; a timing's rows say their own."""
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
    bf16: bool = False
    """Whether an accelerator computes bfloat16 natively."""


class Machine(BaseModel):
    """A host, as its last probe found it. Lets the light side refuse an absent device without torch."""

    model_config = ConfigDict(frozen=True)

    host: str
    platform: str
    cpu: str
    threads: int
    memory_gb: float
    devices: tuple[Device, ...]
    cores: int | None = None
    """Physical cores, where the system tells."""
    caches: dict[str, str] = Field(default_factory=dict)
    """Sizes by name, such as {"L1d": "48 KiB", "L2": "1 MiB", "L3": "32 MiB"}."""
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

    @property
    def name(self) -> ModelName:
        """The qualified name of the model."""
        return ModelName.of(self.library, self.model)
