"""Rows of training and evaluation of CLIP."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from pydantic import Field

from engine.results.base import DeviceName, Row


class Retrieval(Row):
    """Retrieval metrics on the evaluated images and captions. Ranks begin at 1; shares are between 0 and 1."""

    image_to_text_mean_rank: float | None = None
    image_to_text_median_rank: float | None = None
    image_to_text_r1: float | None = None
    """Share of images for which one of their own captions ranks first."""
    image_to_text_r5: float | None = None
    image_to_text_r10: float | None = None
    text_to_image_mean_rank: float | None = None
    text_to_image_median_rank: float | None = None
    text_to_image_r1: float | None = None
    text_to_image_r5: float | None = None
    text_to_image_r10: float | None = None
    clip_val_loss: float | None = None
    """Loss over batches of val_batch_size pairs: each image once, with its first caption."""
    val_batch_size: int | None = None


class TrainRow(Retrieval):
    """The state of a training before its first step, within an epoch or at its end: losses, metrics and speed."""

    kind: ClassVar[str] = "train"

    device: DeviceName
    device_name: str = ""
    precision: str = "fp32"
    tf32: bool = False
    """True if float32 matrix products and convolutions were computed in TF32."""
    cudnn_benchmark: bool = False
    """True if cuDNN tried all algorithms and used the fastest."""
    epoch: int
    """Number of completed epochs."""
    step: int
    """Number of completed optimizer steps."""
    samples_seen: int = 0
    train_loss: float | None = None
    """Mean loss over the epoch's steps so far."""
    val_generative_loss: float | None = None
    """Mean caption loss per token on held-out captions; only for models that write captions."""
    zeroshot_top1: float | None = None
    zeroshot_top5: float | None = None
    zeroshot_images: int | None = None
    zeroshot_classes: int | None = None
    """Number of classes that zero-shot classification chooses from."""
    val_pairs: int | None = None
    """Number of held-out pairs whose images and captions were searched."""
    lr: float | None = None
    logit_scale: float | None = None
    samples_per_s: float | None = None
    """Training pairs per second in the epoch that ends or is under way, without validation."""
    data_share: float | None = None
    """Share of the step time of the same epoch spent waiting for data."""
    neighbour_share: float | None = None
    """Share of the CPUs that other programs used since the row before or, in an attempt's first row, since its start.

    On the machine of the first process. None if not reported, and over less than a second."""
    seconds: float | None = None
    """Seconds since the training began, including earlier attempts."""
    peak_memory_mb: float | None = None
    checkpoint: str = ""
    """Path of the checkpoint below the run's folder."""
    best: bool = False
    """True if this epoch was the best so far."""
    best_metric: str = ""
    """The metric that decides the best epoch; empty in rows of older runs."""
    notes: tuple[str, ...] = ()


class EvaluateRow(Retrieval):
    """The result of one task for one model on one data set."""

    kind: ClassVar[str] = "evaluate"

    checkpoint: str = ""
    task: str
    data: str = ""
    device: DeviceName
    device_name: str = ""
    precision: str = "fp32"
    images: int | None = None
    captions: int | None = None
    distinct_captions: int | None = None
    classes: int | None = None
    recalls: dict[str, float] = Field(default_factory=dict)
    """Recall at ranks other than 1, 5 and 10, by names such as `image_to_text_r20`."""
    acc1: float | None = None
    acc5: float | None = None
    mean_per_class_recall: float | None = None
    mean_average_precision: float | None = None
    """Mean over the classes that occur; None if an image has only one class."""
    probe_images: int | None = None
    """Number of training images of the linear probe."""
    probe_c: float | None = None
    """C of the linear probe: the inverse of its regularisation strength."""
    confusion_file: str = ""
    """CSV file below the run's folder: rows are true classes, columns are predicted ones."""
    predictions_file: str = ""
    average_precision_file: str = ""
    """CSV file with the average precision of each class."""
    embeddings_file: str = ""
    seconds: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def part(self) -> tuple[str, str, str]:
        """Return model, checkpoint and data. The checkpoint is empty in rows of older runs."""
        return self.model, self.checkpoint, self.data


def best_epoch(rows: Iterable[Row]) -> TrainRow | None:
    """Return the epoch with the best metric so far; None if no epoch has been validated."""
    return next((row for row in reversed(list(rows)) if isinstance(row, TrainRow) and row.best), None)


def mean_pairs_per_s(rows: Sequence[TrainRow]) -> float | None:
    """Return the pairs per second of a whole training: the pairs of all epochs / the seconds of their steps.

    The seconds include waiting for data, but no validation. `samples_per_s` of the last row of an epoch covers all its
    steps so far, so their seconds are its pairs / `samples_per_s`. rows: all rows of the training, in their order.
    None without steps. Steps after the last row do not count.
    """
    pairs, seconds, epoch, before = 0, 0.0, 0, 0
    for row in rows:
        ended = row.epoch > epoch
        if row.samples_per_s and (ended or row is rows[-1]):
            pairs += row.samples_seen - before
            seconds += (row.samples_seen - before) / row.samples_per_s
        if ended:
            epoch, before = row.epoch, row.samples_seen
    return pairs / seconds if seconds else None
