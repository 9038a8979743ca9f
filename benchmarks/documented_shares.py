"""Simulate the shares of cases that docstrings and docs quote: drifts by chance, bounds of p99, comparisons of runs.

    python -m benchmarks.documented_shares [--trials 4000]

benchmarks/interval_coverage.py simulates the intervals of ratios within a run.
"""

import argparse
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import NormalDist

import numpy as np

from benchmarks.interval_coverage import correlated
from engine.statistics import NEEDED, drifting, ratio, ratio_of_runs

RESULTS = Path(__file__).parent / "results" / "documented_shares.json"
LENGTHS = (6, 8, 10, 11, 12, 20, 60, 300)
STATES, RUNS, PROCESSES = 0.03, 0.01, 0.005
"""Standard deviations of log times: between states of the machine, runs in one state, and processes of one run."""


def drifts(random: np.random.Generator, trials: int) -> Iterator[tuple[str, float]]:
    """Yield the share of series without a drift that are called drifting. Their standard deviation is 5 %."""
    for r in (0.0, 0.5, 0.9):
        for length in LENGTHS:
            series = np.exp(correlated(random, trials, length, 0.05, r))
            yield f"drifting, correlation {r}, {length} samples", float(np.mean([drifting(one) for one in series]))


def bounds(random: np.random.Generator, trials: int) -> Iterator[tuple[str, float]]:
    """Yield the share of series with the fewest samples for p99 that have two samples above the true p99."""
    p99 = NormalDist().inv_cdf(0.99)
    for r in (0.0, 0.5, 0.9, 0.98):
        above = (correlated(random, trials, NEEDED[99], 1.0, r) > p99).sum(axis=1)
        yield f"two samples above p99, correlation {r}", float(np.mean(above >= 2))


def successive(random: np.random.Generator, trials: int) -> Iterator[tuple[str, float]]:
    """Yield the share of false verdicts if two equal models are timed one after the other, in 5 processes each."""
    false = 0
    for trial in range(trials):
        baseline, other = (
            10
            * np.exp(random.normal(0, STATES) + random.normal(0, PROCESSES, (5, 1)) + random.normal(0, 0.01, (5, 30)))
            for _ in range(2)
        )
        false += ratio(list(baseline), list(other), seed=trial, publishable=True).verdict in ("faster", "slower")
    yield "publishable timings one after the other: verdict faster or slower", false / trials


def turns(random: np.random.Generator, trials: int) -> Iterator[tuple[str, float]]:
    """Yield how often the interval of ten runs of A, ten of B, A, B, A, B holds the true ratio of 1."""
    for merged in (False, True):
        held = 0
        for _ in range(trials):
            sides: tuple[list[float], list[float]] = [], []
            for turn, count in enumerate((10, 10, 1, 1, 1, 1)):
                logs = random.normal(0, STATES) + random.normal(0, RUNS, count)
                sides[turn % 2].extend(np.exp([logs.mean()] if merged else logs))
            found = ratio_of_runs(*sides)
            held += found is not None and found.low <= 1 <= found.high
        yield (
            f"A x 10, B x 10, A, B, A, B: interval holds 1, runs in a row count {'once' if merged else 'each'}",
            held / trials,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    percent = {}
    for simulation in (drifts, bounds, successive, turns):
        for name, share in simulation(random, arguments.trials):
            percent[name] = round(100 * share, 1)
            print(f"{percent[name]:5} %  {name}", flush=True)
    found = {"date": datetime.now(UTC).date().isoformat(), "trials": arguments.trials, "percent": percent}
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
