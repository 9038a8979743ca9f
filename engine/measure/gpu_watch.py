"""Watching an NVIDIA GPU while something is timed: clocks, reasons to hold them back, other processes, energy.

NVML tells. Where it does not (no NVIDIA GPU, an AMD build of torch, a locked-down container), the notes say so.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch

from engine.measure import nvml
from engine.measure.nvml import Gpu

LOOK_EVERY_S = 0.5
LEAST_CLOCK = 0.75
"""Share of the maximum SM clock below which a GPU at work counts as throttled, whatever reasons it gives (nvbench's
limit)."""
POWER_CAP = "software power cap"
"""Normal at full load: most GPUs reach their power limit in large matrix products."""
REASONS = {
    0x4: POWER_CAP,
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""NVML's reasons for clocks below what was asked for, without the harmless: idle, application clocks, sync boost."""
IDLE = 0x1
DISPLAY_SERVERS = frozenset(
    "Xorg X Xwayland gnome-shell mutter kwin_x11 kwin_wayland plasmashell cinnamon xfwm4 sway weston Hyprland".split()
)
"""Programs that draw a desktop. NVML lists some of them among the processes that compute, since they use Vulkan."""
LONGEST_QUEUE_S = 0.05
"""Calls are made longer batches until a batch takes this long: short ones would leave the GPU idle in between, and
calls that only enqueue work (a CUDA graph) would fill the queue with minutes of it."""


@dataclass(frozen=True)
class Watched:
    """Readings of a GPU during a timing, summed up."""

    clocks_mhz: tuple[int, int] | None
    """Lowest and highest SM clock of a GPU at work; None when every look found it idle, just done with its work."""
    reasons: tuple[str, ...]
    """For which the clocks were held back at any look."""
    others: int | None
    """Most other processes at once that computed on the GPU; None where NVML lists not even this process."""
    maximum_mhz: int | None = None
    """The highest SM clock the GPU can be set to."""

    @property
    def throttled(self) -> bool:
        """Whether heat, power supply or hardware held the clocks back, or something held them far below the maximum."""
        if set(self.reasons) - {POWER_CAP}:
            return True
        if self.clocks_mhz is None:
            return False
        low, high = self.clocks_mhz
        return low < LEAST_CLOCK * (self.maximum_mhz or high)

    @property
    def clocks(self) -> str:
        """Describe the clocks and why they were held back."""
        low, high = self.clocks_mhz or ("?", "?")
        most = f" of at most {self.maximum_mhz} MHz" if self.maximum_mhz else ""
        why = f" ({', '.join(self.reasons)})" if self.reasons else ""
        return f"SM clocks from {low} to {high} MHz{most}{why}"


class Watch:
    """Looks at one GPU between samples."""

    def __init__(self, gpu: Gpu, clock: Callable[[], float] = time.perf_counter, every_s: float = LOOK_EVERY_S) -> None:
        self._gpu = gpu
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
        gpu = self._gpu
        bits = gpu.read("nvmlDeviceGetCurrentClocksEventReasons", gpu.board) or 0
        mhz = gpu.read("nvmlDeviceGetClockInfo", gpu.board, gpu.nvml.NVML_CLOCK_SM)
        if mhz is not None and not bits & IDLE:
            self._clocks.append(mhz)
        self._reasons |= {name for bit, name in REASONS.items() if bits & bit}
        listed = gpu.read("nvmlDeviceGetComputeRunningProcesses", gpu.handle) or []
        if pids := {process.pid for process in listed if not self._draws_the_desktop(process.pid)}:
            # Inside a container NVML numbers processes differently: one of those listed is this one all the same.
            self._others.append(len(pids) - 1)
        self._next = self._clock() + self._every_s

    def _draws_the_desktop(self, pid: int) -> bool:
        name = self._gpu.read("nvmlSystemGetProcessName", pid) or ""
        return PurePath(name.split(" ")[0]).name in DISPLAY_SERVERS

    def watched(self) -> Watched | None:
        """Return all looks so far; None when there was none that told anything."""
        if not (self._clocks or self._reasons or self._others):
            return None
        return Watched(
            clocks_mhz=(min(self._clocks), max(self._clocks)) if self._clocks else None,
            reasons=tuple(sorted(self._reasons)),
            others=max(self._others, default=None),
            maximum_mhz=self._gpu.read("nvmlDeviceGetMaxClockInfo", self._gpu.board, self._gpu.nvml.NVML_CLOCK_SM),
        )


def watch(device: str, library: Any = None) -> Watch | None:
    """Return a watch on this device; None where NVML knows no such device. library: stands in for the module pynvml."""
    gpu = nvml.find(device, library)
    return Watch(gpu) if gpu else None


def foreign(seen: Watched | None) -> tuple[str, ...]:
    """Say who else computed on the GPU; empty where nobody did, or nobody knows."""
    return (f"{seen.others} other processes computed on the GPU",) if seen and seen.others else ()


def throttling(seen: Watched | None) -> str:
    """Say how the GPU was throttled; empty when it was not."""
    return f"the GPU held its clocks back: {seen.clocks}" if seen and seen.throttled else ""


def notes(device: str, seen: Watched | None) -> tuple[str, ...]:
    """Say what is to be known of a watch without being a fault: what could not be watched, and a power cap."""
    if device == "cpu":
        return ()
    if seen is None:
        return (f"not watched: clocks, throttling and other processes on {device}, of which NVML tells nothing",)
    found = []
    if seen.reasons == (POWER_CAP,) and not seen.throttled:
        found.append(f"the GPU reached its power limit, which is normal at full load: {seen.clocks}")
    if seen.clocks_mhz is None:
        found.append("not watched: the GPU's clocks, because every look found it idle or NVML tells none")
    if seen.others is None:
        found.append("not watched: other processes on the GPU, because NVML lists none")
    return tuple(found)


def joules(
    run: Callable[[], object],
    device: str,
    seconds: float,
    *,
    library: Any = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Return J per call of `run`, from the GPU's own energy counter over at least `seconds` of calls without a pause.

    The energy is that of the whole board, its idle share included; None of a MIG slice, which shares its board, and
    where the GPU does not count. Calls are synchronised in batches of LONGEST_QUEUE_S to twice that.

    Error: the counter has steps of 1 mJ and is updated every 0.02 to 0.1 s, so that over 1 s it is off by up to 10 %;
    the sensor behind it is off by up to 5 % (NVML API reference; Yang, Adámek, Armour: arXiv 2312.02741).
    """
    gpu = nvml.find(device, library)
    if gpu is None or gpu.is_slice:
        return None
    torch.cuda.synchronize(device)
    before, calls, batch, start = gpu.read("nvmlDeviceGetTotalEnergyConsumption", gpu.board), 0, 1, clock()
    if before is None:
        return None
    now = start
    while now - start < seconds:
        begun = now
        for _ in range(batch):
            run()
        torch.cuda.synchronize(device)
        now = clock()
        calls += batch
        if now - begun < LONGEST_QUEUE_S:
            batch *= 2
    after = gpu.read("nvmlDeviceGetTotalEnergyConsumption", gpu.board)
    return None if after is None else float(after - before) / 1e3 / calls
