"""Compare our timings of recurrent layers with a bare loop's, and time every runner on this machine.

python benchmarks/recurrent.py [--rounds 40] [--device cpu] [--groups rnns,cnns,norms,compiled,vl,cells]
                               [--replicates 3] [--append] [--output benchmarks/results/recurrent.json]

1. `aten` and `py` are timed forward and backward at one thread, by engine.measure.timing and by a bare loop over the
   same module that reads the clock before and after each pass. Both use the same number of calls per sample, without
   automatic garbage collection (as timeit), in random order in one process. The result is the median of the rounds'
   ratios with its 99 % interval.
2. A table of all runners, as `python -m engine recurrent` times them: on a CPU at shapes that suit it (SHAPES),
   elsewhere at the defaults.

Run it on a quiet machine. Compilation takes several minutes, everything about half an hour. --append times the chosen
groups again and keeps the agreement and the other rows in --output.
"""

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from intervals import median_interval

ROOT = Path(__file__).resolve().parent.parent
AGREEMENT = 0.03
"""Largest relative difference that counts as agreement."""
SHAPES = {"seq_length": 25, "input_size": 64, "hidden_size": 64, "mini_batch": 8, "image_size": (128, 128)}
SHOWN = (
    *("model", "network", "status", "error", "forward_ms", "backward_ms", "spread", "flags", "compile_cold_ms"),
    *("output_error", "gradient_error", "samples", "speedup", "speedup_low", "speedup_high", "verdict", "baseline"),
    *("notes",),
)
Figures = dict[str, Any]


def agreement(name: str, rounds: int) -> Figures:
    """Time one runner by both in random order in each round, and return the medians and their ratios."""
    import numpy as np
    import torch

    from engine.measure.plan import Plan, Subject
    from engine.measure.stopwatch import no_automatic_collection, stopwatch_for
    from engine.measure.timing import measure
    from engine.models import recurrent
    from engine.replicates.recurrent.work import BLOCK_MS, phases_of
    from engine.specs import RecurrentSpec

    torch.set_num_threads(1)
    network = recurrent.build(name, RecurrentSpec(runners=(name,), **SHAPES))
    with network.settings():
        run = network.capture()
    phases = phases_of(network, run)
    plan = Plan(min_samples=60, min_seconds=0.5, warmup_seconds=0.2, block_ms=BLOCK_MS)

    calls = 1

    def ours() -> dict[str, float]:
        nonlocal calls
        found = measure([Subject(name, phases, network.settings)], stopwatch_for("cpu"), plan).timed[name]
        calls = statistics.median_low(found.calls)
        return {phase: float(np.median(found.phases[phase])) for phase in ("forward", "backward")}

    def bare() -> dict[str, float]:
        spent: dict[str, list[float]] = {"forward": [], "backward": []}
        with network.settings(), no_automatic_collection():
            for sample in range(2 * plan.min_samples):
                forward = backward = 0.0
                for _ in range(calls):
                    begun = time.perf_counter()
                    output = run()[0]
                    between = time.perf_counter()
                    output.backward(network.cotangent)  # type: ignore[no-untyped-call]
                    ended = time.perf_counter()
                    del output
                    for parameter in network.parameters.values():
                        parameter.grad = None
                    forward += between - begun
                    backward += ended - between
                if sample >= plan.min_samples:  # the first half warms up
                    spent["forward"].append(forward / calls * 1e3)
                    spent["backward"].append(backward / calls * 1e3)
        return {phase: float(np.median(ms)) for phase, ms in spent.items()}

    ours()  # sets the calls per sample for the bare loop
    medians: dict[str, list[dict[str, float]]] = {"ours": [], "bare": []}
    sides: list[tuple[str, Callable[[], dict[str, float]]]] = [("ours", ours), ("bare", bare)]
    order = random.Random(1337)  # noqa: S311 - nothing secret
    for _ in range(rounds):
        for side, timing in order.sample(sides, 2):
            medians[side].append(timing())
    report: Figures = {}
    for phase in ("forward", "backward"):
        times = {side: [median[phase] for median in found] for side, found in medians.items()}
        ratios = [bare / ours for bare, ours in zip(times["bare"], times["ours"], strict=True)]
        report[phase] = {f"{side}_ms": statistics.median(ms) for side, ms in times.items()}
        report[phase] |= dict(zip(("low", "ratio", "high"), median_interval(ratios), strict=True))
    return report


def table(device: str, groups: str, replicates: int, threads: int | None) -> Iterator[Figures]:
    """Yield a line per runner, with the fields SHOWN of its row."""
    from engine.results import RecurrentRow
    from engine.specs import RecurrentSpec
    from engine.tasks.recurrent import run

    shapes: Figures = SHAPES if device == "cpu" else {}
    spec = RecurrentSpec(groups=groups, device=device, replicates=replicates, threads=threads, **shapes)
    with tempfile.TemporaryDirectory() as folder:
        for event in run(spec, Path(folder)):
            if isinstance(event, RecurrentRow):
                line = event.model_dump(mode="json", include=set(SHOWN))
                print(*(line[name] for name in ("model", "status", "forward_ms", "backward_ms", "flags")), flush=True)
                yield {name: line[name] for name in SHOWN} | {"date": now()}


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def child(name: str, rounds: int) -> Figures:
    """Return the agreement of one runner, measured in a fresh process."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), "--child", name, "--rounds", str(rounds)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each agreement, about 3 s each")
    parser.add_argument("--device", default="cpu", help="device of the table; a GPU uses the default shapes")
    parser.add_argument("--groups", default="rnns,cnns,norms,compiled,vl,cells")
    parser.add_argument("--replicates", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--append", action="store_true", help="keep the other results in --output, from the same machine"
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(agreement(chosen.child, chosen.rounds)))
        return
    sys.path.insert(0, str(ROOT))
    if chosen.append:
        if not chosen.output:
            parser.error("--append needs the --output to append to")
        report: Figures = json.loads(chosen.output.read_text())
    else:
        report = new_report(chosen.rounds, chosen.device)
    for line in table(chosen.device, chosen.groups, chosen.replicates, chosen.threads):
        report["runners"] = [row for row in report["runners"] if row["model"] != line["model"]] + [line]
        if chosen.output:  # after each runner, so that an interrupted benchmark keeps its results
            chosen.output.parent.mkdir(parents=True, exist_ok=True)
            chosen.output.write_text(json.dumps(report, indent=2) + "\n")


def new_report(rounds: int, device: str) -> Figures:
    """Measure the agreement, and return a report with an empty table."""
    agreements = {name: child(name, rounds) for name in ("aten", "py")}
    print(json.dumps(agreements, indent=2), flush=True)
    within = all(
        found["low"] > 1 - AGREEMENT and found["high"] < 1 + AGREEMENT
        for both in agreements.values()
        for found in both.values()
    )
    report = {
        "date": now(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "torchvision", "numpy")},
        "agreement": agreements,
        "goals": {"within 3 % of a bare loop, by the interval": within},
        "device": device,
        "shapes": SHAPES if device == "cpu" else "the defaults",
        "runners": [],
    }
    print(json.dumps(report["goals"]))
    return report


if __name__ == "__main__":
    main()
