"""Rows of training and evaluation of CLIP."""

from collections.abc import Iterable
from typing import ClassVar

from engine.results.base import DeviceName, Row


class Retrieval(Row):
    """Retrieval among the evaluated images and captions. Ranks begin at 1, shares lie between 0 and 1."""

    image_to_text_mean_rank: float | None = None
    image_to_text_median_rank: float | None = None
    image_to_text_r1: float | None = None
    """The share of images with a caption of theirs ranked first."""
    image_to_text_r5: float | None = None
    image_to_text_r10: float | None = None
    text_to_image_mean_rank: float | None = None
    text_to_image_median_rank: float | None = None
    text_to_image_r1: float | None = None
    text_to_image_r5: float | None = None
    text_to_image_r10: float | None = None
    clip_val_loss: float | None = None
    """Over batches of the size in val_batch_size."""
    val_batch_size: int | None = None


class TrainRow(Retrieval):
    """A model at the end of an epoch: what it has learned, and at what pace."""

    kind: ClassVar[str] = "train"

    device: DeviceName
    device_name: str = ""
    precision: str = "fp32"
    tf32: bool = False
    """Whether float32 matrix products and convolutions were computed in TF32."""
    cudnn_benchmark: bool = False
    """Whether cuDNN tried its algorithms and kept the fastest."""
    epoch: int
    """Completed epochs."""
    step: int
    """Completed optimizer steps."""
    samples_seen: int = 0
    train_loss: float | None = None
    """Mean over the epoch's steps."""
    val_generative_loss: float | None = None
    """Of held-out captions, a mean over their tokens, by a model that writes some."""
    zeroshot_top1: float | None = None
    zeroshot_top5: float | None = None
    lr: float | None = None
    logit_scale: float | None = None
    samples_per_s: float | None = None
    """Of training, without validation."""
    data_share: float | None = None
    """Of the time of a step, spent waiting for data."""
    seconds: float | None = None
    """Since the training began, earlier attempts included."""
    peak_memory_mb: float | None = None
    checkpoint: str = ""
    """Its path below the run's folder."""
    best: bool = False
    """Whether it was the best so far."""
    notes: tuple[str, ...] = ()


class EvaluateRow(Retrieval):
    """One task's result for one model."""

    kind: ClassVar[str] = "evaluate"

    task: str
    data: str = ""
    device: DeviceName
    device_name: str = ""
    precision: str = "fp32"
    images: int | None = None
    captions: int | None = None
    classes: int | None = None
    acc1: float | None = None
    acc5: float | None = None
    mean_per_class_recall: float | None = None
    confusion_file: str = ""
    """CSV below the run's folder: true classes in rows, predicted ones in columns."""
    predictions_file: str = ""
    embeddings_file: str = ""
    seconds: float | None = None
    notes: tuple[str, ...] = ()


def best_epoch(rows: Iterable[Row]) -> TrainRow | None:
    """Return the epoch with the best metric so far; None where no epoch has been validated."""
    return next((row for row in reversed(list(rows)) if isinstance(row, TrainRow) and row.best), None)
