"""How far a training has come, and which checkpoint it continues from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.roots import Roots, expand_home, file_within, stat_within
from engine.specs import Refused
from engine.specs.clip import same_sources
from engine.specs.train import TrainSpec
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


PATHS = ("data", "val_data", "pretrained", "distill_pretrained")
SCHEDULE = (
    "epochs",
    "steps",
    "lr",
    "warmup",
    "lr_scheduler",
    "epochs_cooldown",
    "lr_cooldown_power",
    "lr_cooldown_end",
)
NOTED = (*SCHEDULE, "grad_clip_norm", "device", "precision", "compile", "grad_checkpointing", "channels_last")
"""What changes the steps to come, but neither what they are taken with nor what they are taken from."""
FREE = (
    *("resume", "workers", "threads", "classes", "templates", "val_frequency", "zeroshot_frequency"),
    *("log_every_n_steps", "save_frequency", "save_every_steps", "keep_last", "tensorboard", "wandb"),
)
"""What says nothing of the training itself. All that is in neither list decides which pairs come when, or on what."""


def changes(spec: TrainSpec, path: Path, before: Mapping[str, Any]) -> list[str]:
    """Notes on what is asked for otherwise than when a checkpoint was written.

    before: the request of then, as JSON; what it does not tell is taken to be the same. Errors: Refused of what would
    silently make another training of it.
    """
    asked = spec.model_dump(mode="json")
    other = [name for name, value in before.items() if name in asked and not _same(name, asked[name], value)]
    if refused := [name for name in other if name not in NOTED and name not in FREE]:
        told = ", ".join(f"{name} was {_shown(before[name])} and is now {_shown(asked[name])}" for name in refused)
        raise Refused(
            f"{path.name} cannot be gone on from exactly: {told}. Ask for the same, or begin a new training with its "
            "weights (--pretrained)"
        )
    return [
        f"continued with {name} {_shown(asked[name])} instead of {_shown(before[name])}"
        for name in other
        if name in NOTED
    ]


def check_left(done: Done, steps: int, path: Path) -> None:
    """Refuse to continue a training of so many steps that has none left. Errors: Refused."""
    if done.step > steps or (done.step == steps and not done.batch):
        raise Refused(
            f"{path.name} has {done.step} steps behind it and {steps} are asked for, so nothing is left to train: "
            "ask for more epochs or steps"
        )


def _same(name: str, one: Any, other: Any) -> bool:
    return same_sources(one, other) if name in PATHS else bool(one == other)


def _shown(value: Any) -> str:
    """Short enough for a message: configurations have many lines."""
    text = "the default" if value is None else str(value) or "empty"
    return text if len(text) <= 100 else f"{text[:97]}..."
