"""The progress of a training, and the checkpoint that it continues from."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.models.built import out_of_memory
from engine.models.clip.files import differences
from engine.results.checkpoints import BEST, FOLDER, read_manifest
from engine.roots import Roots, expand_home, file_within, stat_within
from engine.specs import Refused
from engine.specs.fields.clip import same_sources
from engine.specs.train import TrainSpec
from engine.training import checkpoints, logs
from engine.training.setup import Setup
from engine.words import plural


@dataclass
class TrainingProgress:
    """Progress of a training: everything that resuming needs besides the states of model, optimizer and scaler."""

    step: int = 0
    """Completed optimizer steps."""
    epoch: int = 0
    """Completed epochs."""
    batch: int = 0
    """Completed batches of the current epoch."""
    samples: int = 0
    loss_sum: float = 0.0
    """Sum of the losses of the current epoch's steps, without the steps that overflowed."""
    part_sums: dict[str, float] = field(default_factory=dict)
    """Sums of the parts of the loss, by name, over the same steps."""
    overflowed: int = 0
    """Steps of the current epoch whose loss was not finite."""
    seconds: float = 0.0
    """Seconds spent in steps and validations, including earlier attempts."""
    step_seconds: float = 0.0
    """Seconds spent in steps of the current epoch, including data loading."""
    data_seconds: float = 0.0
    """The part of `step_seconds` spent waiting for data."""
    stale: int = 0
    """Number of validations since the last one whose metric was better."""
    validated: int = 0
    """Step of the last validation."""
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add_losses(self, losses: Mapping[str, float]) -> None:
        """Add a step's losses, or count the step as overflowed if `loss` is not finite."""
        if not math.isfinite(losses["loss"]):
            self.overflowed += 1
            return
        self.loss_sum += losses["loss"]
        for name, value in losses.items():
            if name != "loss":
                self.part_sums[name] = self.part_sums.get(name, 0.0) + value

    def mean_loss(self, steps: int, name: str = "loss") -> float:
        """Return the mean of a loss over `steps` steps of the current epoch; NaN if all of them overflowed."""
        counted = steps - self.overflowed
        total = self.loss_sum if name == "loss" else self.part_sums.get(name, math.nan)
        return total / counted if counted else math.nan

    @property
    def fresh_epoch(self) -> "TrainingProgress":
        """Return this progress at the beginning of the next epoch."""
        carried = {name: getattr(self, name) for name in ("seconds", "stale", "rows")}
        return TrainingProgress(self.step, self.epoch + 1, 0, self.samples, **carried)


def find_checkpoint(
    run_dir: Path, resume: str, roots: Roots
) -> tuple[tuple[checkpoints.State, Path] | None, Path, list[str]]:
    """Return the checkpoint that a training continues from, the folder of the run that wrote it, and notes.

    It is the newest valid one of this run, or else of `resume`, which names a checkpoint or a run's folder: its content
    and path; None at step 0. The notes say which checkpoints were skipped or lost. roots: the folders that must contain
    `resume`. Errors: Refused if `resume` has no checkpoint that can be loaded.
    """
    own_folder = run_dir / FOLDER
    if found := checkpoints.load_latest(own_folder):
        state, path, notes = found
        return (state, path), run_dir, notes
    lost_notes = _notes_on_lost(run_dir, own_folder)
    if not resume:
        return None, run_dir, [f"{note}: training starts again at step 0" for note in lost_notes]
    source = expand_home(resume)
    if file_within(source, roots):
        return (checkpoints.load(source, roots), source), source.parent.parent, lost_notes
    folder = source / FOLDER
    if (found := checkpoints.load_latest(folder if stat_within(folder, roots) else source, roots)) is None:
        raise Refused(
            f"{resume} has no checkpoint that can be loaded. Give another one to continue from (of open_clip's own "
            "training, the file instead of the folder), or leave resume empty to start at step 0"
        )
    state, path, notes = found
    return (state, path), source, [*lost_notes, *notes]


