"""Build the row of a validation, and the settings of a training with the values of its defaults."""

from collections.abc import Mapping
from typing import Any

import torch

from engine.measure import peak
from engine.results.clip import TrainRow
from engine.training import precision
from engine.training.done import Done
from engine.training.setup import Setup, used_settings
from engine.training.validation import best_metric, row_fields


def row(
    setup: Setup, done: Done, now: Done, found: Mapping[str, float], *, train_loss: float | None, best: bool
) -> TrainRow:
    """Return the row of a validation. found: its metrics. done, now: the progress before and after it."""
    spec, plan, spent, held = setup.spec, setup.plan, done.step_seconds, setup.pairs.val
    return TrainRow(
        library="open_clip",
        model=spec.model,
        device=spec.device,
        precision=spec.precision,
        tf32=precision.tf32(spec.device),
        cudnn_benchmark=torch.device(spec.device).type == "cuda" and torch.backends.cudnn.benchmark,
        epoch=now.epoch,
        step=now.step,
        samples_seen=now.samples,
        train_loss=train_loss,
        val_batch_size=min(plan.batch_size, len(held)) if held and "clip_val_loss" in found else None,
        lr=setup.lr(now.step - 1) if now.step else None,
        logit_scale=float(setup.model.logit_scale.detach().exp()),  # type: ignore[operator]
        samples_per_s=done.batch * plan.batch_size * setup.place.world_size / spent if spent else None,
        data_share=done.data_seconds / spent if spent else None,
        seconds=now.seconds,
        peak_memory_mb=peak.so_far(setup.place.device),
        best=best,
        **row_fields(found),
    )


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
