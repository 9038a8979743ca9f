"""The most memory a model held, measured in a loop of its own, apart from all timing."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
RESET_PEAK = "5"
"""What to write there to set VmHWM back to what the process holds now (proc(5))."""


def peak(run: Callable[[], object], device: str, calls: int = 3) -> tuple[float | None, float | None]:
    """Most memory in some calls, in MB: allocated by torch on the accelerator, and resident of the whole process.

    The device's is None on a CPU, and where torch keeps no such account. The process's holds interpreter and libraries
    too, and is None where Linux's high-water mark cannot be set back: a mark left by what was before would be no
    measurement.
    """
    gc.collect()
    counted = _reset_device_peak(device)
    marked = _reset_process_peak()
    for _ in range(calls):
        run()
    if device != "cpu":
        torch.accelerator.synchronize(torch.device(device))
    return (torch.accelerator.max_memory_allocated(torch.device(device)) / 1e6 if counted else None), (
        _process_peak() if marked else None
    )


def so_far(device: str) -> float | None:
    """Most memory since the process began, in MB: allocated by torch on an accelerator, else resident of the process.

    None where it is not told: on mps, and on a CPU elsewhere than on Linux.
    """
    if device == "cpu":
        return _process_peak() if STATUS.is_file() else None
    try:
        return torch.accelerator.max_memory_allocated(torch.device(device)) / 1e6
    except RuntimeError:  # mps: its allocator keeps no peak
        return None


def give_back_workspaces(device: str) -> None:
    """Free what cuBLAS keeps from its first product on (32 MB on Hopper), or only the first of several would pay."""
    if device.startswith("cuda"):
        torch._C._cuda_clearCublasWorkspaces()


def _reset_device_peak(device: str) -> bool:
    if device == "cpu":
        return False
    try:
        torch.accelerator.reset_peak_memory_stats(torch.device(device))
    except RuntimeError:  # mps: its allocator keeps no peak
        return False
    return True


def _reset_process_peak() -> bool:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim:
        trim(0)  # what is free but still held would count as used
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def _process_peak() -> float | None:
    """VmHWM, which Linux writes in kB of 1024 bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return None
