"""Simulate how often the 99 % interval of a ratio contains the true ratio, and how often its verdict is false.

    python -m benchmarks.interval_coverage [--trials 2000] [--label "moderated t"]

Two equal streams (true ratio 1) have 60 log-normal samples per process, which are autocorrelated (AR(1) with 0.5,
standard deviation 2 %). Each process shifts each stream at random, so that the processes' log ratios have the standard
deviation tau. Shifts are normal, or heavy-tailed of the same scale (Student's t with 3 degrees of freedom). Power is
the share of stream pairs 10 % apart that get the verdict "faster". `coverage_error` is the standard error of the
coverage. Results are stored by label, to compare two versions of `engine.statistics`.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.statistics import Ratio, ratio

RESULTS = Path(__file__).parent / "results" / "interval_coverage.json"
PROCESSES = (1, 2, 3, 5)
TAUS = (0.1, 0.05, 0.02, 0.01)
SAMPLES, NOISE, CORRELATION = 60, 0.02, 0.5


def correlated(random: np.random.Generator, series: int, samples: int, noise: float, r: float) -> NDArray[np.float64]:
    """Return (series, samples) normal values of the standard deviation `noise`, whose neighbours correlate with r."""
    shocks = random.normal(0, noise * (1 - r**2) ** 0.5, (series, samples))
    shocks[:, 0] = random.normal(0, noise, series)
    for index in range(1, samples):
        shocks[:, index] += r * shocks[:, index - 1]
    return shocks


def draw(random: np.random.Generator, processes: int, tau: float, *, heavy: bool, median: float) -> list[list[float]]:
    """Return the samples of each process."""
    scale = tau / 2**0.5  # each of the two streams is shifted
    offsets = (random.standard_t(3, processes) / 3**0.5 if heavy else random.normal(0, 1, processes)) * scale
    shocks = correlated(random, processes, SAMPLES, NOISE, CORRELATION)
    return [list(process) for process in median * np.exp(shocks + offsets[:, None])]


def simulate(trials: int, processes: int, tau: float, *, heavy: bool, faster: float, seed: int) -> list[Ratio]:
    """Return the ratios of pairs of streams, the second faster by a factor."""
    random = np.random.default_rng(seed)
    return [
        ratio(
            *(draw(random, processes, tau, heavy=heavy, median=median) for median in (10.0, 10.0 / faster)),
            seed=t,
        )
        for t in range(trials)
    ]


def row(trials: int, processes: int, tau: float, *, heavy: bool) -> dict[str, Any]:
    """Return the shares of one setting, in per cent."""
    equal = simulate(trials, processes, tau, heavy=heavy, faster=1.0, seed=1)
    apart = simulate(max(trials // 4, 1), processes, tau, heavy=heavy, faster=1.1, seed=2)
    coverage = float(np.mean([found.low <= 1 <= found.high for found in equal]))
    return {
        "processes": processes,
        "tau_percent": 100 * tau,
        "tails": "heavy" if heavy else "normal",
        "coverage_percent": round(100 * coverage, 2),
        "coverage_error": round(100 * (coverage * (1 - coverage) / trials) ** 0.5, 2),
        "false_verdicts_percent": round(100 * float(np.mean([f.verdict in ("faster", "slower") for f in equal])), 2),
        "power_percent": round(100 * float(np.mean([found.verdict == "faster" for found in apart])), 1),
        "median_width_percent": round(100 * float(np.median([found.high - found.low for found in equal])), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--label", default="moderated t")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = []
    for heavy in (False, True):
        for processes in PROCESSES:
            for tau in TAUS:
                rows.append(row(arguments.trials, processes, tau, heavy=heavy))
                print(rows[-1], flush=True)
    known = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    known[arguments.label] = {"date": datetime.now(UTC).date().isoformat(), "trials": arguments.trials, "rows": rows}
    arguments.output.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
