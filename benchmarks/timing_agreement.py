"""Compare our timings with those of torch.utils.benchmark.

python -m benchmarks.timing_agreement [--rounds 60] [--output benchmarks/results/timing_agreement.json]

A small network is timed at one thread by engine.measure.timing and by torch.utils.benchmark.Timer in one process, in
random order in each round. The result is the median of the rounds' ratios with its 99 % interval (sign test).
benchmarks/interval_coverage.py simulates the coverage of our intervals of a ratio.
"""

import argparse
import datetime
import json
import os
import platform
import random
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.intervals import median_interval

AGREEMENT = 0.03
"""Largest relative difference that counts as agreement."""
Figures = dict[str, Any]


def network(seed: int = 0) -> Callable[[], object]:
    """Return a function that calls a small convolutional network, which takes about 1 ms at one thread."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    widths = (3, 16, 32, 64, 64)
    layers = [
        layer
        for before, after in pairwise(widths)
        for layer in (nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU())
    ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()
    images = torch.randn(4, 3, 64, 64)

    def call() -> object:
        with torch.inference_mode():
            return model(images)

    return call


def agreement(rounds: int) -> Figures:
    """Time the network by both in random order in each round, and return the medians and their ratio.

    Both take the same number of samples and of calls per sample. By default, Timer's blocks are up to a hundred times
    longer, and on a busy machine, longer blocks contain more of the other programs' work.
    """
    import numpy as np
    from torch.utils.benchmark import Timer

    from engine.measure.plan import Plan, Subject
    from engine.measure.stopwatch import stopwatch_for
    from engine.measure.timing import measure

    call = network()
    timer = Timer("call()", globals={"call": call}, num_threads=1)
    plan = Plan(min_samples=100, min_seconds=0.1, warmup_seconds=0.1)

    def time_ours() -> tuple[float, int, int]:
        """Return the median in ms, the number of samples, and the calls per sample."""
        found = measure([Subject("call", {"forward": call})], stopwatch_for("cpu"), plan).timed["call"]
        return float(np.median(found.samples_ms)), len(found.samples_ms), int(np.median(found.calls))

    medians: dict[str, list[float]] = {"ours": [], "theirs": []}
    _, samples, calls = time_ours()

    def ours() -> float:
        nonlocal samples, calls
        median, samples, calls = time_ours()
        return median

    def theirs() -> float:
        return float(np.median([timer.timeit(calls).median for _ in range(samples)]) * 1e3)

    sides: list[tuple[str, Callable[[], float]]] = [("ours", ours), ("theirs", theirs)]
    order = random.Random(1337)  # noqa: S311 - nothing secret
    for _ in range(rounds):
        for name, timing in order.sample(sides, 2):
            medians[name].append(timing())
    low, middle, high = median_interval([b / a for a, b in zip(medians["ours"], medians["theirs"], strict=True)])
    return {
        "ours_ms": float(np.median(medians["ours"])),
        "theirs_ms": float(np.median(medians["theirs"])),
        "ratio": {"value": middle, "low": low, "high": high},
        "medians_ms": medians,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="each takes about 1 s")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    report: Figures = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "numpy")},
        "agreement": agreement(chosen.rounds),
    }
    interval = report["agreement"]["ratio"]
    report["goals"] = {
        "within 3 % of torch.utils.benchmark, by the interval": (
            interval["low"] > 1 - AGREEMENT and interval["high"] < 1 + AGREEMENT
        ),
    }
    print(json.dumps({"agreement": interval, "goals": report["goals"]}, indent=2))
    if chosen.output:
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
