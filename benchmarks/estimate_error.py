"""Errors of estimated speeds, compared with published ones, on families of models that the fit has not seen.

    python -m benchmarks.estimate_error [--ship]

Every published device is fitted to timm's published speeds, in 8 folds; no family of models is in two of them. The
strength with which costs are pulled together is chosen for each fold from the other families. Two simpler models are
fitted in the same folds: one rate for all FLOPs, and the linear baseline (relative least squares over FLOPs of six
kinds and bytes of 30, counted at batch 1). Calibration is simulated: a device is fitted to 24 of its quicker models
with another device as prior, and tested on families without a timed model, for ten random choices of these families.
The 24 models are chosen as by `calibrate`, and by a D-optimal design. --ship writes the fitted devices to
data/estimates/devices.json.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from engine.estimate import calibrate, devices, work
from engine.estimate.devices import FittedDevice
from engine.estimate.fit import adapt_costs, splits
from engine.estimate.work import BYTES, FEATURES, FLOPS, Floats
from engine.published import speeds
from engine.settings import ROOT

RESULTS = Path(__file__).parent / "results" / "estimate_error.json"
GOAL_PERCENT = {"GPU": (8, 30), "CPU": (12, 30)}
"""Largest median and 90th percentile of the error in inference."""
TIMED, TRIALS = 24, 10
"""Models timed by a simulated calibration, and random choices of the families to test on."""
PAIRS = (
    ("i9-10940X torch 2.4.0", "i7-12700H"),
    ("i7-12700H", "i9-10940X torch 2.4.0"),
    ("3090 amp eager torch 2.4.0", "4090 amp eager torch 2.4.0"),
    ("5090 amp eager", "4090 amp eager torch 2.9.1"),
)
"""Simulated calibrations: the device, and the device whose costs are the prior."""


def published() -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Return the fields and the published timings of each setting: name, image_size, batch_size, seconds."""
    frame = speeds.read()
    frame = frame.assign(name="timm:" + frame["model"], seconds=1 / frame["samples_per_s"])
    parts = frame.groupby(speeds.SETTING)
    return [(dict(zip(speeds.SETTING, setting, strict=True)), part) for setting, part in parts]


def baseline(amounts: Floats, seconds: Floats) -> Floats:
    """Return non-negative costs of FLOPs of six kinds and bytes of 30, by relative least squares."""
    from scipy.optimize import nnls

    used = [f"{kind}:gflop" for kind in FLOPS if kind != "scaled_dot_product_attention"]
    used += [f"{kind}:gb" for kind in BYTES[:30]]
    columns = [FEATURES.index(name) for name in used]
    costs = np.zeros(len(FEATURES))
    costs[columns] = nnls(amounts[:, columns] / seconds[:, None], np.ones(len(seconds)), maxiter=10_000)[0]
    return costs


def flops_alone(amounts: Floats, seconds: Floats) -> Floats:
    """Return one cost for all FLOPs, with the median relative error at zero."""
    flops = np.array([name.endswith(":gflop") for name in FEATURES])
    return flops * float(np.median(seconds / amounts[:, flops].sum(axis=1)))


def errors(predicted: Floats, seconds: Floats) -> dict[str, float]:
    """Return the median and 90th percentile of abs(predicted / measured - 1), in per cent."""
    error = 100 * np.abs(predicted / seconds - 1)
    return {"median": round(float(np.median(error)), 1), "p90": round(float(np.quantile(error, 0.9)), 1)}


