"""Time light commands from start to exit, beside a bare Python and one that imports the libraries they need.

python benchmarks/command_line.py [--repeats 7] [--output benchmarks/results/command_line.json]
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "bare python": ["-c", "pass"],
    "bare imports": ["-c", "import pydantic_settings, sqlalchemy, psutil"],
    "help": ["-m", "engine", "--help"],
    "profile --help": ["-m", "engine", "profile", "--help"],
    "submit": ["-m", "engine", "submit", "profile", "--models", "ViT-B-32"],
    "runs": ["-m", "engine", "runs"],
    "catalog": ["-m", "engine", "catalog", "--source", "open_clip", "--max-gmacs", "20"],
}


def seconds(arguments: list[str]) -> float:
    """Return the seconds of one run of a command, from start to exit."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as runs_dir:
        os.environ["VITALS_RUNS_DIR"] = runs_dir
        seconds(COMMANDS["submit"])  # makes the store and starts the scheduler, which the others then find
        time.sleep(20)  # meanwhile its warm process loads torch, which would slow down the commands
        samples: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(chosen.repeats):  # interleaved, so that a busy moment of the machine affects all commands alike
            for name, arguments in COMMANDS.items():
                samples[name].append(seconds(arguments))
        seconds(["-m", "engine", "stop"])
    medians = {name: statistics.median(times) for name, times in samples.items()}
    for name, median in medians.items():
        print(f"{name:16} {median:6.3f} s  ({median / medians['bare python']:.1f}x bare python)")
    if chosen.output:
        report = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "median_s": medians,
            "samples_s": samples,
        }
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
