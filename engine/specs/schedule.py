"""The schedule of a training: steps, epochs and batches that follow from its request and its number of pairs."""

import math
from dataclasses import dataclass

from engine.specs.fields.clip import warmup_steps
from engine.specs.train import EPOCHS, TrainSpec

LEAST_STEPS, LEAST_BATCH, MOST_BATCH = 16, 16, 256
"""Limits of the default batch size: it leaves LEAST_STEPS steps per epoch, unless that makes it less than LEAST_BATCH.

The loss contrasts each pair with the others of its batch, so a batch of a few pairs teaches little."""


@dataclass(frozen=True)
class Schedule:
    """Steps, epochs and batches that follow from a spec and a number of pairs."""

    batch_size: int
    """Pairs per process and forward pass."""
    step_pairs: int
    """Pairs per optimizer step: all batches of all processes."""
    batches: int
    """Full batches per epoch and process; a multiple of accum_freq."""
    steps_per_epoch: int
    steps: int
    """Optimizer steps of the whole training."""
    epochs: int
    """Number of epochs. The last may be shorter if the spec gives steps."""
    warmup_steps: int
    cooldown_steps: int

    @property
    def problem(self) -> str:
        """Return the error in the schedule, as a sentence; empty if there is none."""
        if self.steps_per_epoch < 1:
            advice = "take a smaller batch size" if self.batch_size > 2 else "give more, or hold out fewer"
            return f"the data are smaller than one step of {self.step_pairs:,} pairs: {advice}"
        if self.warmup_steps > self.steps:
            return (
                f"a warm-up of {self.warmup_steps} steps out of {self.steps} never reaches the learning rate: "
                "take a shorter one, such as 10%"
            )
        if self.cooldown_steps > self.steps:
            return (
                f"a cooldown of {self.cooldown_steps} steps is longer than the training of {self.steps}: "
                "take fewer epochs of cooldown"
            )
        return ""


def schedule(spec: TrainSpec, pairs: int) -> Schedule:
    """Return the schedule of a training on `pairs` pairs. Only full batches count: the rest of an epoch is left out."""
    batch = spec.batch_size or default_batch(pairs // (spec.nproc * spec.accum_freq))
    step_pairs = batch * spec.nproc * spec.accum_freq
    steps_per_epoch = 1 if spec.overfit and pairs >= step_pairs else pairs // step_pairs
    epochs = spec.epochs or EPOCHS
    if spec.steps is not None:
        epochs = math.ceil(spec.steps / max(1, steps_per_epoch))
    steps = spec.steps if spec.steps is not None else epochs * steps_per_epoch
    cooldown = (spec.epochs_cooldown or 0) if spec.lr_scheduler == "const-cooldown" else 0
    return Schedule(
        batch_size=batch,
        step_pairs=step_pairs,
        batches=steps_per_epoch * spec.accum_freq,
        steps_per_epoch=steps_per_epoch,
        steps=steps,
        epochs=epochs,
        warmup_steps=warmup_steps(spec.warmup, steps),
        cooldown_steps=cooldown * steps_per_epoch,
    )


def default_batch(pairs: int) -> int:
    """Return the largest power of two up to MOST_BATCH that leaves LEAST_STEPS steps an epoch or is within LEAST_BATCH.

    It is at least 2, and else not larger than the number of pairs.
    """
    most = max(pairs / LEAST_STEPS, min(pairs, LEAST_BATCH))
    return min(MOST_BATCH, 1 << int(math.log2(max(2, most))))