def compare(known: FittedDevice, timed: pd.DataFrame, table: pd.DataFrame) -> dict[str, Any]:
    """Return the errors of a device, beside those of simpler models in the same folds."""
    joined = timed.drop_duplicates(work.KEY).set_index(work.KEY).join(table, how="inner")
    seconds = joined["seconds"].to_numpy()
    at_batch, at_one = work.features(joined, joined["batch_size"].to_numpy(dtype=float)), work.features(joined, 1)
    simpler = {}
    for name, fit, amounts in (("flops_alone", flops_alone, at_batch), ("linear_baseline", baseline, at_one)):
        predicted = np.zeros(len(seconds))
        for train, test in splits(list(joined["family"])):
            predicted[test] = amounts[test] @ fit(amounts[train], seconds[train])
        simpler[name] = errors(predicted, seconds)
    row = {
        "device": known.label,
        "models": known.models,
        "median": round(100 * known.median_error, 1),
        "p90": round(100 * known.p90_error, 1),
        "coverage": round(100 * known.coverage, 1),
        **{f"{name}_{key}": value for name, found in simpler.items() for key, value in found.items()},
    }
    if known.mode == "inference":
        median, p90 = GOAL_PERCENT["GPU" if "NVIDIA" in known.device else "CPU"]
        row["within_goal"] = row["median"] <= median and row["p90"] <= p90
    return row


def simulate_calibration(
    prior: FittedDevice, timed: pd.DataFrame, table: pd.DataFrame, *, optimal: bool
) -> dict[str, float]:
    """Return the errors of a simulated calibration on families without a timed model."""
    joined = timed.drop_duplicates(work.KEY).set_index(work.KEY).join(table, how="inner")
    seconds, batches = joined["seconds"].to_numpy(), joined["batch_size"].to_numpy(dtype=float)
    amounts, call = work.features(joined, batches), seconds * batches
    found = []
    for seed in range(TRIALS):
        random = np.random.default_rng(seed)
        names = np.unique(joined["family"])
        held_out = joined["family"].isin(random.choice(names, len(names) // 3, replace=False)).to_numpy()
        quick = np.flatnonzero(~held_out & (call <= np.quantile(call, 0.7)))
        if optimal:
            chosen = quick[_d_optimal(amounts[quick] * prior.vector, TIMED)]
        else:
            chosen = quick[calibrate.choose_representative(joined["family"].to_numpy()[quick], TIMED, seed)]
        costs = adapt_costs(prior.vector, amounts[chosen], seconds[chosen])
        found.append(errors(amounts[held_out] @ costs, seconds[held_out]))
    return {key: round(float(np.mean([trial[key] for trial in found])), 1) for key in ("median", "p90")}


def _d_optimal(costs: Floats, number: int) -> list[int]:
    """Return models chosen one by one, each with the largest variance of its predicted time."""
    from engine.estimate.fit import COARSE

    shares = np.stack([costs[:, np.array(COARSE) == group].sum(axis=1) for group in range(max(COARSE) + 1)], axis=1)
    shares /= shares.sum(axis=1, keepdims=True)
    inverse, chosen = np.eye(shares.shape[1]) * 1e3, []
    for _ in range(number):
        variance = np.einsum("ij,jk,ik->i", shares, inverse, shares)
        variance[chosen] = -1
        chosen.append(int(variance.argmax()))
        step = inverse @ shares[chosen[-1]]
        inverse -= np.outer(step, step) / (1 + shares[chosen[-1]] @ step)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ship", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    table, known, timed_on, rows = work.read(ROOT / "data" / "catalog"), [], {}, []
    for setting, timed in published():
        device, _ = devices.fit_device(timed, table, **setting, source=speeds.PUBLISHER)
        known.append(device)
        timed_on[device.label] = timed
        rows.append(compare(device, timed, table))
        print(rows[-1], flush=True)
    calibrations = []
    for name, prior in PAIRS:
        device, other = devices.find(known, name)[0], devices.find(known, prior)[0]
        for optimal in (False, True):
            found = simulate_calibration(other, timed_on[device.label], table, optimal=optimal)
            how = "D-optimal" if optimal else "representative"
            calibrations.append({"device": device.label, "prior": other.label, "chosen": how, "timed": TIMED, **found})
            print(calibrations[-1], flush=True)
    if arguments.ship:
        devices.SHIPPED.parent.mkdir(exist_ok=True)
        devices.SHIPPED.write_bytes(TypeAdapter(list[FittedDevice]).dump_json(known, indent=1) + b"\n")
    content = {"date": datetime.now(UTC).date().isoformat(), "devices": rows, "calibrations": calibrations}
    arguments.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
