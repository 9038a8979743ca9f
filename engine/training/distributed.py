"""Coordinate several training processes: the place of each, from torchrun's environment, and values they agree on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed

PATIENCE = timedelta(days=1)
"""Maximum time that processes wait for each other. The others wait while the first process validates."""


@dataclass(frozen=True)
class Place:
    """The rank and device of one of the processes that train together."""

    rank: int = 0
    world_size: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Return whether this process validates, writes and reports."""
        return self.rank == 0


@contextmanager
def joined(device: str) -> Iterator[Place]:
    """Join the processes that torchrun has started and yield this one's place. Each process has its own accelerator."""
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
    """Return whether `flag` is true in any process. All processes must call this."""
    if place.world_size == 1:
        return flag
    answers = torch.tensor(int(flag), device=place.device)
    distributed.all_reduce(answers, op=distributed.ReduceOp.MAX)
    return bool(answers.item())


def averaged(values: torch.Tensor, place: Place) -> torch.Tensor:
    """Return the element-wise mean of all processes' values. All processes must call this."""
    if place.world_size == 1:
        return values
    distributed.all_reduce(values)
    return values / place.world_size
