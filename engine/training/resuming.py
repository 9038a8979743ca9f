"""What may be asked for otherwise when a training goes on from a checkpoint, and what must be as it was."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.specs import Refused
from engine.specs.clip import same_sources
from engine.specs.train import TrainSpec
from engine.training.done import Done

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
    """Errors: Refused where a training of so many steps has nothing left to do after a checkpoint."""
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
