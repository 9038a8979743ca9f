"""Describe devices by the fitted costs of their work, and estimate the latency of models on them."""

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import TypeAdapter

from engine.estimate.fit import adapt_costs, fit, splits
from engine.estimate.work import FEATURES, KEY, Floats, features
from engine.settings import ROOT
from engine.specs import Refused
from engine.specs.base import Closed

SHIPPED = ROOT / "data" / "estimates" / "devices.json"
LEVEL = 0.9
"""Share of new models that an interval should hold."""
SLACK = 1.25
"""Factor above the largest fitted value of a feature up to which a model is in range. Costs are linear, so a little
extrapolation is safe."""
MATTERS = 0.05
"""An estimate is out of range if features outside their fitted range make up at least this share of its time."""
FEWEST = 19
"""Fewest timed models to fit a device to. The range of n ratios holds (n - 1) / (n + 1) of new ratios: with fewer
models, that is less than LEVEL."""
UNITS = {"gflop": "GFLOP/s", "gb": "GB/s", "call": "us per call"}
"""Unit of the effective rate of an operator, by the unit of its work."""


class FittedDevice(Closed):
    """A device in one setting, with its costs and their error on families of models that were not fitted."""

    device: str
    precision: str
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    compiled: bool = False
    torch: str = ""
    mode: Literal["inference", "training"] = "inference"
    source: str
    name: str = ""
    """Label of a setting that was timed here or imported."""
    models: int
    """Number of timed models."""
    median_error: float
    """Median of abs(estimated / measured - 1) in seconds per sample, cross-validated over families."""
    p90_error: float
    coverage: float
    """Share of unseen models inside their interval."""
    low: float
    """`low` to `high`: interval of measured / estimated seconds that holds LEVEL of unseen models."""
    high: float
    batch_sizes: tuple[int, int]
    """Smallest and largest timed batch size."""
    typical_batch: int
    costs: dict[str, float]
    """Seconds per GFLOP, GB or call, by feature; those without a cost are left out."""
    most: dict[str, float]
    """Largest fitted value of each feature."""
    least_per_call: float
    """Least time per operator call of a fitted timing, in s. Below it, launching may take longer than the work."""

    @property
    def label(self) -> str:
        """Return a label such as `NVIDIA GeForce RTX 4090, amp, channels_last, eager, torch 2.4.0`."""
        if self.name:
            return self.name
        parts = [self.device, self.precision, "channels_last" if self.memory_format == "channels_last" else ""]
        parts += ["compiled" if self.compiled else "eager", f"torch {self.torch}" if self.torch else ""]
        parts += ["training"] if self.mode == "training" else []
        return ", ".join(filter(None, parts))

    @property
    def vector(self) -> Floats:
        """Return the cost of each of FEATURES in seconds."""
        return np.array([self.costs.get(feature, 0.0) for feature in FEATURES])


def shipped() -> list[FittedDevice]:
    """Return the published devices, from the file that `benchmarks.estimate_error` writes."""
    return TypeAdapter(list[FittedDevice]).validate_json(SHIPPED.read_bytes())


def find(available: Sequence[FittedDevice], name: str) -> list[FittedDevice]:
    """Return the devices whose label has all words of `name`: those timed here or imported first, then by newest torch.

    A word may leave out spaces of the label, as `rtx3090` does. Errors: Refused when there is none, with all labels.
    """
    words = name.lower().replace(",", " ").split()

    def fits(label: str) -> bool:
        return all(word in label or word in label.replace(" ", "") for word in words)

    if matches := [device for device in available if fits(device.label.lower())]:
        # devices timed here or imported have no version and come first
        return sorted(matches, key=lambda device: [-int(part) for part in re.findall(r"\d+", device.torch or "10000")])
    labels = "\n  ".join(device.label for device in available)
    raise Refused(f"no known device has {name!r} in its name. Calibrate this machine, or choose one of\n  {labels}")


def estimate(device: FittedDevice, work: pd.DataFrame, batch_size: int | None = None) -> pd.DataFrame:
    """Return the estimated speed of each model, indexed as `work` (see work.read).

    Columns: batch_size, in_range, samples_per_s, latency_ms, and the limits of the last two with _low and _high.
    batch_size: the device's typical one if None.
    """
    batch = batch_size or device.typical_batch
    amounts = features(work, batch)
    parts = amounts * device.vector
    seconds = parts.sum(axis=1)
    limit = SLACK * np.array([device.most.get(feature, 0.0) for feature in FEATURES])
    # a feature without a cost may be new to the fit; its work is then weighed by its share of all work in the same unit
    outside = np.where(amounts > limit, np.maximum(parts / seconds[:, None], _shares(amounts)), 0).sum(axis=1)
    long_enough = seconds >= device.least_per_call / SLACK * _calls(amounts)
    low, high = device.batch_sizes
    table = pd.DataFrame(index=work.index).assign(batch_size=batch)
    for suffix, factor in (("", 1.0), ("_low", device.high), ("_high", device.low)):
        table[f"samples_per_s{suffix}"] = 1 / (seconds * factor)
    for suffix, factor in (("", 1.0), ("_low", device.low), ("_high", device.high)):
        table[f"latency_ms{suffix}"] = 1000 * batch * seconds * factor
    return table.assign(in_range=(outside < MATTERS) & long_enough & (low <= batch <= high))