def _notes_on_lost(run_dir: Path, folder: Path) -> list[str]:
    """Return a note if an earlier attempt has left no checkpoint here that can be loaded.

    Without curves or checkpoints of an earlier attempt, there is none if it ended early, and a note if it had another
    runs folder: the first attempt's record is `process.json`, that of the second `process-2.json`, and so on.
    """
    damaged = ", ".join(sorted(path.name for path in folder.glob("*.pt")))
    if damaged or next(logs.history(run_dir), None) is not None:
        return ["no checkpoint of the earlier attempt can be loaded" + (f" ({damaged})" if damaged else "")]
    records = {path.name for path in run_dir.glob("process*.json")}
    if records and "process.json" not in records:
        return ["an earlier attempt was on another host or in another runs folder, and none of its checkpoints is here"]
    return []


PATHS = ("data", "val_data", "zeroshot_data", "pretrained", "distill_pretrained")
"""Fields that name files or folders. Different spellings of the same path are no change."""
ZEROSHOT = ("classes", "templates", "zeroshot_data")
"""Fields that define the task of zero-shot classification."""
NOTED = (
    *("epochs", "steps", "lr", "warmup", "lr_scheduler", "epochs_cooldown", "lr_cooldown_power", "lr_cooldown_end"),
    *("patience", "grad_clip_norm", "device", "precision", "compile", "grad_checkpointing", "channels_last"),
    *ZEROSHOT,
)
"""Fields that may change when a training continues. They affect the steps and accuracies to come, so each is noted."""
FREE = (
    *("resume", "workers", "threads", "val_frequency", "zeroshot_frequency", "val_at_start", "val_every_steps"),
    *("log_every_n_steps", "save_frequency", "save_every_steps", "keep_last", "tensorboard", "wandb"),
    *("wandb_project_name", "wandb_name", "wandb_notes"),
)
"""Fields that may change without a note: they do not affect the training itself. All other fields decide which
pairs are used and when, or which weights are trained: they must not change."""


def changes(spec: TrainSpec, path: Path, before: Mapping[str, Any]) -> list[str]:
    """Return notes on the fields that have changed since a checkpoint was written.

    before: the request at that time, as JSON. Fields missing from it count as unchanged.
    Errors: Refused if a field has changed that would make it a different training.
    """
    request = spec.model_dump(mode="json")
    changed = _changed(request, before)
    if refused := [name for name in changed if name not in NOTED and name not in FREE]:
        details = ", ".join(
            f"{name} was {_short_text(before[name])} and is now {_short_text(request[name])}" for name in refused
        )
        raise Refused(
            f"{path.name} cannot be continued exactly: {details}. Ask for the same, or begin a new training with "
            "its weights (--pretrained)"
        )
    return [
        f"continued with {name} {_short_text(request[name])} instead of {_short_text(before[name])}"
        for name in changed
        if name in NOTED
    ]


def forget_best(progress: TrainingProgress, spec: TrainSpec, before: Mapping[str, Any], metric: str) -> list[str]:
    """Forget which epoch was the best if its zero-shot accuracy is that of another task. Return a note about it.

    before: as for `changes`. metric: the one that decides the best epoch.
    """
    if not metric.startswith("zeroshot") or not set(ZEROSHOT) & set(_changed(spec.model_dump(mode="json"), before)):
        return []
    progress.stale = 0
    progress.rows = [row | {"best": False} for row in progress.rows]
    return [f"earlier epochs are not compared for the best: {metric} had other data, classes or templates there"]


def carry_best(progress: TrainingProgress, path: Path, folder: Path, roots: Roots) -> list[str]:
    """Copy the best model of the training that is continued into `folder`.

    If no file holds it, forget which epoch was the best and return a note: later epochs are compared without it.
    path: the checkpoint that the training continues from. roots: the folders that must contain both files.
    """
    best = next((row for row in reversed(progress.rows) if row["best"]), None)
    if best is None:
        return []
    for source in (path.with_name(BEST), path):
        about = read_manifest(source, roots)
        if about.get("step") == best["step"]:
            with suppress(checkpoints.Corrupt):
                checkpoints.save(folder, BEST, checkpoints.load(source, roots), about=about)
                return []
    progress.rows = [row | {"best": False} for row in progress.rows]
    lost = f"the best of them, of epoch {best['epoch']}, is not beside {path.name}"
    return [f"earlier epochs are not compared for the best: {lost}"]


