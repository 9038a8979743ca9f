"""Choose the models that calibrate a device, and fit the device to its timings with a known device as prior."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from engine.estimate.devices import FittedDevice, estimate, fit_device, held_out_error
from engine.specs import Refused

FEWEST_CHOSEN, MOST_CHOSEN = 24, 48
"""Models to time: fewer fit a device badly, and more add little."""
QUICKEST = 0.7
"""Calibrate only with this share of the models, the quickest: slower ones use up the budget and add little."""
CALLS = 15
"""Fewest calls per timing: 10 samples and a warm-up."""


def choose_representative(families: Sequence[str], number: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return the positions of randomly chosen models, spread over as many families as possible.

    A D-optimal design is no better between published devices (benchmarks/estimate_error.py): it takes extreme models,
    which a linear model explains least.
    """
    order = pd.Series(np.random.default_rng(seed).permutation(len(families)))
    # the first of each family, then the second, ...
    rank_in_family = order.groupby(np.asarray(families)[order]).cumcount()
    return order.iloc[np.argsort(rank_in_family.to_numpy(), kind="stable")].to_numpy()[:number]


def choose(work: pd.DataFrame, near: FittedDevice, batch_size: int, budget_s: float) -> list[str]:
    """Return the names of models to time, all counted at the image size that they are timed at.

    near: a device of about the same speed, whose estimates tell which models are quick. budget_s: seconds of samples in
    total. Errors: Refused when it is too short for FEWEST_CHOSEN models.
    """
    models = work[work.index.get_level_values("image_size") == work["timed_size"]]
    models = models[models.index.get_level_values("name").str.startswith("timm:")]
    seconds = estimate(near, models, batch_size)["latency_ms"] / 1000
    number = int(np.clip(budget_s / 5, FEWEST_CHOSEN, MOST_CHOSEN))  # about 5 s of samples per model
    quick = seconds <= min(float(seconds.quantile(QUICKEST)), budget_s / number / CALLS)
    if quick.sum() < FEWEST_CHOSEN:
        raise Refused(
            f"a budget of {budget_s:g} s is enough for {quick.sum()} models at batch size {batch_size}, at least "
            f"{FEWEST_CHOSEN} are needed: give a longer budget or a smaller batch size"
        )
    models = models[quick]
    positions = choose_representative(list(models["family"]), number)
    return [str(name) for name in models.index.get_level_values("name")[positions]]


def calibrate_device(
    timings: pd.DataFrame,
    work: pd.DataFrame,
    priors: Sequence[FittedDevice],
    *,
    timed: str = "timed here",
    **fields: str | bool,
) -> FittedDevice:
    """Return a device fitted to timings. Each known device is tried as prior; the one with the smallest error is kept.

    Its error includes that choice: each fold's predictions come from the prior that is best on the other folds.

    timings: name, image_size, batch_size, seconds. priors: at least one. timed: source of the timings. fields:
    fields of FittedDevice. Errors: Refused with too few timings.
    """
    fits = [fit_device(timings, work, prior, **fields, source=f"{timed}; prior {prior.label}") for prior in priors]
    held_out = fits[0][1]
    seconds, fold = held_out["seconds"].to_numpy(), held_out["fold"].to_numpy()
    predicted = np.array([table["predicted"] for _, table in fits])
    error = np.abs(predicted / seconds - 1)
    chosen = np.zeros(len(seconds))
    for index in np.unique(fold):
        best = int(np.median(error[:, fold != index], axis=1).argmin())
        chosen[fold == index] = predicted[best, fold == index]
    best = int(np.median(error, axis=1).argmin())
    device, prior = fits[best][0], priors[best]
    # Few quick models only scale the prior's costs, so the range that it was fitted to still holds.
    most = {name: max(value, prior.most.get(name, 0.0)) for name, value in device.most.items()}
    return device.model_copy(update={"most": most, **held_out_error(seconds, chosen, fold)})


def read_timm(path: Path) -> pd.DataFrame:
    """Return the timings in a CSV file of timm's benchmark.py: name, image_size, batch_size, seconds per sample.

    Lines without positive numbers, or with sizes that are not whole, are left out. Errors: Refused when columns are
    missing or no line is left.
    """
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:  # ValueError includes pandas' and Unicode's
        raise Refused(f"{path} is no CSV file that can be read: {error}") from error
    prefix = "infer_" if "infer_samples_per_sec" in frame else ""
    columns = [f"{prefix}{name}" for name in ("img_size", "batch_size", "samples_per_sec")]
    if not {"model", *columns} <= set(frame):
        raise Refused(
            f"{path} lacks columns of timm's benchmark.py: model, infer_img_size, infer_batch_size and "
            f"infer_samples_per_sec. It has {', '.join(map(str, frame.columns[:8]))}"
        )
    numbers = frame[columns].apply(pd.to_numeric, errors="coerce").astype(float)
    timed = (np.isfinite(numbers) & (numbers > 0)).all(axis=1)  # failed models have no speed, or 0
    timed &= (numbers[columns[:2]] % 1 == 0).all(axis=1)
    if not timed.any():
        raise Refused(
            f"{path}: {', '.join(columns)} must be positive numbers in at least one line, and the sizes whole"
        )
    frame, numbers = frame[timed], numbers[timed]
    size, batch, rate = (numbers[column] for column in columns)
    names = "timm:" + frame["model"].astype(str).str.partition(".")[0]
    sizes = size.astype(int).astype(str)
    return pd.DataFrame({"name": names, "image_size": sizes, "batch_size": batch.astype(int), "seconds": 1 / rate})
