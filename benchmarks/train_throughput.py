"""Compare the speed and the held-out loss of our training with those of open_clip's, fine-tuning on the same CSV.

python benchmarks/train_throughput.py [--cases digits-clip,RN50] [--rounds 8] [--samples N] [--epochs N]
                                      [--batch-size N] [--device cpu] [--threads N] [--workers 0]
                                      [--output benchmarks/results/train_throughput.json]

A round runs both sides, `python -m engine train` and `open_clip_train.main`, in random order, each in a fresh process
with the round's number as its seed. Both get the same images (scikit-learn's digits as PNG files, with separate
held-out ones), the same initial weights from a checkpoint, and every setting explicitly. A case is a model with
settings that suit it: small images, where a step is mostly overhead (digits-clip), or a ResNet with CLIP's own text
tower at 64 pixels (RN50). On a GPU, run `--device cuda --cases ViT-B-32 --workers 8`.

Speed: torch calls the same hook at the end of every optimizer step on both sides. The speed is the number of pairs per
second between the end of an epoch's first step and the end of its last, over all epochs but the first, which warms up.
It includes loading, logging and recording, but not start-up, validation and checkpoints. The result is the median ratio
of the rounds with its 99 % interval.
Learning: the held-out loss at the end. The median over our seeds must lie in the range of the reference's seeds.

Run it on a quiet machine. Both cases take about a quarter of an hour on two cores.
"""

import argparse
import contextlib
import csv
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from intervals import median_interval

