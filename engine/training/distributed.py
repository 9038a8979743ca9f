"""Several training processes: which one this is, by torchrun's environment, and what they agree on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed

PATIENCE = timedelta(days=1)
"""How long the others wait while the first process validates."""


@dataclass(frozen=True)
class Place:
    """One of the processes that train together."""

    rank: int = 0
    world_size: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether this process validates, writes and reports."""
        return self.rank == 0


@contextmanager
def joined(device: str) -> Iterator[Place]:
    """Join the processes that torchrun has started, each with its own accelerator; without torchrun, be alone."""
    if "RANK" not in os.environ:
        yield Place(device=device)
        return
    kind = torch.device(device).type
    if kind != "cpu":
        device = f"{kind}:{os.environ['LOCAL_RANK']}"
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(
        "gloo" if kind == "cpu" else distributed.get_default_backend_for_device(device), timeout=PATIENCE
    )
    try:
        yield Place(distributed.get_rank(), distributed.get_world_size(), device)
    finally:
        distributed.destroy_process_group()


def agree(flag: bool, place: Place) -> bool:
    """Return whether any process answers yes. All processes must call this."""
    if place.world_size == 1:
        return flag
    said = torch.tensor(int(flag), device=place.device)
    distributed.all_reduce(said, op=distributed.ReduceOp.MAX)
    return bool(said.item())


def averaged(values: torch.Tensor, place: Place) -> torch.Tensor:
    """Return the element-wise mean of all processes' values. All processes must call this."""
    if place.world_size == 1:
        return values
    distributed.all_reduce(values)
    return values / place.world_size
