"""Measure the accuracy that `python -m engine train --data digits` reaches on handwritten digits in a minute.

python benchmarks/digits.py [--seeds 0,1,2] [--output benchmarks/results/digits.json]

Each training is one command, with default settings and its own seed. Its seconds include loading the libraries.
The goal: over 90 % zero-shot top-1 on the held-out fifth within 60 s on two cores.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ACCURACY, SECONDS = 0.9, 60
TOP1 = "digits-zeroshot-val-top1"


def train(seed: int) -> dict[str, Any]:
    """Run one training. Return its seconds, its final accuracy, and the seconds of training until the goal was met."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "engine", "train", "--data", "digits", "--seed", str(seed)],
            cwd=ROOT,
            env=os.environ | {"VITALS_RUNS_DIR": folder},
            capture_output=True,
            check=True,
        )
        seconds = time.perf_counter() - begun
        epochs = [json.loads(line) for line in Path(folder, "1", "results.jsonl").read_text().splitlines()]
        printed = subprocess.run(
            [sys.executable, "-m", "engine", "runs", "show", "1"],
            cwd=ROOT,
            env=os.environ | {"VITALS_RUNS_DIR": folder},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    rows = [json.loads(line.partition("row")[2]) for line in printed.splitlines() if line.startswith("row")]
    passed = [row["seconds"] for row in rows if row["zeroshot_top1"] > ACCURACY]
    return {
        "seed": seed,
        "command_s": seconds,
        "training_s": rows[-1]["seconds"],
        TOP1: epochs[-1][TOP1],
        "passed_after_s": passed[0] if passed else None,
        "pairs_per_s": sorted(row["samples_per_s"] for row in rows)[len(rows) // 2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    trainings = []
    for seed in chosen.seeds.split(","):
        trainings.append(train(int(seed)))
        print(json.dumps(trainings[-1]), flush=True)
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "open_clip_torch")},
        "goals": {
            f"over {ACCURACY:.0%} within {SECONDS} s": all(
                training[TOP1] > ACCURACY and training["command_s"] < SECONDS for training in trainings
            )
        },
        "trainings": trainings,
    }
    print(json.dumps(report["goals"]))
    if chosen.output:
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
