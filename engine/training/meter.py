"""Losses and times of a training's steps. Losses are read from the device only when they are needed."""

import math
import os
import time

import torch

from engine.measure import contention
from engine.training import distributed
from engine.training.resuming import TrainingProgress
from engine.training.setup import Setup
from engine.training.step import StepResult

MOST_OVERFLOWED = 40
"""End a training at this many overflows in a row: the loss scale of 2^16 is then 2^-24, the smallest float16."""
DISTURBED = (
    f"other programs used more than {100 * contention.MOST_NEIGHBOUR_SHARE:.0f} % of the CPUs in at least one epoch, "
    "so its pairs/s may be too low"
)


class Diverged(ArithmeticError):
    """The loss or the gradient norm is not finite, and further steps cannot repair it."""


class Meter:
    """Adds up the losses and times of steps. `read` waits for the device, `add` does not."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._unread: list[torch.Tensor] = []
        self._names: tuple[str, ...] = ()
        self._overflowed = 0
        self._steps, self._data_s, self._step_s = 0, 0.0, 0.0
        self._usage = self._count_usage()

    def add(self, progress: TrainingProgress, result: StepResult, *, data_s: float, seconds: float) -> None:
        """Add one step, which `progress` already counts.

        seconds: its time, including data_s, the wait for its data. An accelerator may still compute the step then. The
        rest of its time passes in `read`, so seconds are right only as a sum over the steps between two reads.
        """
        self._names = (*result.losses, "grad_norm")
        self._unread.append(
            torch.stack([value.detach().float() for value in (*result.losses.values(), result.grad_norm)])
        )
        self._steps += 1
        self._data_s += data_s
        progress.data_seconds += data_s
        self._spend(progress, seconds)

    def read(self, progress: TrainingProgress) -> None:
        """Add the losses since the last call to `progress`. This waits for the device.

        All processes must call this at the same step. Errors: Diverged.
        """
        if not self._unread:
            return
        begun = time.perf_counter()
        # with local_loss, each process has a different loss
        values = distributed.averaged(torch.stack(self._unread), self._setup.place).tolist()
        first = progress.step - len(self._unread) + 1
        self._unread = []
        self._spend(progress, time.perf_counter() - begun)
        for step, row in enumerate(values, first):
            losses = dict(zip(self._names, row, strict=True))
            self._check(step, losses["loss"], losses.pop("grad_norm"))
            progress.add_losses(losses)

    def mean_seconds(self) -> tuple[float, float]:
        """Return the mean seconds of the wait for data, and of a whole step, over the steps since the last call."""
        means = self._data_s / self._steps, self._step_s / self._steps
        self._steps, self._data_s, self._step_s = 0, 0.0, 0.0
        return means

    def neighbours(self) -> tuple[float | None, list[str]]:
        """Return the share of the CPUs that other programs used since the last call, and a note if it is large.

        The share is None if it is not known.
        """
        before, self._usage = self._usage, self._count_usage()
        share = contention.contention(before, self._usage, threads=None).neighbour_share
        large = share is not None and share > contention.MOST_NEIGHBOUR_SHARE
        return share, [DISTURBED] if large else []

    def _count_usage(self) -> contention.Usage:
        # the other processes of this training on this machine are no other programs
        return contention.snapshot(os.getppid() if self._setup.place.world_size > 1 else os.getpid())

    def _spend(self, progress: TrainingProgress, seconds: float) -> None:
        progress.step_seconds += seconds
        progress.seconds += seconds
        self._step_s += seconds

    def _check(self, step: int, loss: float, grad_norm: float) -> None:
        """Raise Diverged for a step that is not finite. A loss scaler may skip fewer than MOST_OVERFLOWED in a row."""
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self._overflowed = 0
            return
        self._overflowed += 1
        scaled = self._setup.scaler is not None
        if scaled and self._overflowed < MOST_OVERFLOWED:
            return
        raise Diverged(
            f"step {step} has loss {loss:g} and gradient norm {grad_norm:g}"
            + (f", as all of the last {self._overflowed} steps have overflowed" if scaled else "")
            + f": take a smaller learning rate than {self._setup.spec.peak_lr:g}, a longer warm-up, or clip gradients "
            "(grad_clip_norm)" + (", or another precision (amp_bf16)" if scaled else "")
        )
