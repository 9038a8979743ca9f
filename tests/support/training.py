"""Run trainings small enough for a test: a CLIP model of two thin layers on a few handwritten digits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine import datasets
from engine.results import Event, Metric
from engine.results.clip import TrainRow
from engine.specs.train import TrainSpec
from engine.training.distributed import Place
from engine.training.loop import Training
from engine.training.setup import prepare

TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 8, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}

CONSTANT_METRIC = {"lr": 1e-12, "best_metric": "image_to_text_r1", "epochs": 6}
"""Fields of a training whose metric does not change."""


def tiny(**fields: Any) -> TrainSpec:
    """Return the spec of a training of two epochs, with 4 steps of 8 pairs each."""
    defaults = {"samples": 40, "batch_size": 8, "epochs": 2, "log_every_n_steps": 1, "tensorboard": False}
    defaults |= {"val_at_start": False}
    return TrainSpec.model_validate({"model": "config:tiny", "configs": {"tiny": TINY}} | defaults | fields)


def captioned(folder: Path, count: int = 12, caption: str = "scan {index} of the digit {digit}") -> Path:
    """Write a CSV of digits as PNG files with captions, and return its path.

    caption: pattern with {index}, {digit} and {parity}; by default all captions differ.
    """
    digits = datasets.open_pairs("digits")
    lines = ["filepath,title"]
    for index in range(count):
        digit = digits.label(index) or 0
        digits.image(index).save(folder / f"{index}.png")
        lines.append(f"{index}.png,{caption.format(index=index, digit=digit, parity=('even', 'odd')[digit % 2])}")
    (folder / "pairs.csv").write_text("\n".join(lines))
    return folder / "pairs.csv"


def training(spec: TrainSpec, folder: Path) -> Training:
    """Prepare a training in this process."""
    return Training(prepare(spec, Place(device=spec.device), folder), folder, "here")


def train(spec: TrainSpec, folder: Path, steps: int | None = None) -> list[Event]:
    """Return the events of a training until it ends, or is stopped after `steps` steps, like a cancelled run."""
    events, result = training(spec, folder).run(), []
    for event in events:
        result.append(event)
        if steps is not None and isinstance(event, Metric) and event.name == "train/loss" and event.step >= steps:
            break
    close(events)
    return result


def close(events: Iterator[Event]) -> None:
    """Close the event generator of a task, as the worker does."""
    events.close()  # type: ignore[attr-defined]


def losses(events: list[Event]) -> list[tuple[int, float]]:
    """Return (step, loss) of every step that was reported."""
    return [(item.step, item.value) for item in events if isinstance(item, Metric) and item.name == "train/loss"]


def rows(events: list[Event]) -> list[TrainRow]:
    """Return the rows of a training, one per epoch."""
    return [event for event in events if isinstance(event, TrainRow)]