ROOT = Path(__file__).resolve().parent.parent
SIDES = ("ours", "reference")
LOSS = "clip_val_loss"
HELD_OUT = 256
"""Pairs to validate on."""
LOOK_S = 0.2
"""Seconds between two samples of the GPU's utilisation."""
Figures = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """The settings of a training, the same for both sides."""

    model: str
    samples: int
    batch_size: int
    epochs: int
    lr: float
    image_size: int
    context_length: int
    precision: str = "fp32"
    device: str = "cpu"
    threads: int = 0
    workers: int = 0

    @property
    def steps(self) -> int:
        """Return the number of steps per epoch."""
        return self.samples // self.batch_size

    @property
    def flags(self) -> Figures:
        """Return the flags that have the same name on both sides."""
        shared = ("model", "batch_size", "epochs", "lr", "precision", "device", "workers")
        fixed = {"beta1": 0.9, "beta2": 0.98, "eps": 1e-6, "wd": 0.2, "lr_scheduler": "cosine"}
        fixed |= {"warmup": max(1, self.steps * self.epochs // 10), "log_every_n_steps": 10}
        return {name: getattr(self, name) for name in shared} | fixed | {"save_frequency": 0, "zeroshot_frequency": 0}


CASES = {
    "digits-clip": Case("digits-clip", 1408, 64, 8, 1e-3, image_size=32, context_length=16),
    "RN50": Case("RN50", 96, 16, 4, 1e-4, image_size=64, context_length=16),
    "ViT-B-32": Case("ViT-B-32", 16384, 512, 4, 5e-4, image_size=224, context_length=77, precision="amp_bf16"),
}


class Watch:
    """Records the times of each epoch's first and last step, and the GPU's utilisation where NVML reports it."""

    def __init__(self, case: Case) -> None:
        self.case, self.count = case, 0
        self.spans: list[list[float]] = []
        self.busy: list[tuple[float, int]] = []

    def __call__(self, *_: object) -> None:
        """Record the time if this was the first or last optimizer step of an epoch."""
        place = self.count % self.case.steps
        self.count += 1
        if place in (0, self.case.steps - 1):
            if self.case.device != "cpu":
                import torch

                torch.accelerator.synchronize()
            now = time.perf_counter()
            if place:
                self.spans[-1].append(now)
            else:
                self.spans.append([now])

    def sample_gpu(self) -> None:
        """Sample the GPU's utilisation from a thread until the process ends."""
        if not self.case.device.startswith("cuda"):
            return
        import pynvml

        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        except pynvml.NVMLError as error:
            print(f"no utilisation: {error}", file=sys.stderr)
            return

        def sample() -> None:
            while True:
                self.busy.append((time.perf_counter(), pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
                time.sleep(LOOK_S)

        threading.Thread(target=sample, daemon=True).start()

    @property
    def figures(self) -> Figures:
        """Return speed and mean utilisation, both without the first epoch."""
        spans = self.spans[1:]
        pairs = len(spans) * (self.case.steps - 1) * self.case.batch_size
        found: Figures = {"pairs_per_s": pairs / sum(end - begin for begin, end in spans)}
        busy = [share for at, share in self.busy if any(begin <= at <= end for begin, end in spans)]
        return found | ({"gpu_utilisation_percent": statistics.mean(busy)} if busy else {})


def make(case: Case, folder: Path) -> None:
    """Write train.csv, val.csv and the initial weights of both sides."""
    import numpy as np
    import torch

    from engine import datasets
    from engine.models.clip import weights
    from engine.specs.train import TrainSpec

    digits = datasets.open_pairs("digits")
    order = np.random.default_rng(0).permutation(len(digits))
    parts = {"val": order[:HELD_OUT], "train": np.resize(order[HELD_OUT:], case.samples)}
    for name, indices in parts.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("filepath", "title"))
            for place, index in enumerate(indices):
                path = folder / f"{name}-{place}.png"
                digits.image(int(index)).save(path)
                captions = digits.captions(int(index))
                table.writerow((path, captions[place % len(captions)]))
    spec = TrainSpec(model=case.model, image_size=case.image_size, context_length=case.context_length)
    torch.save(weights.create(spec, weights="").model.state_dict(), folder / "weights.pt")


def train(side: str, case: Case, folder: Path, seed: int) -> Figures:
    """Train in this process, and return its speed and the held-out loss at the end."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(case.threads)
    watch = Watch(case)
    register_optimizer_step_post_hook(watch)
    watch.sample_gpu()
    flags = case.flags | {"seed": seed, "pretrained": folder / "weights.pt", "val_frequency": case.epochs}
    logs = folder / f"{side}-{seed}"
    if side == "ours":
        from engine.__main__ import main as engine

        flags |= {"data": folder / "train.csv", "val_data": folder / "val.csv", "threads": case.threads}
        flags |= {"image_size": case.image_size, "context_length": case.context_length}
        os.environ |= {"VITALS_RUNS_DIR": str(logs), "VITALS_DATA_ROOTS": str(folder)}
        if engine(["train", "--no-tensorboard", *_words(flags)]):
            raise SystemExit("our training has failed")
        (results,) = logs.glob("*/results.jsonl")
    else:
        import open_clip
        from open_clip_train.main import main as open_clip_train

        from engine.models.clip import build

        open_clip.add_model_config(build.OWN_CONFIGS)
        flags |= {"train_data": folder / "train.csv", "val_data": folder / "val.csv", "dataset_type": "csv"}
        flags |= {"force_image_size": case.image_size, "force_context_length": case.context_length}
        flags |= {"csv_separator": ",", "logs": logs, "name": "reference"}
        open_clip_train(_words(flags))
        results = logs / "reference" / "checkpoints" / "results.jsonl"
    loss = json.loads(results.read_text().splitlines()[-1])[LOSS]
    assert watch.count == case.steps * case.epochs, f"{watch.count} steps, not {case.steps} in {case.epochs} epochs"
    return {**watch.figures, LOSS: loss}


def _words(flags: Figures) -> list[str]:
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def environment(case: Case) -> dict[str, str]:
    """Return a child's variables. PYTHONPATH is kept, because the packages of `make gpu WHEELS=...` are in it."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(case.threads), "HF_HUB_OFFLINE": "1"}


def child(side: str, case: Case, folder: Path, seed: int, stderr: int | None = subprocess.PIPE) -> Figures:
    """Return the result of `train` in a fresh process. stderr: None shows what the training prints."""
    child_job = json.dumps({"side": side, "case": asdict(case), "folder": str(folder), "seed": seed})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--child", child_job],
        env=environment(case),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{side} has failed:\n{(done.stderr or '')[-5000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(case: Case, rounds: int) -> Figures:
    """Run all rounds of a case and return its report."""
    order = random.Random(1337)  # noqa: S311 - nothing secret
    found: list[dict[str, Figures]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(case, folder)
        for seed in range(rounds):
            sides = {side: child(side, case, folder, seed) for side in order.sample(SIDES, 2)}
            found.append({side: sides[side] for side in SIDES})
            print(case.model, json.dumps(found[-1]), flush=True)
    return summary(case, found)


def summary(case: Case, found: list[dict[str, Figures]]) -> Figures:
    """Return the report of a case. found: the figures of both sides in each round."""
    ratios = [item["ours"]["pairs_per_s"] / item["reference"]["pairs_per_s"] for item in found]
    report = {f"{side}_pairs_per_s": statistics.median(item[side]["pairs_per_s"] for item in found) for side in SIDES}
    report |= dict(zip(("low", "ratio", "high"), median_interval(ratios), strict=True))
    losses = {side: sorted(item[side][LOSS] for item in found) for side in SIDES}
    in_range = losses["reference"][0] <= statistics.median(losses["ours"]) <= losses["reference"][-1]
    return {"settings": asdict(case), **report, LOSS: losses, "learns_as_much": in_range, "rounds": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits-clip,RN50", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--epochs", type=int, help="the first is not counted")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if chosen.child:
        child_job = json.loads(chosen.child)
        case, folder = Case(**child_job["case"]), Path(child_job["folder"])
        with contextlib.redirect_stdout(sys.stderr):
            figures = train(child_job["side"], case, folder, child_job["seed"])
        print(json.dumps(figures))
        return
    options = {
        name: getattr(chosen, name) for name in ("samples", "epochs", "batch_size", "device", "threads", "workers")
    }
    changes = {name: value for name, value in options.items() if value is not None}
    cases: dict[str, Figures] = {}
    for name in chosen.cases.split(","):
        cases[name] = measure(replace(CASES[name], **changes), chosen.rounds)
        if chosen.output:  # after each case, so that an interrupted benchmark keeps its results
            chosen.output.parent.mkdir(parents=True, exist_ok=True)
            chosen.output.write_text(json.dumps(report_of(cases), indent=2) + "\n")
    print(json.dumps(report_of(cases)["goals"]))


def report_of(cases: dict[str, Figures]) -> Figures:
    """Return the report of all cases."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "open_clip_torch", "torchvision")},
        "goals": {
            "not slower than open_clip's training, by the interval": all(item["high"] >= 1 for item in cases.values()),
            "held-out loss among those of the reference's seeds": all(
                item["learns_as_much"] for item in cases.values()
            ),
        },
        "cases": cases,
    }


if __name__ == "__main__":
    main()
