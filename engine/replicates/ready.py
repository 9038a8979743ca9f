"""Something made ready to be timed: captured, called once, its memory measured."""

import gc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil
import torch

from engine.measure import timing
from engine.measure.peak import give_back_workspaces, peak
from engine.measure.timing import Phase, Stopwatch
from engine.models.built import out_of_memory
from engine.replicates.messages import Measured, described
from engine.results import Status

Run = TypeVar("Run")
Settings = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Ready:
    """A subject that has made its first call."""

    label: str
    phases: Mapping[str, Phase]
    settings: Settings
    measured: Measured
    unreported: tuple[str, ...] = ()
    """Phases that are no part of what is timed, such as clearing gradients."""


@dataclass(frozen=True)
class Held:
    """Memory that a process and its device hold for other subjects, in MB."""

    device: str
    resident_mb: float
    allocated_mb: float

    @classmethod
    def now(cls, device: str, resident_mb: float) -> "Held":
        """resident_mb: what the process held before any of them."""
        gc.collect()
        give_back_workspaces(device)
        return cls(device, max(0.0, resident() - resident_mb), _allocated(device))

    def own(self, device_mb: float | None, process_mb: float | None) -> dict[str, float | None]:
        """Peaks less what is held for others, as fields of a Measured."""
        return {
            "device_peak_mb": None if device_mb is None else device_mb - self.allocated_mb,
            "process_peak_mb": None if process_mb is None else process_mb - self.resident_mb,
        }


@dataclass(frozen=True)
class FirstCall:
    """Seconds and peak memory of capturing a subject and calling it for the first time."""

    phases: Mapping[str, Phase]
    capture_ms: float
    first_ms: float
    settling_ms: float
    """What the calls after the first took that belong to compiling."""
    captured_mb: float | None
    device_mb: float | None
    process_mb: float | None

    @property
    def compile_ms(self) -> float:
        """Until it is compiled, first call included."""
        return self.capture_ms + self.first_ms + self.settling_ms


def first_call(
    capture: Callable[[], Run],
    phases_of: Callable[[Run], Mapping[str, Phase]],
    stopwatch: Stopwatch,
    device: str,
    *,
    settling: int = 0,
) -> FirstCall:
    """To be called under the settings of what is captured.

    settling: calls after the first that still compile, as TorchScript does once it has seen what it is called with,
    or record CUDA graphs.
    """
    runs: list[Run] = []
    took: list[float] = []
    captured_mb, _ = peak(
        lambda: took.append(timing.first_call(stopwatch, [lambda: runs.append(capture())])), device, calls=1
    )
    phases = phases_of(runs[0])
    first_ms = timing.first_call(stopwatch, list(phases.values()))
    settling_ms = sum(timing.first_call(stopwatch, list(phases.values())) for _ in range(settling))
    device_mb, process_mb = peak(lambda: once(phases), device)
    return FirstCall(phases, took[0], first_ms, settling_ms, captured_mb, device_mb, process_mb)


def once(phases: Mapping[str, Phase]) -> None:
    """Make one call."""
    for phase in phases.values():
        phase()


def load_libraries(device: str) -> None:
    """Run one small convolution and matrix product, forward and backward.

    What a device's libraries do once in a process (contexts, handles, threads) is then no part of any first call.
    """
    with suppress(Exception):  # whatever a device cannot do is reported of each model
        images = torch.ones(1, 8, 8, 8, device=device, requires_grad=True)
        features = torch.nn.functional.conv2d(images, torch.ones(8, 8, 3, 3, device=device)).flatten(1)
        (features @ torch.ones(288, 8, device=device)).sum().backward()  # type: ignore[no-untyped-call]


def failure(label: str, error: Exception) -> Measured:
    """Return the report of what did not work."""
    status: Status = "out_of_memory" if out_of_memory(error) else "error"
    return Measured(label=label, status=status, error=described(error))


def release() -> None:
    """Give back what something that failed held."""
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
