"""Random numbers of a training: seeded by what they are for, so that no state has to be stored to resume."""

import random
from collections.abc import Sequence

import numpy as np
import torch


def seed(*numbers: int) -> None:
    """Seed Python, NumPy and torch, on the CPU and on accelerators, by these non-negative numbers.

    Before each step, they are the training's seed, the step and the process's rank: dropout masks differ between
    processes and steps, and a training that is resumed at a step draws what it would have drawn.
    """
    words = np.random.SeedSequence(numbers).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))


def device_state(device: torch.device) -> list[torch.Tensor]:
    """Return the random state of this accelerator; an empty list for a CPU, whose state is torch's own."""
    if device.type == "cpu":
        return []
    return [torch.get_device_module(device).get_rng_state(*_place(device)).cpu()]


def set_device_state(device: torch.device, states: Sequence[torch.Tensor]) -> None:
    """Restore what `device_state` returned."""
    for state in states:
        torch.get_device_module(device).set_rng_state(state, *_place(device))


def _place(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # there is one mps device, and its functions take none
