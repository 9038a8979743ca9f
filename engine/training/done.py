"""How far a training has come, and where the one before it is found."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.roots import Roots, file_within, stat_within
from engine.training import checkpoints


def checkpoints_folder(run_dir: Path) -> Path:
    """Where a training keeps its checkpoints."""
    return run_dir / "checkpoints"


@dataclass
class Done:
    """How far a training has come: all that resuming needs beside weights, optimizer and random states."""

    step: int = 0
    """Completed optimizer steps."""
    epoch: int = 0
    """Completed epochs."""
    batch: int = 0
    """Completed batches of the epoch under way."""
    samples: int = 0
    loss_sum: float = 0.0
    """Over the steps of the epoch under way, but for those that overflowed."""
    overflowed: int = 0
    """Steps of the epoch under way whose loss was no number."""
    seconds: float = 0.0
    """In steps and validations, earlier attempts included."""
    step_seconds: float = 0.0
    """In steps of the epoch under way, loading included."""
    data_seconds: float = 0.0
    """Of them, waiting for data."""
    best: float | None = None
    """The best score so far."""
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add_loss(self, loss: float) -> None:
        """Count in a step's loss, or that it was none."""
        if math.isfinite(loss):
            self.loss_sum += loss
        else:
            self.overflowed += 1

    def mean_loss(self, steps: int) -> float:
        """Over so many steps of the epoch under way; NaN where all of them overflowed."""
        counted = steps - self.overflowed
        return self.loss_sum / counted if counted else math.nan

    @property
    def fresh_epoch(self) -> "Done":
        """The same with the next epoch begun."""
        return Done(self.step, self.epoch + 1, 0, self.samples, seconds=self.seconds, best=self.best, rows=self.rows)


def asked_for(path: Path, roots: Roots) -> tuple[tuple[dict[str, Any], Path, list[str]] | None, Path]:
    """Return a checkpoint by its own path, or the newest of a run's folder; and the folder of that run.

    roots: below which all files must lie. Errors: checkpoints.Corrupt.
    """
    if file_within(path, roots):
        return (checkpoints.load(path, foreign=True, roots=roots), path, []), path.parent.parent
    folder = checkpoints_folder(path)
    return checkpoints.load_latest(folder if stat_within(folder, roots) else path, roots), path
