"""Build the row of a validation, and the settings of a training with the values of its defaults."""

from collections.abc import Mapping
from typing import Any

import torch

from engine.measure import peak
from engine.results.clip import TrainRow
from engine.training import precision
from engine.training.done import Done
from engine.training.setup import Setup
from engine.training.validation import best_metric, row_fields


def row(
    setup: Setup, done: Done, now: Done, found: Mapping[str, float], *, train_loss: float | None, best: bool
) -> TrainRow:
    """Return the row of a validation. found: its metrics. done, now: the progress before and after it."""
    spec, plan, spent = setup.spec, setup.plan, done.step_seconds
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
        val_batch_size=plan.batch_size if "clip_val_loss" in found else None,
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
    spec, plan, defaults = setup.spec, setup.plan, setup.optimizer.defaults
    beta1, beta2 = defaults.get("betas", (None, None))
    rates = {f"lr_{tower}": spec.peak_lr * spec.lr_scales.get(tower, 1.0) for tower in ("image", "text")}
    return {
        **spec.model_dump(mode="json", exclude={"configs"}),
        **{"batch_size": plan.batch_size, "epochs": plan.epochs, "steps": plan.steps, "warmup": plan.warmup_steps},
        **{"lr": spec.peak_lr, "beta1": beta1, "beta2": beta2, "eps": defaults.get("eps"), **rates},
        **{"image_size": list(setup.made.image_size), "context_length": setup.made.context_length},
        **{"best_metric": best_metric(setup), "threads": torch.get_num_threads()},
        **{"train_pairs": len(setup.pairs.train), "val_pairs": len(setup.pairs.val or ())},
    }
