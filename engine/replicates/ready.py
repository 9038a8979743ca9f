"""A subject prepared for timing: captured, called once, its memory measured."""

import gc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TypeVar

import psutil
import torch

from engine.measure.peak import allocated_mb, give_back_workspaces, peak
from engine.measure.stopwatch import Phase, Stopwatch, first_call_ms
from engine.models.built import out_of_memory
from engine.replicates.messages import Measured, error_text
from engine.results import Status

Run = TypeVar("Run")
Settings = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Ready:
    """A subject after its first call."""

    label: str
    phases: Mapping[str, Phase]
    settings: Settings
    measured: Measured
    unreported: tuple[str, ...] = ()
    """Phases that are not part of the result, such as clearing gradients."""


@dataclass(frozen=True)
class Held:
    """Memory that a process and its device hold for other subjects, in MB."""

    device: str
    resident_mb: float
    allocated_mb: float

    @classmethod
    def now(cls, device: str, resident_mb: float) -> "Held":
        """Return the memory that is held now. resident_mb: memory of the process before its first subject."""
        gc.collect()
        gc.freeze()  # later collections leave out all libraries' objects, which take 0.25 s each time
        give_back_workspaces(device)
        return cls(device, max(0.0, resident() - resident_mb), allocated_mb(device, peak=False) or 0.0)


def first_call(
    label: str,
    capture: Callable[[], Run],
    phases_of: Callable[[Run], Mapping[str, Phase]],
    stopwatch: Stopwatch,
    held: Held,
    *,
    compiles: bool,
    settling: int = 0,
    records_graphs: bool = False,
) -> tuple[Run, Mapping[str, Phase], Measured]:
    """Capture a subject and call it for the first time, inside its settings.

    Return what was captured, its phases, and its times and peak memory.

    held: memory of other subjects, which does not count.
    compiles: whether capturing and first calls compile it. settling: number of calls after the first that still
    compile, as TorchScript does after seeing its inputs, or that record CUDA graphs. records_graphs: whether the
    capture or the settling calls record CUDA graphs. Replays of a graph allocate none of its memory, so the peak is
    that of the recording if it is higher.
    """
    runs: list[Run] = []
    capture_ms: list[float] = []
    captured_mb, _ = peak(
        lambda: capture_ms.append(first_call_ms(stopwatch, [lambda: runs.append(capture())])), held.device, calls=1
    )
    phases = phases_of(runs[0])
    first_ms = first_call_ms(stopwatch, list(phases.values()))
    settling_ms: list[float] = []
    settling_mb, _ = peak(
        lambda: settling_ms.append(first_call_ms(stopwatch, list(phases.values()))), held.device, calls=settling
    )
    device_mb, process_mb = peak(lambda: once(phases), held.device)
    if records_graphs and device_mb is not None:
        device_mb = max(mb for mb in (device_mb, captured_mb, settling_mb) if mb is not None)
    measured = Measured(
        label=label,
        first_call_ms=first_ms,
        compile_ms=capture_ms[0] + first_ms + sum(settling_ms) if compiles else None,
        device_peak_mb=None if device_mb is None else device_mb - held.allocated_mb,
        process_peak_mb=None if process_mb is None else process_mb - held.resident_mb,
    )
    return runs[0], phases, measured


def once(phases: Mapping[str, Phase]) -> None:
    """Make one call."""
    for phase in phases.values():
        phase()


def load_libraries(device: str) -> None:
    """Run one small convolution and matrix product, forward and backward.

    A device's libraries then set up their contexts, handles and threads before the first call of any subject.
    """
    with suppress(Exception):  # what a device does not support is reported for each model
        images = torch.ones(1, 8, 8, 8, device=device, requires_grad=True)
        features = torch.nn.functional.conv2d(images, torch.ones(8, 8, 3, 3, device=device)).flatten(1)
        (features @ torch.ones(288, 8, device=device)).sum().backward()  # type: ignore[no-untyped-call]


def failure(label: str, error: Exception) -> Measured:
    """Return the result of a subject that failed."""
    status: Status = "out_of_memory" if out_of_memory(error) else "error"
    return Measured(label=label, status=status, error=error_text(error))


def release() -> None:
    """Free the memory of a failed subject."""
    gc.collect()
    if torch.backends.mps.is_available():  # torch.accelerator does not know mps's allocator
        torch.mps.empty_cache()
    elif torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def resident() -> float:
    """Return the resident memory of this process, in MB."""
    return float(psutil.Process().memory_info().rss / 1e6)
