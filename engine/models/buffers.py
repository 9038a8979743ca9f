"""What a network holds beside its weights: running statistics of batch norms, above all."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept(model: torch.nn.Module) -> Iterator[None]:
    """Whatever runs meanwhile, buffers are afterwards what they were."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)
