"""Emptying caches, for samples that begin with none of their data there."""

from collections.abc import Callable

import torch

from engine.measure import environment

UNKNOWN_BYTES = 256 * 2**20
"""Written where a device does not tell its cache's size; triton's benchmark takes as much."""


def flusher(device: str) -> Callable[[], object]:
    """Return a call that writes through twice the last-level cache (a GPU's L2) and waits until that is done."""
    target = torch.device(device)
    size = 2 * environment.last_level_cache(device) or UNKNOWN_BYTES
    buffer = torch.empty(size, dtype=torch.uint8, device=target)

    def flush() -> None:
        buffer.zero_()
        if target.type != "cpu":
            torch.accelerator.synchronize(target)

    return flush
