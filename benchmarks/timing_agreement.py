"""Whether our timings can be trusted: against torch.utils.benchmark, and against themselves.

python benchmarks/timing_agreement.py [--rounds 60] [--comparisons 200] [--processes 3] [--seconds 0.3]
                                      [--pairs 25] [--output benchmarks/results/timing_agreement.json]

1. A fixed small network at one thread, by engine.measure.timing and by torch.utils.benchmark.Timer in turns in one
   process; the ratio of the two medians with its interval (99 %).
2. The same network against an equal copy of itself, which is never faster. Each comparison is made of several fresh
   processes, as in a real run, and of the first of them alone, as in a quick look. To save time a process times many
   pairs of copies, built anew one after the other, a pair for each comparison. How often a copy is called faster or
   slower all the same, with the exact (Clopper-Pearson) interval of that rate (95 %).

A busy machine spoils both: the report says how many of the timings were contended. 200 comparisons take a quarter of
an hour.
"""

import argparse
import datetime
import json
import os
import platform
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
AGREEMENT = 0.03
FALSE_FASTER = 0.01
Figures = dict[str, Any]


def network(seed: int = 0) -> Callable[[], object]:
    """A call of a small convolutional network, about 1 ms at one thread."""
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
    """Medians of short timings by both, in an order of chance each round.

    Both take as many samples of as many calls. By themselves they would not: Timer makes its blocks up to a hundred
    times longer, and on a machine that is not quiet, longer blocks hold more of what others did.
    """
    import numpy as np
    from torch.utils.benchmark import Timer

    from engine.measure.timing import Plan, Subject, measure, stopwatch
    from engine.statistics import ratio

    call = network()
    timer = Timer("call()", globals={"call": call}, num_threads=1)
    plan = Plan(min_samples=100, min_seconds=0.1, warmup_seconds=0.1)

    def timed() -> tuple[float, int, int]:
        found = measure([Subject("call", {"forward": call})], stopwatch("cpu"), plan).timed["call"]
        return float(np.median(found.samples_ms)), len(found.samples_ms), int(np.median(found.calls))

    medians: dict[str, list[float]] = {"ours": [], "theirs": []}
    _, samples, calls = timed()

    def ours() -> float:
        nonlocal samples, calls
        median, samples, calls = timed()
        return median

    def theirs() -> float:
        return float(np.median([timer.timeit(calls).median for _ in range(samples)]) * 1e3)

    sides: list[tuple[str, Callable[[], float]]] = [("ours", ours), ("theirs", theirs)]
    order = random.Random(1337)  # noqa: S311 - nothing secret
    for _ in range(rounds):
        for name, timing in order.sample(sides, 2):
            medians[name].append(timing())
    found = ratio([medians["theirs"]], [medians["ours"]])
    return {
        "ours_ms": float(np.median(medians["ours"])),
        "theirs_ms": float(np.median(medians["theirs"])),
        "ratio": {"value": found.value, "low": found.low, "high": found.high},
        "medians_ms": medians,
    }


def twins(seconds: float, pairs: int) -> Figures:
    """All samples of pairs of equal networks, each pair timed side by side, one after the other in this process."""
    return {"pairs": [pair(seconds) for _ in range(pairs)]}


def pair(seconds: float) -> Figures:
    from engine.measure.contention import contended
    from engine.measure.timing import Plan, Subject, measure, stopwatch

    subjects = [Subject(name, {"forward": network()}) for name in ("one", "other")]
    seed = random.SystemRandom().getrandbits(32)
    plan = Plan(min_seconds=seconds, warmup_seconds=0.2, seed=seed)
    session = measure(subjects, stopwatch("cpu"), plan, threads=1)
    assert session.contention is not None
    samples = {name: list(timed.samples_ms) for name, timed in session.timed.items()}
    return samples | {"contended": contended(session.contention)}


def child(what: str, *arguments: str) -> Figures:
    """`what` in a fresh process."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), "--child", what, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def against_itself(comparisons: int, processes: int, seconds: float, pairs: int) -> Figures:
    """How the verdicts came out over all comparisons, of all processes together and of one alone."""
    from engine.statistics import ratio

    verdicts: dict[str, Counter[str]] = {f"{processes} processes": Counter(), "1 process": Counter()}
    contended = 0
    for done in range(0, comparisons, pairs):
        wanted = min(pairs, comparisons - done)
        timed = [child("twins", str(seconds), str(wanted))["pairs"] for _ in range(processes)]
        for found in zip(*timed, strict=True):
            contended += sum(bool(one["contended"]) for one in found)
            for name, used in ((f"{processes} processes", found), ("1 process", found[:1])):
                verdicts[name][ratio([one["one"] for one in used], [one["other"] for one in used]).verdict] += 1
        print(f"{done + wanted}/{comparisons} { ({name: dict(n) for name, n in verdicts.items()}) }", flush=True)
    return {
        "comparisons": comparisons,
        "seconds": seconds,
        "contended_timings": contended,
        "of_timings": comparisons * processes,
        **{name: rates(counts) for name, counts in verdicts.items()},
    }


def rates(counts: Counter[str]) -> Figures:
    """Verdicts, and how often a difference was seen that is not there."""
    from scipy.stats import binomtest

    found: Figures = {"verdicts": dict(counts)}
    for name, wrong in (("false_faster", counts["faster"]), ("false_difference", counts["faster"] + counts["slower"])):
        interval = binomtest(wrong, counts.total()).proportion_ci(0.95, method="exact")
        found[name] = {"rate": wrong / counts.total(), "low": float(interval.low), "high": float(interval.high)}
    return found


CHILDREN: dict[str, Callable[..., Figures]] = {
    "agreement": lambda rounds: agreement(int(rounds)),
    "twins": lambda seconds, pairs: twins(float(seconds), int(pairs)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="of the agreement; each takes about 1 s")
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--processes", type=int, default=3, help="per comparison")
    parser.add_argument("--seconds", type=float, default=0.3, help="sampled per copy and process")
    parser.add_argument("--pairs", type=int, default=25, help="that one process times, each for another comparison")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        what, *arguments = chosen.child
        print(json.dumps(CHILDREN[what](*arguments)))
        return
    sys.path.insert(0, str(ROOT))
    report: Figures = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "numpy")},
        "agreement": child("agreement", str(chosen.rounds)),
        "against_itself": against_itself(chosen.comparisons, chosen.processes, chosen.seconds, chosen.pairs),
    }
    interval, itself = report["agreement"]["ratio"], report["against_itself"]
    report["goals"] = {
        "within 3 % of torch.utils.benchmark, by the interval": (
            interval["low"] > 1 - AGREEMENT and interval["high"] < 1 + AGREEMENT
        ),
        "called faster than itself at most once in a hundred": (
            itself[f"{chosen.processes} processes"]["false_faster"]["rate"] <= FALSE_FASTER
        ),
    }
    shown = {"agreement": interval, "goals": report["goals"]}
    print(json.dumps(shown, indent=2))
    if chosen.output:
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
