"""The random states of a process, taken down and put back: of Python, NumPy, torch, and accelerators in use.

Made of tensors, numbers and lists alone, so that `torch.load(weights_only=True)` takes them.
"""

import random
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """All states as they are now."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "devices": {kind: _states(module) for kind, module in _in_use().items()},
    }


def restore(states: dict[str, Any]) -> None:
    """Put back what `capture` has taken down. States of devices that are not here are left out."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    for kind, module in _available().items():
        for index, state in enumerate(states["devices"].get(kind, [])[: _count(module)]):
            if hasattr(module, "get_rng_state_all"):
                module.set_rng_state(state, index)
            else:
                module.set_rng_state(state)


def _available() -> dict[str, Any]:
    """The accelerator's module of torch by its name, where there is one."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return {found.type: torch.get_device_module(found)} if found else {}


def _in_use() -> dict[str, Any]:
    """Only what has been begun with: asking a device for its state would take memory there."""
    return {
        kind: module
        for kind, module in _available().items()
        if not hasattr(module, "is_initialized") or module.is_initialized()
    }


def _states(module: Any) -> list[torch.Tensor]:
    """One per device; some kinds, such as mps, have a single one."""
    if hasattr(module, "get_rng_state_all"):
        return [state.cpu() for state in module.get_rng_state_all()]
    return [module.get_rng_state().cpu()]


def _count(module: Any) -> int:
    return int(module.device_count()) if hasattr(module, "device_count") else 1
