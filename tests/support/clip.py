"""Helpers for tests of CLIP's pages: stored rows, curves and files of runs."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from engine.results import Event, Metric
from engine.results.clip import EvaluateRow, TrainRow
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.store import Cause, Exit, State, Store, attempts
from engine.store import queue as queueing
from tests.support.page import ENVIRONMENT


def queue_train(store: Store, **fields: object) -> int:
    """Queue a training without waking a scheduler, and return its run id."""
    return store.enqueue(TrainSpec.model_validate(fields))


def queue_evaluate(store: Store, **fields: object) -> int:
    """Queue an evaluation without waking a scheduler, and return its run id."""
    return store.enqueue(EvaluateSpec.model_validate(fields))


def train_row(epoch: int, **figures: object) -> TrainRow:
    """Return the row of an epoch of 22 steps. The second epoch is the best."""
    known: dict[str, object] = {
        **{"library": "open_clip", "model": "digits-clip", "device": "cpu", "epoch": epoch, "step": 22 * epoch},
        **{"samples_seen": 1408 * epoch, "train_loss": 3 / epoch, "clip_val_loss": 3.5 / epoch, "val_batch_size": 64},
        **{"zeroshot_top1": 0.934 if epoch == 2 else 0.5, "zeroshot_top5": 0.99, "image_to_text_r1": 0.4},
        **{"text_to_image_r1": 0.3, "lr": 1e-3, "logit_scale": 14.3, "samples_per_s": 900.0, "data_share": 0.05},
        **{"seconds": 3.0 * epoch, "checkpoint": f"checkpoints/epoch_{epoch}.pt", "best": epoch <= 2},
    }
    return TrainRow.model_validate(known | figures)


def curve_points(steps: int) -> list[Metric]:
    """Return the points of some curves of a training with `steps` steps."""
    names = ("train/loss", "train/lr", "train/step_s", "train/data_s", "train/samples_per_s")
    found = [Metric(step=step, name=name, value=1 / step) for name in names for step in range(1, steps + 1)]
    ends = [Metric(step=step, name="val/digits-zeroshot-val-top1", value=0.5) for step in range(22, steps + 1, 22)]
    return found + ends


def record(store: Store, run_id: int, events: Iterable[Event], state: State | None = State.FINISHED) -> None:
    """Store the events of a queued run and end it in `state`; None leaves it running."""
    attempt = queueing.claim(store.database, ENVIRONMENT.host, run_id)
    assert attempt
    attempts.begin(store.database, attempt)
    attempts.record(store.database, attempt, [ENVIRONMENT, *events])
    if state is not None:
        attempts.finish(store.database, attempt, state, Cause.ERROR if state is State.FAILED else None)
        attempts.close(store.database, attempt, Exit(code=0), None, "")


def write_checkpoints(folder: Path, *names: str) -> None:
    """Write fake checkpoint files with their manifests."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    for step, name in enumerate(names, 1):
        (folder / "checkpoints" / name).write_bytes(b"weights")
        (folder / "checkpoints" / f"{name}.json").write_text(f'{{"step": {step}}}')


def evaluate_row(task: str, **figures: object) -> EvaluateRow:
    known: dict[str, object] = {
        **{"library": "open_clip", "model": "digits-clip", "task": task, "data": "digits", "device": "cpu"},
        **{"images": 359, "captions": 1436, "seconds": 2.0, "embeddings_file": "embeddings.npz"},
    }
    if task == "retrieval":
        known |= {"image_to_text_r1": 0.91, "image_to_text_r5": 0.95, "text_to_image_r1": 0.25, "clip_val_loss": 2.5}
        known |= {"image_to_text_mean_rank": 1.5, "text_to_image_median_rank": 12.0, "val_batch_size": 64}
    else:
        known |= {"acc1": 0.934, "acc5": 0.998, "mean_per_class_recall": 0.93, "classes": 10}
        known |= {"confusion_file": f"{task}_confusion.csv"}
    if task == "zeroshot":
        known |= {"predictions_file": "zeroshot_predictions.csv"}
    return EvaluateRow.model_validate(known | figures)


def write_evaluation(folder: Path, sources: Sequence[str], labels: Sequence[int], classes: Sequence[str]) -> None:
    """Write the files of an evaluation with a wrong prediction for the first image and correct ones for all others."""
    folder.mkdir(parents=True, exist_ok=True)
    predicted = [(labels[0] + 1) % len(classes), *labels[1:]]
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (np.array(labels), np.array(predicted)), 1)
    for task in ("zeroshot", "linear-probe"):
        write_csv(
            folder / f"{task}_confusion.csv",
            [["true", *classes], *([name, *row] for name, row in zip(classes, counts.tolist(), strict=True))],
        )
    lines = [
        [source, place, classes[label], classes[guess], 0.9 - 7 * place % 30 / 100]
        for place, (source, label, guess) in enumerate(zip(sources, labels, predicted, strict=True))
    ]
    head = ["source", "index", "true", "predicted", "confidence"]
    write_csv(folder / "zeroshot_predictions.csv", [head, *lines])
    rng = np.random.default_rng(0)
    np.savez_compressed(
        folder / "embeddings.npz",
        images=rng.normal(size=(len(sources), 4)).astype(np.float32),
        texts=rng.normal(size=(len(sources), 4)).astype(np.float32),
        owner=np.arange(len(sources)),
        labels=np.array(labels),
        sources=np.array(sources),
        captions=np.array([f"a {classes[label]}" for label in labels]),
        classes=np.array(classes),
    )


def write_csv(path: Path, lines: Iterable[Sequence[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    return path


def write_images(folder: Path, *names: str) -> None:
    """Write a small image of a different colour under each name, or a broken one if it ends in `broken.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("broken.png"):
            (folder / name).write_bytes(b"\x89PNG\r\n\x1a\nno more")
        else:
            Image.new("RGB", (16 + place, 12), (40 * place % 256, 80, 120)).save(folder / name)
