"""Emptying caches, for samples that begin with none of their data there."""

from collections.abc import Callable
from pathlib import Path

import torch

CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_BYTES = 256 * 2**20
"""Written where a device does not tell its cache's size; triton's benchmark takes as much."""


def flusher(device: str) -> Callable[[], object]:
    """A call that writes through twice the last-level cache (a GPU's L2) and waits until that is done."""
    target = torch.device(device)
    buffer = torch.empty(2 * _last_level_bytes(target), dtype=torch.uint8, device=target)

    def flush() -> None:
        buffer.zero_()
        if target.type != "cpu":
            torch.accelerator.synchronize(target)

    return flush


def _last_level_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size) or UNKNOWN_BYTES
    sizes = [_bytes(size.read_text()) for size in CPU_CACHES.glob("index*/size")] if device.type == "cpu" else []
    return max(sizes, default=UNKNOWN_BYTES)


def _bytes(size: str) -> int:
    """Linux writes `48K`, `2048K`, `1M`."""
    number, unit = size.strip()[:-1], size.strip()[-1]
    return int(number) * {"K": 2**10, "M": 2**20, "G": 2**30}[unit]
