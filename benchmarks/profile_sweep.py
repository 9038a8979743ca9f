"""Compare the cost of counting models with that of open_clip's own profiler, and with only building and running them.

python benchmarks/profile_sweep.py [--every 10] [--repeats 1] [--skip-reference]
                                   [--output benchmarks/results/profile_sweep.json]

1. The same models are counted by us on meta and by `open_clip_train.profiler` on the CPU (without CUDA it supports no
   other device), each in a fresh process, timed after imports. The reference counts every model twice (its retry loop
   has no break), so half its time is the fair comparison; the report has both.
2. A sample of the whole catalogue: the CPU time of counting it, compared with building each model on meta and running a
   bare forward pass, in separate processes. Models with Hugging Face text towers are left out, because without our
   counter, which handles tensors without data, they do not run on meta.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("ViT-B-32", "RN50", "convnext_base", "ViT-L-14", "ViT-L-14-336", "ViT-H-14")
LARGE = ("ViT-L-14", "ViT-L-14-336", "ViT-H-14")
Figures = dict[str, Any]


def peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def timed(work: Callable[[], Figures]) -> Figures:
    """Return the result of `work`, with its wall and CPU seconds, and the process's peak memory before and after."""
    before, wall, cpu = peak_mb(), time.perf_counter(), time.process_time()
    figures = work()
    return figures | {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "imports_mb": before,
        "peak_mb": peak_mb(),
    }


def ours(model: str) -> Figures:
    from engine.tasks.catalogue import count

    def work() -> Figures:
        row = count(f"open_clip:{model}")
        return {name: round(getattr(row, name), 2) for name in ("gflops", "image_gflops", "text_gflops", "mparams")}

    return timed(work)


def reference(model: str) -> Figures:
    import contextlib
    import io

    from open_clip_train.profiler import profile_model

    def work() -> Figures:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints a table per pass
            row = profile_model(model, batch_size=1, profiler="torch", device="cpu")
        return {name: float(row[name]) for name in ("gflops", "image_gflops", "text_gflops", "mparams")}

    return timed(work)


def sample(every: int) -> list[str]:
    from open_clip import get_model_config

    from engine.models import library

    names = [name for index, name in enumerate(library.families()) if index % every == 0]
    return [
        name
        for name in names
        if not (name.startswith("open_clip:") and get_model_config(name[10:])["text_cfg"].get("hf_model_name"))
    ]


def sweep_ours(every: int) -> Figures:
    import torch

    from engine.tasks.catalogue import count

    names = sample(int(every))
    torch.set_num_threads(1)

    def work() -> Figures:
        statuses = [count(name).status for name in names]
        return {"models": len(names), "failed": len(names) - statuses.count("ok")}

    return timed(work)


def sweep_bare(every: int) -> Figures:
    import torch

    from engine.models import library
    from engine.models.built import Wanted

    names = sample(int(every))
    torch.set_num_threads(1)

    def work() -> Figures:
        for name in names:
            built = library.build(name, Wanted())
            with torch.no_grad():
                built.model(*built.inputs)
        return {"models": len(names)}

    return timed(work)


CHILDREN: dict[str, Callable[[Any], Figures]] = {
    "ours": ours,
    "reference": reference,
    "sweep_ours": sweep_ours,
    "sweep_bare": sweep_bare,
}


def child(what: str, argument: str) -> Figures:
    """Run one of CHILDREN in a fresh process."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), "--child", what, argument]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    print(f"{what:12} {argument:16} {figures['seconds']:8.2f} s {figures['peak_mb']:8.0f} MB", flush=True)
    return figures


def compare() -> list[Figures]:
    """Return an entry per model: the results of both counters, our speedup, and whether the counts are identical."""
    found = []
    for model in MODELS:
        mine, theirs = child("ours", model), child("reference", model)
        identical = all(mine[name] == theirs[name] for name in ("gflops", "image_gflops", "text_gflops", "mparams"))
        speedup = theirs["seconds"] / mine["seconds"]
        found.append(
            {
                "model": model,
                "ours": mine,
                "reference": theirs,
                "identical": identical,
                "speedup": speedup,
                "speedup_had_the_reference_counted_once": speedup / 2,
            }
        )
    return found


def sweep(every: int, repeats: int) -> Figures:
    """Compare counting with building and running, interleaved. Of each, the run with the least CPU time counts."""
    runs = [(child("sweep_bare", str(every)), child("sweep_ours", str(every))) for _ in range(repeats)]
    bare, counting = (min((run[side] for run in runs), key=lambda run: run["cpu_seconds"]) for side in (0, 1))
    return {"bare": bare, "ours": counting, "cpu_ratio": counting["cpu_seconds"] / bare["cpu_seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=10, help="take every N-th model of the catalogue")
    parser.add_argument("--repeats", type=int, default=1, help="repetitions of the sweep")
    parser.add_argument("--skip-reference", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        what, argument = chosen.child
        print(json.dumps(CHILDREN[what](argument)))
        return
    report: Figures = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "timm", "open_clip_torch")},
        "sweep": sweep(chosen.every, chosen.repeats),
        "models": [] if chosen.skip_reference else compare(),
    }
    report["goals"] = {
        "sweep costs at most 1.5x the CPU time of building and running": report["sweep"]["cpu_ratio"] <= 1.5,
        "below 1.5 GB a process": report["sweep"]["ours"]["peak_mb"] < 1500,
        "identical GFLOPs": all(entry["identical"] for entry in report["models"]),
        "20x faster on ViT-L-14 and up": all(
            entry["speedup"] >= 20 for entry in report["models"] if entry["model"] in LARGE
        ),
    }
    print(json.dumps(report["goals"], indent=2))
    if chosen.output:
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
