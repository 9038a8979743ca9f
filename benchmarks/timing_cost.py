"""Measure the wall time of one timing command and of its parts, on this machine as it is and under load.

python -m benchmarks.timing_cost [--conditions quiet,busy] [--old FOLDER] [--output benchmarks/results/timing_cost.json]

The command times seven recurrent runners of 0.3 to 3 ms, each for 2 s in each of 3 processes: it requests 42 s of
samples. `quiet` is the machine as it is; `busy` runs one more process per core that only computes. The load average
before each run is stored. The goal: warm-up, samples and rest take at most twice the requested time. --old also runs
the code of another checkout, whose rows may lack the parts. A run replaces the stored run of the same code and
condition in --output.

--promises adds ten requests of different kinds, one run each: the duration that its form predicts after the requests
before it, and the real duration. The goal: of the runs that no other process disturbed, 8 of 10 lie in their range.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engine.report.catalog import catalog
from engine.report.timings import needs
from engine.results import TimedRow
from engine.settings import Settings
from engine.specs import BenchmarkSpec, RecurrentSpec
from engine.store import open_store
from pages.shared.form.command import command

ROOT = Path(__file__).resolve().parent.parent
RUNNERS = "aten,jit,jit_premul,jit_premul_bias,jit_simple,jit_multilayer,py"
SIZES = "--seq-length 8 --num-layers 2 --input-size 32 --hidden-size 32 --mini-batch 4 --warmup 1 --loops 3"
COMMAND = ["recurrent", "--runners", RUNNERS, *SIZES.split()]
ASKED_S = 7 * 2.0 * 3
"""Runners x seconds x processes."""
PARTS = ("starts_s", "compilation_s", "warmup_s", "sampled_s", "rest_s")
Run = dict[str, Any]


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep `count` processes computing."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run_command(code: Path, condition: str) -> Run:
    """Run the command once with the code in this folder."""
    with tempfile.TemporaryDirectory() as folder, neighbours(os.cpu_count() or 1 if condition == "busy" else 0):
        rows = Path(folder) / "rows.json"
        command = [sys.executable, "-W", "ignore", "-m", "engine", *COMMAND, "--output", str(rows)]
        load, begun = os.getloadavg()[0], time.monotonic()
        subprocess.run(command, cwd=code, env=os.environ | {"VITALS_RUNS_DIR": folder}, check=True)
        wall_s = time.monotonic() - begun
        found = json.loads(rows.read_text())
    return {
        "code": "this" if code == ROOT else "old",
        "condition": condition,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load_average": round(load, 1),
        "wall_s": round(wall_s, 1),
        "timing_s": found[0]["seconds"],
        "parts": _parts(found[0]),
        "samples": {row["model"]: row["samples"] for row in found},
        "flags": {row["model"]: row["flags"] for row in found},
    }


def _parts(row: Run) -> dict[str, float] | None:
    parts = row.get("parts") or None
    return json.loads(parts) if isinstance(parts, str) else parts


def within(run: Run) -> bool | None:
    """Return whether a run met the goal; None if its parts are unknown."""
    return run["parts"] and sum(run["parts"][name] for name in PARTS[2:]) <= 2 * ASKED_S


def show(run: Run) -> None:
    parts = run["parts"] or {}
    known = ", ".join(f"{name.removesuffix('_s')} {parts[name]:.1f} s" for name in PARTS if name in parts)
    print(f"{run['code']}, {run['condition']} (load {run['load_average']}): {run['wall_s']} s; {known}", flush=True)


REQUESTS: list[BenchmarkSpec | RecurrentSpec] = [
    BenchmarkSpec(models="timm:resnet18"),
    BenchmarkSpec(models="timm:vit_tiny_patch16_224", variants="eager,compile", replicates=3),
    BenchmarkSpec(models="timm:mobilenetv3_small_100", mode="both", batch_size=4),
    BenchmarkSpec(models="open_clip:ViT-S-32-alt", batch_size=2),
    BenchmarkSpec(models="timm:resnet50,timm:regnety_002,timm:efficientnet_b0"),
    BenchmarkSpec(models="timm:convnext_atto", precision="float32,bfloat16", batch_size=8, replicates=3),
    RecurrentSpec(runners="aten,jit,py", seq_length=10, hidden_size=64, mini_batch=8, replicates=3),
    RecurrentSpec(runners="gru_aten,gru_py", hidden_size=64, seq_length=20, replicates=1),
    RecurrentSpec(runners="aten,compile_cell", seq_length=10, replicates=1),
    RecurrentSpec(runners="aten,jit,py", seq_length=50, hidden_size=256, mini_batch=32, replicates=1),
]


def run_requests() -> list[Run]:
    """Run each of REQUESTS once, in one runs folder; return its predicted and its real duration."""
    found: list[Run] = []
    catalogue = catalog.read(Settings().catalog_dir)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Settings(runs_dir=Path(folder)))
        latest: dict[str, needs.Span] = {}
        for spec in REQUESTS:
            start = latest.get(spec.kind, needs.START_S)
            if isinstance(spec, BenchmarkSpec):
                span = needs.benchmark_s(spec, spec.models, catalogue, start)
            else:
                span = needs.recurrent_s(spec, start)
            words = shlex.split(command(spec))[1:]
            load, begun = os.getloadavg()[0], time.monotonic()
            subprocess.run(
                [sys.executable, "-W", "ignore", *words],
                cwd=ROOT,
                env=os.environ | {"VITALS_RUNS_DIR": folder},
                check=True,
            )
            took = time.monotonic() - begun
            run = store.runs(limit=1)[0]
            rows = store.rows(run.id)
            latest[spec.kind] = needs.start_s(rows)
            found.append(
                {
                    "command": shlex.join(["python", *words]),
                    "from_s": round(span.low, 1),
                    "to_s": round(span.high, 1),
                    "took_s": round(took, 1),
                    "within": span.low <= took <= span.high,
                    "contended": any("contended" in row.flags for row in rows if isinstance(row, TimedRow)),
                    "load_average": round(load, 1),
                }
            )
            print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conditions", default="quiet,busy")
    parser.add_argument(
        "--promises", action="store_true", help="run ten requests and compare with the durations of their forms"
    )
    parser.add_argument("--old", type=Path, help="another checkout, for its wall time")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    conditions = [name for name in chosen.conditions.split(",") if name]
    report: Run = {"runs": []}
    if chosen.output and chosen.output.is_file():
        report = json.loads(chosen.output.read_text())
    for condition in conditions:
        for code in [ROOT, *([chosen.old.resolve()] if chosen.old else [])]:
            run = run_command(code, condition)
            show(run)
            key = (run["code"], run["condition"])
            kept = [other for other in report["runs"] if (other["code"], other["condition"]) != key]
            report |= {
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
                "versions": {"torch": version("torch")},
                "command": " ".join(COMMAND),
                "asked_s": ASKED_S,
                "runs": sorted([*kept, run], key=lambda run: (run["condition"], run["code"])),
            }
            report["goals"] = {
                f"within twice, {other['condition']}": within(other) for other in report["runs"] if other["parts"]
            }
            if chosen.output:  # after each run, so that an interrupted benchmark keeps its results
                chosen.output.write_text(json.dumps(report, indent=2) + "\n")
    if chosen.promises:
        report["promises"] = run_requests()
        if chosen.output:
            chosen.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
