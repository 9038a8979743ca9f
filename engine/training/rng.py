"""The random states of a process, taken down and put back: of Python, NumPy, torch, and accelerators in use.

Made of tensors, numbers and lists alone, so that `torch.load(weights_only=True)` takes them.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def capture(device: str) -> dict[str, Any]:
    """All states as they are now: the process's own, and that of the device it trains on."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "devices": {torch.device(device).type: device_state(torch.device(device))},
    }


def restore(states: dict[str, Any], device: str) -> None:
    """Put back what `capture` has taken down, on this process's device.

    Of several processes the first captures and all restore: each has begun alike and draws as often.
    """
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    place = torch.device(device)
    if saved := states["devices"].get(place.type, []):
        set_device_state(place, [saved[place.index or 0] if len(saved) > 1 else saved[0]])  # earlier, every device's


def device_state(device: torch.device) -> list[torch.Tensor]:
    """Of this device alone; none of a CPU, whose state is torch's own."""
    if device.type == "cpu":
        return []
    return [torch.get_device_module(device).get_rng_state(*_place(device)).cpu()]


def set_device_state(device: torch.device, states: Sequence[torch.Tensor]) -> None:
    """What `device_state` has taken down."""
    for state in states:
        torch.get_device_module(device).set_rng_state(state, *_place(device))


def _place(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # there is but one, and its functions take no device
