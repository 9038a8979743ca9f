"""Compare the largest batch size by estimated memory with published batch sizes, and with those that did not fit.

    python -m benchmarks.largest_batch [--output FILE]

timm's benchmark starts each model at one batch size and takes the next smaller step of a ladder (1024, 768, 512, 384,
...) after an error, mostly out of memory. So a published batch size has fitted, and if it is below the start, the next
larger step has not. The estimate is the app's own (engine.report.timings.needs), in amp; it leaves out the memory of
PyTorch and cuDNN's workspaces. `factor_low` and `factor_high` are medians of memory / estimate at the failed and at the
fitting step: the true factor from the estimate to what the device needs lies between them.
"""

import argparse
import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engine.published import speeds
from engine.report.catalog import catalog
from engine.report.timings import needs
from engine.settings import ROOT
from engine.specs import BenchmarkSpec, ModelName

RESULTS = Path(__file__).parent / "results" / "largest_batch.json"
LADDER = [1, *(step for power in range(1, 11) for step in (2**power, 3 * 2 ** (power - 1)) if step <= 1024)]
SOME = 64
"""Batch size from which estimates are extrapolated. They grow in proportion there, even if not from one image on."""
GIB = {"NVIDIA GeForce RTX 3090": 23.69, "NVIDIA GeForce RTX 4090": 23.65, "NVIDIA GeForce RTX 5090": 31.36}
"""Total memory that PyTorch reports."""


def estimates() -> pd.DataFrame:
    """Return the app's estimate of each counted timm model.

    Columns: model, image_size, mode, compiled, fixed (GB) and each (GB per image).
    """
    counted = catalog.read(ROOT / "data" / "catalog")
    counted = counted[(counted["status"] == "ok") & (counted["library"] == "timm")]
    counted = counted.drop_duplicates(["model", "image_size"])
    lines = []
    for place in range(len(counted)):
        row = counted.iloc[[place]]
        model, size = row["model"].iloc[0], row["image_size"].iloc[0]
        for mode, compiled in (("inference", False), ("inference", True), ("training", False)):
            some, more = (_gb(row, mode, compiled, batch) for batch in (SOME, 2 * SOME))
            lines.append((model, size, mode, compiled, 2 * some - more, (more - some) / SOME))
    return pd.DataFrame(lines, columns=["model", "image_size", "mode", "compiled", "fixed", "each"])


def _gb(row: pd.DataFrame, mode: str, compiled: bool, batch_size: int) -> float:
    name = ModelName(row["name"].iloc[0])
    fields = {"models": (name,), "mode": mode, "batch_size": batch_size, "precision": ("amp",), "device": "cuda:0"}
    fields["variants"] = "compile" if compiled else "eager"
    spec = BenchmarkSpec.model_validate(fields | {"image_size": row["image_size"].iloc[0]})
    need = needs.memory(spec, [name], row)
    assert need, "the row is counted"
    return need.gb


def points() -> pd.DataFrame:
    """Return the published batch sizes on GPUs: SETTING, batch_size, failed, capacity (GB), fixed, each.

    failed: the next larger step, which ran out of memory; NaN at the start.
    """
    frame = speeds.read()
    frame = frame[frame["device"].isin(GIB)]
    start = frame.groupby(speeds.SETTING)["batch_size"].transform("max")
    larger = frame["batch_size"].map(dict(pairwise(LADDER)))
    frame = frame.assign(failed=larger.where(frame["batch_size"] < start))
    frame["capacity"] = frame["device"].map(GIB) * 2**30 / 1e9
    return frame.merge(estimates(), on=["model", "image_size", "mode", "compiled"])


def errors(rows: pd.DataFrame) -> dict[str, Any]:
    """Return how often the estimate is right. rows: from `points`."""
    room = rows["capacity"] - rows["fixed"]
    predicted = np.searchsorted(LADDER, room / rows["each"], side="right") - 1
    failed = rows["failed"].notna()
    steps = (predicted - np.searchsorted(LADDER, rows["batch_size"]))[failed]
    fitting, failing = (rows["fixed"] + rows["each"] * rows[name] for name in ("batch_size", "failed"))
    return {
        "fitted": len(rows),
        "said_to_fit_percent": _percent(fitting <= rows["capacity"]),
        "failed": int(failed.sum()),
        "said_to_fail_percent": _percent((failing > rows["capacity"])[failed]),
        "same_step_percent": _percent(steps == 0),
        "within_one_step_percent": _percent(np.abs(steps) <= 1),
        "factor_low": round(float((rows["capacity"] / failing)[failed].median()), 2),
        "factor_high": round(float((rows["capacity"] / fitting)[failed].median()), 2),
    }


def _percent(true: Any) -> float:
    return round(100 * float(np.mean(true)), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    settings = []
    for setting, rows in points().groupby(speeds.SETTING):
        settings.append(dict(zip(speeds.SETTING, setting, strict=True)) | errors(rows))
        print(settings[-1], flush=True)
    content = {"date": datetime.now(UTC).date().isoformat(), "settings": settings}
    arguments.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
