"""Choose the models that calibrate a device, and fit the device to its timings with a known device as prior."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from engine.estimate.devices import Known, estimate, fitted
from engine.specs import Refused

FEWEST_CHOSEN, MOST_CHOSEN = 24, 48
QUICKEST = 0.7
"""Calibrate with models among this share of the quickest: larger ones use up the budget and add little."""
CALLS = 15
"""Calls that a timing needs at least: 10 samples and a warm-up."""


def representative(families: Sequence[str], number: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return the places of a random choice of models, spread over as many families as possible.

    A D-optimal design is no better between published devices (benchmarks/estimate_error.py): it takes extreme models,
    whose time a linear model explains least.
    """
    order = pd.Series(np.random.default_rng(seed).permutation(len(families)))
    turn = order.groupby(np.asarray(families)[order]).cumcount()  # the first of each family, then the second, ...
    return order.iloc[np.argsort(turn.to_numpy(), kind="stable")].to_numpy()[:number]


def choose(work: pd.DataFrame, near: Known, batch_size: int, budget_s: float, seed: int = 0) -> list[str]:
    """Return the names of models to time. near: a device that is about as fast.

    budget_s: seconds of samples in total. Errors: Refused when it is too short for FEWEST_CHOSEN models.
    """
    models = work.reset_index().drop_duplicates("name").set_index(work.index.names)  # at their own size
    models = models[models.index.get_level_values("name").str.startswith("timm:")]
    seconds = estimate(near, models, batch_size)["latency_ms"] / 1000
    number = int(np.clip(budget_s / 5, FEWEST_CHOSEN, MOST_CHOSEN))
    quick = seconds <= min(float(seconds.quantile(QUICKEST)), budget_s / number / CALLS)
    if quick.sum() < FEWEST_CHOSEN:
        raise Refused(
            f"a budget of {budget_s:g} s is enough for {quick.sum()} models at batch size {batch_size}, at least "
            f"{FEWEST_CHOSEN} are needed: give a longer budget or a smaller batch size"
        )
    models = models[quick]
    places = representative(list(models["family"]), number, seed)
    return [str(name) for name in models.index.get_level_values("name")[places]]


def calibrated(
    timings: pd.DataFrame, work: pd.DataFrame, known: Sequence[Known], *, timed: str = "timed here", **what: str | bool
) -> Known:
    """Return a device fitted to its timings, with the known device as prior that has the smallest held-out error.

    timings: name, image_size, batch_size, seconds. known: candidates, at least one. timed: source of the timings. what:
    fields of Known. Errors: Refused with too few timings.
    """
    fits = []
    for prior in known:
        device, _ = fitted(timings, work, prior, **what, source=f"{timed}; prior {prior.label}")
        # A few quick models scale the prior's costs, which hold over the range that the prior was fitted to.
        most = {name: max(value, prior.most.get(name, 0.0)) for name, value in device.most.items()}
        fits.append(device.model_copy(update={"most": most}))
    return min(fits, key=lambda device: device.median_error)


def read_timm(path: Path) -> pd.DataFrame:
    """Return the timings in a CSV file of timm's benchmark.py: name, image_size, batch_size, seconds per sample.

    Errors: Refused when columns are missing or values are no positive numbers.
    """
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:  # ValueError includes pandas' and Unicode's
        raise Refused(f"{path} is no CSV file that can be read: {error}") from error
    for prefix in ("infer_", ""):
        columns = [f"{prefix}{name}" for name in ("img_size", "batch_size", "samples_per_sec")]
        if {"model", *columns} <= set(frame.columns):
            break
    else:
        raise Refused(
            f"{path} lacks columns of timm's benchmark.py: model, infer_img_size, infer_batch_size and "
            f"infer_samples_per_sec. It has {', '.join(map(str, frame.columns[:8]))}"
        )
    numbers = frame[columns].apply(pd.to_numeric, errors="coerce")
    frame, numbers = frame[numbers.notna().all(axis=1)], numbers.dropna()  # failed models have no speed
    if not len(numbers) or not (np.isfinite(numbers) & (numbers > 0)).all(axis=None):
        raise Refused(f"{path}: {', '.join(columns)} must be positive numbers in at least one line")
    size, batch, rate = (numbers[column] for column in columns)
    names = "timm:" + frame["model"].astype(str).str.partition(".")[0]
    sizes = size.astype(int).astype(str)
    return pd.DataFrame({"name": names, "image_size": sizes, "batch_size": batch.astype(int), "seconds": 1 / rate})