def check_pairs(setup: Setup, path: Path, before: Any) -> None:
    """Check that the data still give the pairs that a checkpoint was trained on, and those that it held out.

    before: `Setup.fingerprints` when the checkpoint was written; None in a manifest of an older version.
    Errors: Refused.
    """
    if before is None or before == setup.fingerprints:
        return
    counts = [
        f"{plural(part['train']['pairs'], 'pair')} to train on and {part.get('val', {}).get('pairs', 0):,} held out"
        for part in (before, setup.fingerprints)
    ]
    raise Refused(
        f"{path.name} cannot be continued exactly, because {setup.spec.data} has changed: it gave {counts[0]}, and now "
        f"gives {counts[1]}{', but different ones' * (counts[0] == counts[1])}. Restore the data, or begin a new "
        "training with its weights (--pretrained)"
    )


def restore(setup: Setup, state: checkpoints.State) -> tuple[TrainingProgress, list[str]]:
    """Restore model, optimizer and scaler; return progress and notes.

    Errors: Refused for weights alone, and for those of another model or optimizer.
    """
    if not {"state_dict", "optimizer", "epoch"} <= state.keys():
        raise Refused("the checkpoint has only weights, so no training can continue from it: use --pretrained instead")
    weights = {name.removeprefix("module."): tensor for name, tensor in state["state_dict"].items()}
    try:
        setup.model.load_state_dict(weights)
        setup.optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError) as error:
        if out_of_memory(error):
            raise
        raise Refused(f"the checkpoint is of another training: {differences(error)}") from error
    if setup.scaler is not None and "scaler" in state:
        setup.scaler.load_state_dict(state["scaler"])
    if "vitals" in state:
        # older versions stored `best`
        fields = {name: value for name, value in state["vitals"]["done"].items() if name != "best"}
        return TrainingProgress(**fields), []
    epoch = int(state["epoch"])  # written by open_clip's own training, which saves at the end of an epoch
    note = "the checkpoint is from open_clip's own training: dropout and crops differ from an uninterrupted training"
    step = epoch * setup.plan.steps_per_epoch
    samples = step * setup.plan.batch_size * setup.spec.accum_freq * setup.place.world_size
    return TrainingProgress(step=step, epoch=epoch, samples=samples), [note]


def check_left(progress: TrainingProgress, steps: int, patience: int, path: Path) -> None:
    """Refuse to continue a training that has ended. steps, patience: the requested ones. Errors: Refused."""
    if patience and progress.stale >= patience:
        raise Refused(
            f"{path.name} stopped early: its last {progress.stale} validations were not better, and the patience is "
            f"{patience}. Set a larger patience, or 0"
        )
    if progress.step > steps or (progress.step == steps and not progress.batch):
        raise Refused(
            f"{path.name} has {plural(progress.step, 'step')} behind it and {steps} are asked for, so nothing is left "
            "to train: ask for more epochs or steps"
        )


def note_on_early_stop(progress: TrainingProgress, steps: int, metric: str) -> str:
    """Return the note of a training that stops early. steps: the requested ones. metric: its best_metric."""
    validations = plural(progress.stale, "validation")
    note = f"stopped early at step {progress.step:,} of {steps:,}: {metric} was not better in {validations} in a row"
    if metric == "clip_val_loss":
        return note
    return f"{note}. An equal value with a lower held-out loss becomes the best model, but does not count as better"


def _changed(request: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return the names of fields with another value than before. Fields missing from either count as unchanged."""
    return [name for name, value in before.items() if name in request and not _is_same(name, request[name], value)]


def _is_same(name: str, one: Any, other: Any) -> bool:
    if name == "image_size":  # older checkpoints have one number
        return str(one) == str(other)
    return same_sources(one, other) if name in PATHS else bool(one == other)


def _short_text(value: Any) -> str:
    """Return a value as text of at most 100 characters: configurations have many lines."""
    text = "the default" if value is None else str(value) or "empty"
    return text if len(text) <= 100 else f"{text[:97]}..."
