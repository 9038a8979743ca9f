"""How far a training has come, and which checkpoint it continues from."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.roots import Roots, expand_home, file_within, stat_within
from engine.specs import Refused
from engine.training import checkpoints, logs


def checkpoints_folder(run_dir: Path) -> Path:
    """Return where a training keeps its checkpoints."""
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


@dataclass(frozen=True)
class Start:
    """The starting point of an attempt at a training."""

    checkpoint: tuple[checkpoints.State, Path] | None
    """Contents and path; None at step 0."""
    run_dir: Path
    """The folder of the run that wrote the checkpoint."""
    notes: list[str]
    """Everything that was passed over or lost."""


def start(run_dir: Path, resume: str, roots: Roots) -> Start:
    """Find the newest whole checkpoint of the run itself, else of what `resume` names: a checkpoint or a run's folder.

    roots: below which what `resume` names must lie. Errors: Refused if `resume` names none that can be loaded.
    """
    own = checkpoints_folder(run_dir)
    if found := checkpoints.load_latest(own):
        state, path, notes = found
        return Start((state, path), run_dir, notes)
    lost = _lost(run_dir, own)
    if not resume:
        return Start(None, run_dir, [f"{note}: training starts again at step 0" for note in lost])
    asked = expand_home(resume)
    if file_within(asked, roots):
        return Start((checkpoints.load(asked, foreign=True, roots=roots), asked), asked.parent.parent, lost)
    folder = checkpoints_folder(asked)
    if (found := checkpoints.load_latest(folder if stat_within(folder, roots) else asked, roots)) is None:
        raise Refused(
            f"{resume} has no checkpoint that can be loaded. Give another one to continue from, or leave resume empty "
            "to start at step 0"
        )
    state, path, notes = found
    return Start((state, path), asked, [*lost, *notes])


def _lost(run_dir: Path, own: Path) -> list[str]:
    """Return a note if an earlier attempt took steps, as its curves show, that no checkpoint holds."""
    damaged = ", ".join(sorted(path.name for path in own.glob("*.pt")))
    if not damaged and next(logs.history(run_dir), None) is None:
        return []
    return ["no checkpoint of the earlier attempt can be loaded" + (f" ({damaged})" if damaged else "")]
