"""Watch an NVIDIA GPU during a timing: clocks, reasons for throttling, other processes, energy.

All readings come from NVML. When it is not available (no NVIDIA GPU, an AMD build of torch, a locked-down container),
the notes say so.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch

from engine.measure import nvml
from engine.measure.nvml import Gpu
from engine.words import plural

LOOK_EVERY_S = 0.5
"""Seconds between two readings of a GPU's state."""
LEAST_CLOCK = 0.75
"""A working GPU below this share of its maximum SM clock counts as throttled, whatever NVML says (nvbench's limit)."""
POWER_CAP = "software power cap"
"""This reason is normal at full load: most GPUs reach their power limit in large matrix products."""
REASONS = {
    0x4: POWER_CAP,
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""NVML's reasons for reduced clocks, by bit. The harmless ones are left out: idle, application clocks, sync boost."""
IDLE = 0x1
"""NVML's reason, by bit, of an idle GPU. Its clocks are not recorded."""
DISPLAY_SERVERS = frozenset(
    "Xorg X Xwayland gnome-shell mutter kwin_x11 kwin_wayland plasmashell cinnamon xfwm4 sway weston Hyprland".split()
)
"""Programs that draw a desktop. NVML lists some of them as compute processes, because they use Vulkan."""
LONGEST_QUEUE_S = 0.05
"""Double the calls per batch until a batch takes this many seconds. Shorter batches would leave the GPU idle in
between; much longer ones would queue minutes of work when calls only enqueue it (a CUDA graph)."""


@dataclass(frozen=True)
class Watched:
    """Summary of the readings of a GPU during a timing."""

    clocks_mhz: tuple[int, int] | None
    """Lowest and highest SM clock of the working GPU. None when the GPU was idle at every reading."""
    reasons: tuple[str, ...]
    """All reasons for reduced clocks that any reading gave."""
    others: int | None
    """Largest number of other processes that computed on the GPU at once. None when NVML lists no processes at all."""
    maximum_mhz: int | None = None
    """The highest SM clock the GPU can be set to."""

    @property
    def throttled(self) -> bool:
        """Return whether heat, power supply or hardware reduced the clocks, or they were far below the maximum."""
        if set(self.reasons) - {POWER_CAP}:
            return True
        if self.clocks_mhz is None:
            return False
        low, high = self.clocks_mhz
        return low < LEAST_CLOCK * (self.maximum_mhz or high)

    @property
    def clocks(self) -> str:
        """Return a text with the clocks and the reasons why they were reduced."""
        low, high = self.clocks_mhz or ("?", "?")
        maximum = f" of at most {self.maximum_mhz} MHz" if self.maximum_mhz else ""
        reasons = f" ({', '.join(self.reasons)})" if self.reasons else ""
        return f"SM clocks from {low} to {high} MHz{maximum}{reasons}"


class Watch:
    """Read the state of one GPU between samples."""

    def __init__(self, gpu: Gpu, clock: Callable[[], float] = time.perf_counter, every_s: float = LOOK_EVERY_S) -> None:
        self._gpu = gpu
        self._clock = clock
        self._every_s = every_s
        self._next = float("-inf")
        self._clocks: list[int] = []
        self._reasons: set[str] = set()
        self._others: list[int] = []

    def look(self) -> None:
        """Read the GPU's state, unless it was read less than `every_s` ago. Values that NVML lacks stay unknown."""
        if self._clock() < self._next:
            return
        gpu = self._gpu
        bits = gpu.read("nvmlDeviceGetCurrentClocksEventReasons", gpu.board) or 0
        mhz = gpu.read("nvmlDeviceGetClockInfo", gpu.board, gpu.nvml.NVML_CLOCK_SM)
        if mhz is not None and not bits & IDLE:
            self._clocks.append(mhz)
        self._reasons |= {name for bit, name in REASONS.items() if bits & bit}
        processes = gpu.read("nvmlDeviceGetComputeRunningProcesses", gpu.handle) or []
        if pids := {process.pid for process in processes if not self._draws_the_desktop(process.pid)}:
            # Subtract 1 for this process. Its id is not compared, because NVML uses other ids inside a container.
            self._others.append(len(pids) - 1)
        self._next = self._clock() + self._every_s

    def _draws_the_desktop(self, pid: int) -> bool:
        name = self._gpu.read("nvmlSystemGetProcessName", pid) or ""
        return PurePath(name.split(" ")[0]).name in DISPLAY_SERVERS

    def watched(self) -> Watched | None:
        """Return the summary of all readings so far. None when no reading gave a value."""
        if not (self._clocks or self._reasons or self._others):
            return None
        return Watched(
            clocks_mhz=(min(self._clocks), max(self._clocks)) if self._clocks else None,
            reasons=tuple(sorted(self._reasons)),
            others=max(self._others, default=None),
            maximum_mhz=self._gpu.read("nvmlDeviceGetMaxClockInfo", self._gpu.board, self._gpu.nvml.NVML_CLOCK_SM),
        )


def watch(device: str, library: Any = None) -> Watch | None:
    """Return a watch on this device. None when NVML does not know it. library: replaces the module pynvml."""
    gpu = nvml.find(device, library)
    return Watch(gpu) if gpu else None


def foreign(seen: Watched | None) -> tuple[str, ...]:
    """Return a text with the number of other processes that computed on the GPU; empty without any, or if unknown."""
    return (f"{plural(seen.others, 'other process', 'es')} computed on the GPU",) if seen and seen.others else ()


def throttling(seen: Watched | None) -> str:
    """Return a text that says how the GPU was throttled. Empty when it was not."""
    return f"the GPU reduced its clocks: {seen.clocks}" if seen and seen.throttled else ""


def notes(device: str, seen: Watched | None) -> tuple[str, ...]:
    """Return the harmless remarks about a watch: what could not be watched, and a power cap."""
    if device == "cpu":
        return ()
    if seen is None:
        return (f"not watched: clocks, throttling and other processes on {device}, because NVML has no readings of it",)
    messages = []
    if seen.reasons == (POWER_CAP,) and not seen.throttled:
        messages.append(f"the GPU reached its power limit, which is normal at full load: {seen.clocks}")
    if seen.clocks_mhz is None:
        messages.append("not watched: the GPU's clocks, because it was idle at every reading or NVML reports none")
    if seen.others is None:
        messages.append("not watched: other processes on the GPU, because NVML does not list any")
    return tuple(messages)


def joules(
    run: Callable[[], object],
    device: str,
    seconds: float,
    *,
    library: Any = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Return J per call of `run`, from the GPU's own energy counter over at least `seconds` of calls without a pause.

    The energy is that of the whole board, including its idle power. None for a MIG slice, which shares its board, and
    for a GPU without an energy counter. Calls are synchronised in batches of LONGEST_QUEUE_S to twice that.

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
        batch_start = now
        for _ in range(batch):
            run()
        torch.cuda.synchronize(device)
        now = clock()
        calls += batch
        if now - batch_start < LONGEST_QUEUE_S:
            batch *= 2
    after = gpu.read("nvmlDeviceGetTotalEnergyConsumption", gpu.board)
    return None if after is None else float(after - before) / 1e3 / calls
