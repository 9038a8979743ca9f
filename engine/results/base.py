"""Types that all results share: events of a task, machines, and the base class of rows."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from engine.model_name import ModelName
from engine.specs.base import Closed, Frozen, numbered

DeviceName = Annotated[str, AfterValidator(numbered)]
"""A device under its canonical name: rows stored with `cuda` are read as `cuda:0`."""

Status = Literal["ok", "error", "out_of_memory", "timeout"]
MEMORY_WORDS = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "failed to allocate", "not enough memory"),
    "bad_alloc",
    # status names of cuBLAS, cuDNN, cuSOLVER and cuFFT, such as CUBLAS_STATUS_ALLOC_FAILED
    *("alloc_failed", "allocation_failed"),
    # messages of cuDNN when no algorithm gets the workspace it needs
    *("was unable to find an engine to execute this computation", "unable to find a valid cudnn algorithm"),
    "is killed by signal: killed",  # a DataLoader process; in practice the kernel killed it because memory ran out
)
"""Parts of error messages that mean out of memory, in lower case."""


def tells_of_memory(message: str) -> bool:
    """Return whether an error message says that memory ran out. Few libraries have an error class for this."""
    return any(words in message.lower() for words in MEMORY_WORDS)


class Event(Closed):
    """The base class of everything that a task yields."""


class Progress(Event):
    """The progress of a run; `total` is None while it is unknown."""

    done: int
    total: int | None = None
    note: str = ""
    seconds_left: float | None = None
    """Seconds left as the task estimates them; None if done / total is the best estimate."""


class Metric(Event):
    """One point of a curve."""

    step: int
    name: str
    value: float


class Artifact(Event):
    """A file that the task has written. `name` is its path below the run's folder."""

    name: str
    kind: str


class Environment(Event):
    """The host, device and versions that produced the rows after this event."""

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
    """Versions of packages, torch with its build (`2.11.0+cu130`), and of torch's cuda, cudnn and triton."""
    gpu: dict[str, str] = Field(default_factory=dict)
    """Settings of an NVIDIA GPU that affect times, as far as NVML reports them, such as {"power limit": "700 W"}."""
    variables: str = ""
    """Environment variables that change how torch computes, such as `OMP_WAIT_POLICY=passive`, separated by blanks."""
    tf32: bool = False
    """True if the process that makes the rows computes float32 products in TF32. Timings have a field per row."""
    seed: int | None = None
    settings: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Values used for settings that were empty in the request, and the SHA-256 of the files in the request."""
    date: str
    """UTC, ISO 8601."""


class Device(Frozen):
    """One device of a machine, under the name that specs use."""

    name: str
    """Name of the device, such as `cpu`, `cuda:0` or `mps`."""
    model: str
    memory_gb: float | None = None
    driver: str = ""
    bf16: bool = False
    """True if an accelerator computes bfloat16 natively."""
    count: int = 1
    """Runs, or processes of a training, that can have such a device at the same time on a cluster."""
    nodes: int = 1
    """Nodes of a cluster that have such a device."""


class Machine(Frozen):
    """A host as found by its last probe. It lets processes without torch refuse an absent device."""

    host: str
    platform: str
    cpu: str
    threads: int
    memory_gb: float
    devices: tuple[Device, ...]
    cores: int | None = None
    """Number of physical cores; None if the system does not report it."""
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
        """Return the qualified name of the model."""
        return ModelName.of(self.library, self.model)
