"""Time two variants that run the same code, and count how often their intervals and verdicts say that they differ.

    python -m benchmarks.equal_variants [--rounds 12] [--processes 3] [--label quiet]

`compile:eager` and `compile:eager_noexcept` call the same captured graph, so the true ratio of their times is 1. Every
round is one run of `benchmark` with all MODELS. `side_by_side` has the intervals that such a run gives: their coverage
(the share that contain 1), the share of false verdicts (`faster` or `slower`), and the standard deviation of the
processes' log ratios, as a root mean square over rows. Coverage is also given for the rows without the flags that
forbid quoting a timing. `of_runs` compares three runs with three others of the same variant, as Compare does with runs
of different requests: runs one after the other (aaabbb), and runs in turns (ababab). `of_processes` compares the
processes of one run with those of the next, as if they were one timing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engine.results.flags import SPOILING
from engine.statistics import Ratio, half_width, ratio_of_runs

RESULTS = Path(__file__).parent / "results" / "equal_variants.json"
FIRST, SECOND = "compile:eager", "compile:eager_noexcept"
MODELS = ("timm:resnet18", "timm:mobilenetv3_small_100", "timm:vit_tiny_patch16_224", "timm:convnext_atto")


def timings(rounds: int, processes: int) -> pd.DataFrame:
    """Return the rows of all rounds, with their `round`. Errors: CalledProcessError."""
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            output = Path(folder, f"{number}.csv")
            subprocess.run(
                [
                    *(sys.executable, "-m", "engine", "benchmark", "--models", ",".join(MODELS)),
                    *("--variants", f"{FIRST},{SECOND}", "--replicates", str(processes), "--seed", str(number)),
                    *("--output", str(output)),
                ],
                env={**os.environ, "VITALS_RUNS_DIR": folder},
                check=True,
            )
            tables.append(pd.read_csv(output, keep_default_na=False, na_values=[""]).assign(round=number))
    return pd.concat(tables, ignore_index=True)


def shares(ratios: list[Ratio]) -> dict[str, Any]:
    """Return the coverage in per cent and the number of false verdicts of ratios whose true value is 1."""
    if not ratios:
        return {"ratios": 0}
    return {
        "ratios": len(ratios),
        "coverage_percent": round(100 * float(np.mean([one.low <= 1 <= one.high for one in ratios])), 1),
        "false_verdicts": sum(one.verdict in ("faster", "slower") for one in ratios),
        "median_width_percent": round(100 * float(np.median([one.high - one.low for one in ratios])), 1),
        "largest_error_percent": round(100 * max(abs(one.value - 1) for one in ratios), 1),
    }


def side_by_side(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the shares of the intervals that each run gives, and how much its processes differ."""
    second = rows[rows["variant"] == SECOND]
    firsts = rows[rows["variant"] == FIRST].set_index(["round", "model"])
    ratios, quotable, variances = [], [], []
    for row in second.to_dict("records"):
        first = firsts.loc[(row["round"], row["model"])]
        ratios.append(Ratio(row["speedup"], row["speedup_low"], row["speedup_high"], row["processes"]))
        if not any(flag in f"{row['flags']}; {first['flags']}" for flag in SPOILING):
            quotable.append(ratios[-1])
        variances.append(np.var(np.log(_medians(first)) - np.log(_medians(row)), ddof=1))
    return {
        "all": shares(ratios),
        "without_flags": shares(quotable),
        "process_sd_percent": round(100 * float(np.mean(variances)) ** 0.5, 2),
    }


def _medians(row: Any) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.array([float(ms) for ms in str(row["process_medians_ms"]).split("; ")])


def of_runs(rows: pd.DataFrame, order: str) -> dict[str, Any]:
    """Return the shares of the intervals of runs of two equal requests. order: of their runs, such as `ababab`."""
    ratios = []
    for _, timed in rows.groupby(["model", "variant"]):
        ms = list(timed.sort_values("round")["latency_ms"])
        for start in range(0, len(ms) - len(order) + 1, len(order) // 2):
            sides = [[ms[start + n] for n, letter in enumerate(order) if letter == side] for side in "ab"]
            if found := ratio_of_runs(*sides):
                ratios.append(found)
    return shares(ratios)


def of_processes(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the shares of the intervals of the processes of a run against those of the next run."""
    ratios = []
    for _, timed in rows.groupby(["model", "variant"]):
        for before, after in pairwise(timed.sort_values("round").to_dict("records")):
            logs = np.log(_medians(before)) - np.log(_medians(after))
            half = half_width(logs, 0.0)
            low, value, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
            ratios.append(Ratio(float(value), float(low), float(high), len(logs)))
    return shares(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--label", default="quiet", help="state of the machine, such as quiet or busy")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = timings(arguments.rounds, arguments.processes)
    if not (failed := rows[rows["status"] != "ok"]).empty:
        raise SystemExit(f"not timed: {failed[['model', 'variant', 'error']].to_dict('records')}")
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": rows["device_name"].iat[0],
        "rounds": arguments.rounds,
        "processes": arguments.processes,
        "flagged_rows": int(rows["flags"].notna().sum()),
        "side_by_side": side_by_side(rows),
        "of_runs": {order: of_runs(rows, order) for order in ("aaabbb", "ababab")},
        "of_processes": of_processes(rows),
        "rows": rows[["round", "model", "variant", "process_medians_ms", "flags"]].to_dict("records"),
    }
    known = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    known[arguments.label] = found
    arguments.output.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps({key: value for key, value in found.items() if key != "rows"}, indent=1))


if __name__ == "__main__":
    main()
