"""Measure the error of a calibrated machine: latencies estimated after `calibrate`, compared with measured ones.

    python -m benchmarks.calibration_error [--budget 5m] [--models 40] [--threads N] [--output FILE]

Run it on a quiet machine; it takes about half an hour. It calibrates an empty store (48 models in 5 minutes of samples)
and estimates every other timm model. Then it times `--models` of these at batch size 1, chosen at random over as many
families as possible; models above SLOWEST_S are left out. REPEATED calibrated models are timed again, to show how much
the machine itself varies. `first_24` are the errors after a calibration with only the first 24 models, `flops_alone`
those of the median FLOP rate, both on the same models.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from engine.estimate import calibrate, devices, work
from engine.report.timings import estimates, stored
from engine.settings import ROOT, Settings
from engine.store import open_store

RESULTS = Path(__file__).parent / "results" / "calibration_error.json"
SLOWEST_S = 2.0
"""Time only models estimated to take at most this long per image, in seconds."""
REPEATED = 8
"""Calibrated models that are timed again."""
KEPT = ["name", "image_size", "family", "latency_ms", "estimated_ms", "low_ms", "high_ms", "in_range", "flags"]


def run(settings: Settings, *arguments: str) -> pd.DataFrame:
    """Run a command of the program in a process of its own, and return the latest timings of the store.

    Errors: CalledProcessError.
    """
    environment = {**os.environ, "VITALS_RUNS_DIR": str(settings.runs_dir)}
    subprocess.run([sys.executable, "-m", "engine", *arguments], env=environment, check=True)
    with closing(open_store(settings)) as store:
        return estimates.timings(store)


def errors(rows: pd.DataFrame, column: str = "estimated_ms") -> dict[str, float]:
    """Return the median and 90th percentile of abs(estimated / measured - 1) in per cent."""
    error = 100 * (rows[column] / rows["latency_ms"] - 1).abs()
    found = {"median": float(error.median()), "p90": float(error.quantile(0.9))}
    return {"models": len(rows), **{key: round(value, 1) for key, value in found.items()}}


def estimate_with_first(timed: pd.DataFrame, counted: pd.DataFrame, number: int) -> "pd.Series[float]":
    """Return the latencies in ms that a calibration with the first `number` models estimates, with the index KEY."""
    first = timed.head(number)
    device = estimates.device_of_setting(first, stored.settings(first)[0], counted, devices.shipped())
    assert device is not None, "enough models were timed"
    return device.speeds(counted, 1)["latency_ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    threads = ("--threads", str(arguments.threads))
    counted = work.read(ROOT / "data" / "catalog")
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(runs_dir=Path(folder))
        timed = run(settings, "calibrate", "--budget", arguments.budget, *threads)
        device = estimates.available(timed, counted, settings.device_dir)[0]
        estimated = device.speeds(counted, 1).join(counted["family"]).reset_index()
        estimated["flops"] = counted[[f"flop:{kind}" for kind in work.FLOPS]].sum(axis=1).to_numpy()

        others = estimated[estimated["name"].str.startswith("timm:") & ~estimated["name"].isin(timed["name"])]
        others = others[others["latency_ms"] < 1000 * SLOWEST_S].drop_duplicates("name")
        places = calibrate.choose_representative(list(others["family"]), arguments.models, arguments.seed)
        names = [*others["name"].iloc[places], *timed["name"].sample(REPEATED, random_state=arguments.seed)]
        names = list(pd.Series(names).sample(frac=1, random_state=arguments.seed))
        quick = ("--replicates", "1", "--min-seconds", "5", "--max-seconds", "15")
        after = run(settings, "benchmark", "--models", ",".join(names), *quick, *threads)

    estimated = estimated.rename(
        columns={"latency_ms": "estimated_ms", "latency_ms_low": "low_ms", "latency_ms_high": "high_ms"}
    )
    before, rows = (frame.merge(estimated, on=work.KEY) for frame in (timed, after[after["name"].isin(names)]))
    again = rows.merge(timed[[*work.KEY, "latency_ms"]], on=work.KEY, suffixes=("", "_before"))
    rows = rows[~rows["name"].isin(timed["name"])]
    per_gflop = (before["latency_ms"] / before["flops"]).median()
    rows["flops_ms"] = per_gflop * rows["flops"]
    rows = rows.join(estimate_with_first(timed, counted, 24).rename("estimated_24_ms"), on=work.KEY)
    quiet = ~rows["flags"].str.contains("contended")
    inside = rows["latency_ms"].between(rows["low_ms"], rows["high_ms"])
    summary = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": device.fitted.label,
        "calibrated_on": len(before),
        "contended_in_calibration": int(before["flags"].str.contains("contended").sum()),
        "cross_validated": {
            "median": round(100 * device.fitted.median_error, 1),
            "p90": round(100 * device.fitted.p90_error, 1),
        },
        "hold_out": {**errors(rows), "coverage": round(100 * float(inside.mean()), 1)},
        "hold_out_in_range": errors(rows[rows["in_range"]]),
        "hold_out_unseen_families": errors(rows[~rows["family"].isin(before["family"])]),
        "hold_out_not_contended": errors(rows[quiet]),
        "first_24": errors(rows, "estimated_24_ms"),
        "flops_alone": errors(rows, "flops_ms"),
        "timed_again": errors(again, "latency_ms_before"),
    }
    print(json.dumps(summary, indent=1))
    summary["rows"] = json.loads(rows[KEPT].round(3).to_json(orient="records"))
    arguments.output.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
