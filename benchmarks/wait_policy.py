"""Compare the speed of a training for different ways in which torch's threads wait for each other.

python benchmarks/wait_policy.py [--rounds 3] [--output benchmarks/results/wait_policy.json]

PyTorch's Linux builds use GNU OpenMP, whose threads spin before they sleep. While another program uses a core, each
spinning thread takes the time that the thread it waits for needs. Every value is the pairs/s of one epoch on digits, in
a command of its own. The ways take turns, on an idle machine and beside a process that keeps one core busy.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WAYS = {
    "default": {},
    "sleep at once": {"OMP_WAIT_POLICY": "passive"},
    "spin 10,000 times": {"GOMP_SPINCOUNT": "10000"},
}
LOADS = {"idle": 0, "one busy process": 1}
BUSY = [sys.executable, "-c", "while True: pass"]


def pairs_per_s(way: str, busy: int) -> float:
    """Return the pairs/s of a training beside `busy` busy processes."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for _ in range(busy):
            stack.callback(subprocess.Popen(BUSY).kill)
        printed = subprocess.run(
            [sys.executable, "-m", "engine", "train", "--epochs", "1", "--val-frequency", "0"],
            cwd=ROOT,
            env=os.environ | WAYS[way] | {"VITALS_RUNS_DIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
            text=True,
        ).stdout
    return float(re.findall(r"([\d,.]+) pairs/s", printed)[-1].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(chosen.rounds):
        for load, busy in LOADS.items():
            for way in WAYS:
                values = found.setdefault(load, {}).setdefault(way, [])
                values.append(pairs_per_s(way, busy))
                print(f"round {number + 1}, {load}, {way}: {values[-1]:.1f} pairs/s", flush=True)
    if chosen.output:
        report = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "versions": {name: version(name) for name in ("torch", "open_clip_torch")},
            "pairs_per_s": found,
        }
        chosen.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
