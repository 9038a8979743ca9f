"""Validate a model at the end of an epoch, decide whether it is the best so far, and describe it for its row."""

import logging
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from engine.datasets import captions_repeat
from engine.measure import peak
from engine.results import Event, Progress
from engine.results.clip import Retrieval, TrainRow
from engine.specs import Refused
from engine.training import precision
from engine.training.evaluation import classification
from engine.training.evaluation.encode import check_finite, directions, encode, generative_loss, retrieved
from engine.training.resuming import TrainingProgress
from engine.training.setup import Setup, used_settings

log = logging.getLogger("engine.training")
LOWER_IS_BETTER = ("_loss", "_mean_rank", "_median_rank")
"""Endings of the names of metrics whose smaller values are better."""
RETRIEVAL = [name for name in Retrieval.model_fields if "_to_" in name] + ["clip_val_loss"]
GENERATIVE = "val_generative_loss"


class Stopped(Exception):
    """The training was asked to stop before the validation ended."""


def validate(
    setup: Setup, epoch: int, progress: Progress, *, last: bool, stopped: Callable[[], bool] = lambda: False
) -> Generator[Event, None, dict[str, float]]:
    """Yield progress, and return the metrics under open_clip's names; empty without data for them or if none is due.

    epoch: number of completed epochs. progress: yielded after every batch, so that the caller can close this generator.
    stopped: called after every batch, because in a process started by torchrun no caller closes it. Errors: Stopped.
    """
    spec, held = setup.spec, setup.pairs
    retrieval, zeroshot = (
        bool(every and (epoch % every == 0 or last)) for every in (spec.val_frequency, spec.zeroshot_frequency)
    )
    found: dict[str, float] = {}
    encoded = None

    def unless_stopped(_: int) -> Progress:
        if stopped():
            raise Stopped
        return progress

    if held.val is not None and (retrieval or (zeroshot and held.zeroshot is None)):
        encoded = yield from encode(held.val, setup.reader, unless_stopped)
        if encoded.notes:  # an image was not checked before or is missing now: leave it out from now on
            held = setup.pairs = replace(held, val=encoded.pairs, notes=(*held.notes, *encoded.notes))
    if retrieval and encoded is not None:
        found |= retrieved(encoded, setup.plan.batch_size)
        if spec.loss == "coca":
            found[GENERATIVE] = yield from generative_loss(encoded.pairs, setup.reader, unless_stopped)
    if zeroshot and held.zeroshot is not None:
        encoded = yield from encode(held.zeroshot, setup.reader, unless_stopped, captions=False)
        if encoded.notes:
            held = setup.pairs = replace(held, zeroshot=encoded.pairs, notes=(*held.notes, *encoded.notes))
    if zeroshot and len(held.classes) > 1 and encoded is not None and encoded.labels is not None:
        found |= _zeroshot(setup, encoded.images, encoded.labels)
    if not found:
        return {}
    log.info("Eval Epoch: %d %s", epoch, "\t".join(f"{name}: {value:.4f}" for name, value in found.items()))
    return found