def _calls(amounts: Floats) -> Floats:
    """Return the operator calls per sample of each model: those of a batch, divided by its size."""
    of_operators = [feature.endswith(":call") and feature != "batch:call" for feature in FEATURES]
    calls: Floats = amounts[:, of_operators].sum(axis=1)
    return calls


def _shares(amounts: Floats) -> Floats:
    """Return each feature's share of the model's FLOPs, bytes or calls."""
    units = np.array([feature.partition(":")[2] for feature in FEATURES])
    shares = np.zeros_like(amounts)
    for unit in UNITS:
        total = amounts[:, units == unit].sum(axis=1, keepdims=True)
        shares[:, units == unit] = amounts[:, units == unit] / np.where(total > 0, total, 1)
    return shares


def rates(device: FittedDevice) -> pd.DataFrame:
    """Return the effective rate of each kind of operator: kind, rate, unit. In any precision, FLOPs and bytes are those
    of float32."""
    rows = []
    for feature, cost in device.costs.items():
        kind, _, unit = feature.partition(":")
        rows.append((kind, 1e6 * cost if unit == "call" else 1 / cost, UNITS[unit]))
    return pd.DataFrame(rows, columns=["kind", "rate", "unit"])


def fit_device(
    timed: pd.DataFrame, work: pd.DataFrame, prior: FittedDevice | None = None, **fields: str | bool
) -> tuple[FittedDevice, pd.DataFrame]:
    """Fit a device, and return it with the held-out predictions: KEY, family, seconds, predicted, fold.

    timed: KEY, batch_size, seconds per sample. work: from work.read. prior: a device whose costs are adapted, for few
    timings. fields: fields of FittedDevice. Errors: Refused with fewer than FEWEST models or with one family.
    """
    timed = timed.drop_duplicates(KEY).set_index(KEY).join(work, how="inner")
    if len(timed) < FEWEST:
        raise Refused(
            f"{len(timed)} counted models are timed, at least {FEWEST} are needed to fit a device: time more, or run "
            "`python -m engine calibrate`"
        )
    if timed["family"].nunique() < 2:
        raise Refused(
            f"all {len(timed)} timed models are of the family {timed['family'].iloc[0]}, so the error on others "
            "is unknown: time models of at least 2 families"
        )
    seconds, batches = timed["seconds"].to_numpy(), timed["batch_size"].to_numpy(dtype=float)
    amounts = features(timed, batches)
    family = timed["family"].to_numpy()

    def fitted_to(chosen: npt.NDArray[np.bool_]) -> Floats:
        if prior:
            return adapt_costs(prior.vector, amounts[chosen], seconds[chosen])
        return fit(amounts[chosen], seconds[chosen], family[chosen])

    predicted, fold = np.zeros(len(timed)), np.zeros(len(timed), dtype=int)
    for index, (train, test) in enumerate(splits(family)):
        predicted[test], fold[test] = amounts[test] @ fitted_to(train), index
    costs = fitted_to(np.ones(len(timed), dtype=bool))
    device = FittedDevice.model_validate(
        {
            **fields,
            "models": len(timed),
            **held_out_error(seconds, predicted, fold),
            "batch_sizes": (int(batches.min()), int(batches.max())),
            "typical_batch": int(timed["batch_size"].mode().iloc[0]),
            "costs": {name: float(f"{cost:.5g}") for name, cost in zip(FEATURES, costs, strict=True) if cost > 0},
            "most": dict(zip(FEATURES, (float(f"{value:.5g}") for value in amounts.max(axis=0)), strict=True)),
            "least_per_call": float(f"{(seconds / _calls(amounts)).min():.5g}"),
        }
    )
    return device, timed[["family", "batch_size", "seconds"]].assign(predicted=predicted, fold=fold).reset_index()


def held_out_error(seconds: Floats, predicted: Floats, fold: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return the fields of FittedDevice that hold the error of held-out predictions, and their interval.

    seconds, predicted, fold: (N,) measured and predicted seconds, and the fold that each prediction was held out in.
    """
    ratio, error = seconds / predicted, np.abs(predicted / seconds - 1)
    inside = np.zeros(len(ratio), dtype=bool)
    for index in np.unique(fold):  # each fold's intervals come from the other folds
        low, high = interval(ratio[fold != index])
        inside[fold == index] = (low <= ratio[fold == index]) & (ratio[fold == index] <= high)
    low, high = interval(ratio)
    values = {
        "median_error": np.median(error),
        "p90_error": np.quantile(error, 0.9),
        "coverage": inside.mean(),
        "low": low,
        "high": high,
    }
    return {name: round(float(value), 4) for name, value in values.items()}


def interval(ratios: Floats) -> tuple[float, float]:
    """Return the range that holds LEVEL of new ratios, with the finite-sample correction of conformal prediction."""
    count = len(ratios)
    tail = np.floor(round((1 - LEVEL) / 2 * (count + 1), 9)) / count
    return float(np.quantile(ratios, tail, method="lower")), float(np.quantile(ratios, 1 - tail, method="higher"))
