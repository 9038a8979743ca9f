"""Batches of images and tokens. Their order and crops depend only on the seed, the epoch and the sample's index.

Every random choice about a sample uses its own generator, seeded by (seed, epoch, index). So it does not depend on how
many processes load or train, or on where a training was stopped and resumed.
"""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from engine.datasets import Pairs, Unreadable
from engine.process import exit_with_parent, fork_context
from engine.specs import Refused

log = logging.getLogger(__name__)
Transform = Callable[[Any], Tensor]
Tokenize = Callable[[list[str]], Tensor]
Draw = tuple[int, int]
"""Epoch and index of a sample."""
REMEMBERED = 65_536
"""Cache the tokens of at most 65,536 captions. Few data sets have more distinct ones."""


@dataclass
class Order:
    """A batch sampler: it decides which samples are in which batch. Its epoch is set from outside."""

    count: int
    """Number of pairs."""
    batch_size: int
    """Samples per batch and process."""
    batches: int
    """Batches per epoch and process."""
    seed: int
    rank: int = 0
    world_size: int = 1
    resampled: bool = False
    """Draw with replacement."""
    weights: NDArray[np.float64] | None = None
    """(N,) relative weight of each sample. If given, samples are drawn with replacement."""
    repeat: bool = False
    """Repeat the batches of the first epoch in every epoch."""
    epoch: int = 0
    start: int = 0
    """Number of batches to skip, because an earlier attempt has used them."""

    def __len__(self) -> int:
        return self.batches - self.start

    def __iter__(self) -> Iterator[list[Draw]]:
        samples_per_step = self.batch_size * self.world_size
        drawn = self.drawn(0 if self.repeat else self.epoch)
        for batch in range(self.start, self.batches):
            begin = batch * samples_per_step + self.rank * self.batch_size
            yield [(self.epoch, int(index)) for index in drawn[begin : begin + self.batch_size]]

    def drawn(self, epoch: int) -> NDArray[np.int64]:
        """Return the sample indices of an epoch in order, for all processes together."""
        generator = np.random.default_rng((self.seed, epoch))
        if self.weights is None and not self.resampled:
            return generator.permutation(self.count)
        shares = None if self.weights is None else self.weights / self.weights.sum()
        needed = self.batches * self.batch_size * self.world_size
        return generator.choice(self.count, size=needed, p=shares)


class Drawn(Dataset[tuple[Tensor, Tensor]]):
    """A data set indexed by (epoch, index): a transformed image, and the tokens of one of its captions."""

    def __init__(self, pairs: Pairs, transform: Transform, tokenize: Tokenize, seed: int) -> None:
        self._pairs, self._transform, self._seed = pairs, transform, seed
        self._tokenize = tokenize

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        return self.__getitems__([draw])[0]

    def __getitems__(self, draws: Sequence[Draw]) -> list[tuple[Tensor, Tensor]]:
        """Return a batch at once, as DataLoader asks for it. Random states are saved and restored once per batch."""
        with random_states_kept():
            return [self._sample(*draw) for draw in draws]

    def _sample(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        for candidate in range(index, index + len(self._pairs)):  # an unreadable image is replaced by the next one
            try:
                return self._read(epoch, candidate % len(self._pairs))
            except Unreadable as unreadable:
                log.warning("left out: %s", unreadable)
        raise Refused("no image can be read any more")

    def _read(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        captions = self._pairs.captions(index)
        _seed(self._seed, epoch, index)
        caption = captions[random.randrange(len(captions))]  # noqa: S311 - nothing secret
        return self._transform(self._pairs.image(index)), _tokens(self._tokenize, caption)


@lru_cache(maxsize=REMEMBERED)
def _tokens(tokenize: Tokenize, caption: str) -> Tensor:
    return tokenize([caption])[0]


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the random states of Python, numpy and torch on the CPU when the block ends."""
    python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)


def _seed(*numbers: int) -> None:
    """Seed Python, numpy (for timm's RandAugment) and torch on the CPU with these numbers."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


class Batches:
    """The batches of an order, loaded here or in `workers` processes."""

    def __init__(
        self, pairs: Pairs, transform: Transform, tokenize: Tokenize, order: Order, *, workers: int, pin: bool
    ) -> None:
        """Prepare to load batches. pin: load into pinned memory, which is copied to an accelerator faster."""
        self._order = order
        self._loader = DataLoader(
            Drawn(pairs.to_load(workers), transform, tokenize, order.seed),
            batch_sampler=order,
            num_workers=workers,
            multiprocessing_context=fork_context(__name__) if workers else None,
            worker_init_fn=exit_with_parent,
            persistent_workers=workers > 0,
            pin_memory=pin,
            generator=torch.Generator(),  # not the global one, from which dropout draws
        )

    def of(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the batches of an epoch from number `start` on: images (B, 3, H, W) and tokens (B, L)."""
        self._order.epoch, self._order.start = epoch, start
        return iter(self._loader)
