"""Measure a model's peak memory in a separate loop, apart from all timing."""

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
RESET_PEAK = "5"
"""Writing this to clear_refs resets VmHWM to the current resident memory (proc(5))."""


def peak(run: Callable[[], object], device: str, calls: int = 3) -> tuple[float | None, float | None]:
    """Return the peak memory of some calls in MB: allocated by torch on the accelerator, and resident in the process.

    The first is None on a CPU, and when torch keeps no peak for the accelerator. The second includes the interpreter
    and libraries. It is None when Linux's high-water mark cannot be reset, because an older peak would then be
    reported.
    """
    gc.collect()
    if device != "cpu":
        with suppress(RuntimeError):  # as in `allocated_mb`
            torch.accelerator.reset_peak_memory_stats(torch.device(device))
    process_reset = _reset_process_peak()
    for _ in range(calls):
        run()
    if device != "cpu":
        torch.accelerator.synchronize(torch.device(device))
    return allocated_mb(device, peak=True), _process_peak() if process_reset else None


def so_far(device: str) -> float | None:
    """Return the peak memory since the process began in MB: allocated by torch on an accelerator, else resident.

    None when the system does not report it: on mps, and on a CPU outside Linux.
    """
    if device == "cpu":
        return _process_peak() if STATUS.is_file() else None
    return allocated_mb(device, peak=True)


def allocated_mb(device: str, *, peak: bool) -> float | None:
    """Return the memory that torch has allocated on an accelerator in MB, at its peak or now; None on a CPU and mps."""
    if device == "cpu":
        return None
    read = torch.accelerator.max_memory_allocated if peak else torch.accelerator.memory_allocated
    try:
        return read(torch.device(device)) / 1e6
    except RuntimeError:  # the allocator of mps keeps no such numbers
        return None


def give_back_workspaces(device: str) -> None:
    """Free the workspace that cuBLAS keeps after its first product (32 MB on Hopper).

    Otherwise only the first of several measurements would include its allocation.
    """
    if device.startswith("cuda"):
        torch._C._cuda_clearCublasWorkspaces()


def _reset_process_peak() -> bool:
    """Return whether the peak of the process could be reset."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim:
        trim(0)  # memory that is free but still held would count as used
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def _process_peak() -> float | None:
    """Return VmHWM in MB. Linux writes it in kB of 1024 bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return None
