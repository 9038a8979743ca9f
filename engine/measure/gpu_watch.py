"""What an NVIDIA GPU did while something was timed: clocks, reasons to hold them back, other processes, energy.

NVML tells. Without it (no NVIDIA GPU, an AMD build of torch) nothing is watched and nothing is claimed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

LOOK_EVERY_S = 0.5
LEAST_CLOCK = 0.75
"""Of the highest clock seen; below it a GPU at work was held back, whatever reasons it gives (nvbench's limit)."""
REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""NVML's reasons for clocks below what was asked for, without the harmless: idle, application clocks, sync boost."""
IDLE = 0x1


@dataclass(frozen=True)
class Watched:
    """What was seen, all looks together."""

    clocks_mhz: tuple[int, int] | None
    """Lowest and highest SM clock of a GPU at work; None when every look found it idle, just done with its work."""
    reasons: tuple[str, ...]
    """For which the clocks were held back at any look."""
    others: int | None
    """Most other processes at once that had memory on the GPU; None where NVML lists not even this process."""

    @property
    def throttled(self) -> bool:
        """Whether the clocks were held back."""
        low, high = self.clocks_mhz or (0, 0)
        return bool(self.reasons) or low < LEAST_CLOCK * high


class Watch:
    """Looks at one GPU between samples."""

    def __init__(
        self, nvml: Any, handle: Any, clock: Callable[[], float] = time.perf_counter, every_s: float = LOOK_EVERY_S
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._clock = clock
        self._every_s = every_s
        self._next = float("-inf")
        self._clocks: list[int] = []
        self._reasons: set[str] = set()
        self._others: list[int] = []

    def look(self) -> None:
        """Read the GPU's state, unless it was read a moment ago. What it does not tell stays unknown."""
        if self._clock() < self._next:
            return
        nvml = self._nvml
        bits = self._asked(nvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
        mhz = self._asked(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        if mhz is not None and not bits & IDLE:
            self._clocks.append(mhz)
        self._reasons |= {name for bit, name in REASONS.items() if bits & bit}
        listed = [
            self._asked(nvml.nvmlDeviceGetComputeRunningProcesses) or [],
            self._asked(nvml.nvmlDeviceGetGraphicsRunningProcesses) or [],
        ]
        if pids := {process.pid for processes in listed for process in processes}:
            # Inside a container NVML numbers processes differently: one of those listed is this one all the same.
            self._others.append(len(pids) - 1)
        self._next = self._clock() + self._every_s

    def _asked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def watched(self) -> Watched | None:
        """All looks so far; None when there was none that told anything."""
        if not (self._clocks or self._reasons or self._others):
            return None
        return Watched(
            clocks_mhz=(min(self._clocks), max(self._clocks)) if self._clocks else None,
            reasons=tuple(sorted(self._reasons)),
            others=max(self._others, default=None),
        )


def _opened(device: str, nvml: Any) -> tuple[Any, Any] | None:
    """NVML and its handle of torch's device, found by its id, for CUDA_VISIBLE_DEVICES renumbers."""
    if not device.startswith("cuda") or torch.version.cuda is None:
        return None
    nvml = nvml or import_module("pynvml")  # loads a system library, so not before there is an NVIDIA device
    try:
        nvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(torch.device(device)).uuid)
        return nvml, nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    except nvml.NVMLError:
        return None


def watch(device: str, nvml: Any = None) -> Watch | None:
    """A watch on this device; None where NVML knows no such device. `nvml` stands in for the module pynvml."""
    opened = _opened(device, nvml)
    return Watch(*opened) if opened else None


def joules(
    run: Callable[[], object],
    device: str,
    seconds: float,
    *,
    nvml: Any = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """J per call of `run`, by the GPU's own counter of its energy, over at least `seconds` of calls without a pause.

    The whole board's, idle share included. The counter moves in steps of up to 0.1 s: give it a second or more. None
    where it cannot be had.
    """
    opened = _opened(device, nvml)
    if opened is None:
        return None
    nvml, handle = opened
    try:
        torch.cuda.synchronize(device)
        before, calls, start = nvml.nvmlDeviceGetTotalEnergyConsumption(handle), 0, clock()
        while clock() - start < seconds:
            run()
            calls += 1
        torch.cuda.synchronize(device)
        after = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None
    return float(after - before) / 1e3 / calls