def _zeroshot(setup: Setup, features: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Return zero-shot accuracies; empty, with a line in the log, if the model's output is not finite."""
    spec, held = setup.spec, setup.pairs
    weights = directions(held.classes, held.templates, setup.reader)
    try:
        check_finite(features, "images")
        check_finite(weights.T, "classes")
    except Refused as refused:
        log.warning("zero-shot is not measured: %s", refused)
        return {}
    result = classification.results(features, labels, weights)
    name = f"{'digits' if (spec.zeroshot_data or spec.data) == 'digits' else 'own'}-zeroshot-val"
    top5 = {} if result.acc5 is None else {f"{name}-top5": result.acc5}
    return {f"{name}-top1": result.acc1} | top5


def score(metric: str, row: TrainRow) -> tuple[float, float] | None:
    """Return a row's value of a metric and its held-out loss, which decides among equal values; larger is better.

    None if the metric was not measured or is not finite. The loss is -inf if it was not measured.
    """
    value = getattr(row, metric)
    if value is None or not math.isfinite(value):
        return None
    loss = math.inf if row.clip_val_loss is None else row.clip_val_loss
    return -value if metric.endswith(LOWER_IS_BETTER) else value, -loss


def best_score(metric: str, rows: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Return the score of the best row so far; None if no row is the best or it lacks the metric.

    An earlier attempt may have chosen that row by another metric. rows: the training's rows as JSON.
    """
    best = next((row for row in reversed(rows) if row["best"]), None)
    return None if best is None else score(metric, TrainRow.model_validate(best))


def best_metric(setup: Setup) -> str:
    """Return the metric that decides the best checkpoint, the same for all epochs.

    It is the requested one, else zero-shot accuracy, else image-to-text recall at 1, else the training loss. Where most
    captions repeat, which limits recall at 1, the held-out loss takes its place.
    Errors: Refused if this training does not measure the requested one.
    """
    spec, held = setup.spec, setup.pairs
    measured = ["train_loss"]
    if held.val is not None and spec.val_frequency:
        generative = [GENERATIVE] if spec.loss == "coca" else []
        first = "clip_val_loss" if captions_repeat(held.notes) else "image_to_text_r1"
        measured = [first, *RETRIEVAL, *generative, *measured]
    labelled = held.zeroshot or held.val
    if labelled is not None and spec.zeroshot_frequency and len(held.classes) > 1 and labelled.label(0) is not None:
        measured = ["zeroshot_top1", *(["zeroshot_top5"] if len(held.classes) > classification.TOP else []), *measured]
    if spec.best_metric and spec.best_metric not in measured:
        choices = ", ".join(dict.fromkeys(measured))
        raise Refused(f"best_metric {spec.best_metric!r} is not measured by this training. Use one of {choices}")
    if spec.val_every_steps and len(measured) == 1:
        raise Refused(
            "val_every_steps has nothing to measure: give held-out pairs (val_data or val_fraction) and leave "
            "val_frequency or zeroshot_frequency above 0"
        )
    return spec.best_metric or measured[0]


def row_fields(
    setup: Setup, before: TrainingProgress, now: TrainingProgress, found: Mapping[str, float]
) -> dict[str, Any]:
    """Return the fields of a validation's row. found: its metrics. before, now: the progress before and after it."""
    spec, plan, spent, held = setup.spec, setup.plan, before.step_seconds, setup.pairs.val
    fields = metric_fields(found)
    labelled = (setup.pairs.zeroshot or held) if "zeroshot_top1" in fields else None
    return {
        "library": "open_clip",
        "model": spec.model,
        "device": spec.device,
        "precision": spec.precision,
        "tf32": precision.tf32(spec.device),
        "cudnn_benchmark": torch.device(spec.device).type == "cuda" and torch.backends.cudnn.benchmark,
        "epoch": now.epoch,
        "step": now.step,
        "samples_seen": now.samples,
        "best_metric": best_metric(setup),
        "val_batch_size": min(plan.batch_size, len(held)) if held and "clip_val_loss" in found else None,
        "val_pairs": len(held) if held and "image_to_text_r1" in fields else None,
        "zeroshot_images": len(labelled) if labelled else None,
        "zeroshot_classes": len(setup.pairs.classes) if labelled else None,
        "lr": setup.lr(now.step - 1) if now.step else None,
        "logit_scale": float(setup.model.logit_scale.detach().exp()),  # type: ignore[operator]
        "samples_per_s": before.batch * plan.batch_size * setup.place.world_size / spent if spent else None,
        "data_share": before.data_seconds / spent if spent else None,
        "seconds": now.seconds,
        "peak_memory_mb": peak.so_far(setup.place.device),
        **fields,
    }


def params(setup: Setup) -> dict[str, Any]:
    """Return the request with the values that were used for its defaults, as in open_clip's params.txt."""
    spec = setup.spec
    rates = {f"lr_{tower}": spec.peak_lr * spec.lr_scales.get(tower, 1.0) for tower in ("image", "text")}
    return {
        **spec.model_dump(mode="json", exclude={"configs"}),
        **used_settings(setup),
        **{"lr": spec.peak_lr, **rates, "warmup": setup.plan.warmup_steps},
        **{"image_size": list(setup.made.image_size), "best_metric": best_metric(setup)},
    }


def metric_fields(found: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics under the names of a row's fields."""
    return {
        f"zeroshot_{name[-4:]}" if name.endswith(("-top1", "-top5")) else name.replace("R@", "r"): value
        for name, value in found.items()
    }
