"""Measure a GPU and the program on it: device rates, models, recurrent layers and CLIP training.

python -m benchmarks.gpu [--device cuda:0] [--quick] [--steps rates,training,recurrent,models] [--processes 1]
                         [--minutes 20] [--append] [--output benchmarks/results/gpu.json]

rates      matrix products and copies, compared with the data sheet of an H100 SXM or H200
training   ViT-B-32 in amp_bf16: pairs/s of our training and of open_clip's, in turns; their output goes to stderr
recurrent  every LSTM runner, compared with cuDNN
models     ViT-B-32, ResNet-50 and three more, inference and training, in eager, torch.compile and CUDA graphs, in bf16
           and TF32. Another process times the same variants with torch.utils.benchmark.Timer and our stopwatch in turns

Every step runs the program's own tasks and writes each result line into the output at once, so that an interrupted run
keeps its lines. --append continues such a file. --quick uses small models and few samples; with `--device cpu` it runs
every step on a machine without a GPU.

The time limit (--minutes) is checked before each model and mode of `models`, which are sorted by importance. On an
H200, `rates` took 75 s, `recurrent`, which yields its lines only at its end, 113 s, ViT-B-32's inference 153 s and its
training 212 s. All steps together may take over 30 minutes (an estimate).
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import gpu_children
from engine import atomic

ROOT = Path(__file__).resolve().parent.parent
Line = dict[str, Any]

SHEETS = {
    "NVIDIA H100 80GB HBM3": {"float64": 67, "float32": 67, "tf32": 494, "float16": 989, "bfloat16": 989, "copy": 3.35},
    "NVIDIA H200": {"float64": 67, "float32": 67, "tf32": 494, "float16": 989, "bfloat16": 989, "copy": 4.8},
}
"""Rates of data sheets, by CUDA's name of the GPU: TFLOP/s of dense matrix products (half of the sparse ones in the
sheets; float64 on tensor cores), and TB/s of memory. Sources: NVIDIA H100 Tensor Core GPU Datasheet and NVIDIA H200
Tensor Core GPU Datasheet, column SXM in both."""
MODELS = (
    "open_clip:ViT-B-32",
    "timm:resnet50",
    "timm:vit_base_patch16_224",
    "timm:convnext_base",
    "timm:efficientnet_b0",
)
BATCHES = {"inference": 64, "training": 32}
ROUNDS = 3
"""Trainings of each side."""
COLUMNS = {
    "rates": ("operation", "dtype", "rate", "unit", "data_sheet", "share", "flags", "error"),
    "training": ("model", "round", "side", "pairs_per_s", "seconds", "ratio"),
    "recurrent": ("model", "forward_ms", "backward_ms", "speedup", "verdict", "flags", "error"),
    "models": (
        "model",
        "mode",
        "variant",
        "latency_ms",
        "queued_ms",
        "timer_ms",
        "beside_timer_ms",
        "ratio",
        "compile_s",
        "flags",
        "error",
    ),
}


@dataclass(frozen=True)
class Asked:
    """The options of a step."""

    device: str
    quick: bool = False
    processes: int = 1
    """Fresh processes per timing; a verdict needs at least 3."""
    deadline: float = float("inf")
    """Begin no other model after this time, by time.monotonic()."""

    @property
    def seconds(self) -> float:
        """Return the seconds of samples per timing."""
        return 0.05 if self.quick else 1.0

    @property
    def threads(self) -> int | None:
        """Return the number of CPU threads: one for a quick run, which then also works on a busy machine."""
        return 1 if self.quick else None


def events(spec: Any, folder: Path) -> Iterator[Any]:
    """Run the task of a spec in this process, and yield its events. Print each new note on its progress to stderr."""
    started, note = time.monotonic(), ""
    for event in import_module(f"engine.tasks.{spec.kind}").run(spec, folder):
        if (latest := getattr(event, "note", "")) and latest != note:
            note = latest
            print(f"{time.monotonic() - started:5.0f} s  {note}", file=sys.stderr, flush=True)
        yield event


def rates(options: Asked, done: list[Line]) -> Iterator[Line]:
    """Measure matrix products in every data type of tensor cores, and copies."""
    from engine.measure import environment
    from engine.specs import DeviceSpec

    dtypes = ("float32", "bfloat16") if options.quick else ("bfloat16", "float16", "tf32", "float32", "float64")
    sheet = SHEETS.get(environment.current(options.device).device_name, {})
    spec = DeviceSpec(device=options.device, dtypes=dtypes, seconds=options.seconds, threads=options.threads)
    for row in gpu_children.run("rates", {"spec": spec.model_dump(mode="json"), "quick": options.quick}):
        yield rated(row, sheet)


def rated(row: Line, sheet: dict[str, float]) -> Line:
    """Return a DeviceRow as a line, in TFLOP/s or TB/s, with its share of the data sheet where there is one."""
    matmul = row["operation"] == "matmul"
    measured, ideal = row["gflop_per_s" if matmul else "gb_per_s"], sheet.get(row["dtype"] if matmul else "copy")
    rate = measured / 1e3 if measured else None
    share = rate / ideal if rate and ideal else None
    return row | {"rate": rate, "unit": "TFLOP/s" if matmul else "TB/s", "data_sheet": ideal, "share": share}


def training(options: Asked, done: list[Line]) -> Iterator[Line]:
    """Train with both sides in turns, each in a fresh process. Yield a line per training, then one with the ratio."""
    sys.path.append(str(ROOT / "benchmarks"))  # train_throughput imports a module beside it
    import train_throughput

    cpus = len(os.sched_getaffinity(0))
    if options.quick:
        case = replace(train_throughput.CASES["digits-clip"], samples=64, batch_size=16, epochs=2)
    else:
        case = replace(train_throughput.CASES["ViT-B-32"], samples=8192, epochs=3, workers=min(8, cpus))
    case = replace(case, device=options.device, threads=options.threads or cpus)
    settings = {"model": case.model, "precision": case.precision, "batch_size": case.batch_size}
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        train_throughput.make(case, Path(name))
        for number in range(1 if options.quick else ROUNDS):
            speeds: dict[str, float] = {}
            for side in train_throughput.SIDES if number % 2 == 0 else train_throughput.SIDES[::-1]:
                started = time.monotonic()
                figures = train_throughput.child(side, case, Path(name), number, stderr=None)
                speeds[side] = figures["pairs_per_s"]
                yield settings | {"round": number, "side": side, "seconds": time.monotonic() - started} | figures
            ratios.append(speeds["ours"] / speeds["reference"])
    yield settings | {"round": "all", "side": "ours / reference", "ratio": statistics.median(ratios), "ratios": ratios}


def recurrent(options: Asked, done: list[Line]) -> Iterator[Line]:
    """Time every LSTM runner at fastrnns' shapes, forward and backward."""
    from engine.results import RecurrentRow
    from engine.specs import RecurrentSpec

    shape: Line = {"groups": "rnns"}
    if options.quick:
        shape = {"runners": "cudnn,aten,py", "seq_length": 4, "input_size": 8, "hidden_size": 8, "mini_batch": 2}
        shape |= {"warmup": 1, "loops": 3}
    timing: Line = {"replicates": options.processes, "min_seconds": options.seconds, "threads": options.threads}
    spec = RecurrentSpec(device=options.device, **timing, **shape)
    with tempfile.TemporaryDirectory() as folder:
        for row in events(spec, Path(folder)):
            if isinstance(row, RecurrentRow):
                yield row.model_dump(mode="json")


def models(options: Asked, done: list[Line]) -> Iterator[Line]:
    """Time every model in every variant in inference and training, and compare each variant with torch's Timer."""
    from engine.results import Artifact, BenchmarkRow
    from engine.specs import BenchmarkSpec

    chosen, variants, settings = MODELS, "eager,compile,cudagraphs", {}
    if options.quick:
        chosen, variants = ("timm:test_vit",), "eager,compile:aot_eager,cudagraphs"
        settings = {"image_size": 32, "min_samples": 3, "threads": options.threads}
    measured = {(line["name"], line["mode"]) for line in done}
    for name in chosen:
        for mode, batch in list(BATCHES.items())[:1] if options.quick else BATCHES.items():
            if (name, mode) in measured or time.monotonic() > options.deadline:
                continue
            spec = BenchmarkSpec(
                models=(name,),
                mode=mode,
                device=options.device,
                batch_size=2 if options.quick else batch,
                variants=variants,
                precision="bfloat16,tf32",
                replicates=options.processes,
                min_seconds=options.seconds,
                **settings,
            )
            timer: dict[str, Line] = {}
            with tempfile.TemporaryDirectory() as folder:
                for event in events(spec, Path(folder)):
                    # once, at the first file of samples: everything is timed, and its compiled code still exists
                    if isinstance(event, Artifact) and not timer:
                        timer = by_timer(spec, name, mode, options)
                    elif isinstance(event, BenchmarkRow):
                        yield beside(event, name, timer.get(event.variant, {}))


def beside(row: Any, name: str, timer: Line) -> Line:
    """Return a row as a line, with the times of `gpu_children.timer` for the same variant."""
    compiled = row.compile_cold_ms
    return {
        **row.model_dump(mode="json"),
        **{"name": name, "queued_ms": row.back_to_back_ms or row.latency_ms, "timer_error": timer.get("error", "")},
        **{column: timer.get(column) for column in ("timer_ms", "beside_timer_ms", "ratio")},
        "compile_s": compiled / 1e3 if compiled is not None else None,
    }


def by_timer(spec: Any, name: str, mode: str, options: Asked) -> dict[str, Line]:
    """Compare our stopwatch with torch's Timer on every variant of a spec, in one fresh process: `timer`'s results."""
    job = {"spec": spec.model_dump(mode="json"), "model": name, "mode": mode, "batch_size": spec.batch_size}
    try:
        found: dict[str, Line] = gpu_children.run(
            "timer", {"job": job, "seconds": options.seconds}, gpu_children.compiled_caches()
        )
    except gpu_children.Failed as error:
        return {variant.label: {"error": str(error)} for variant in spec.plan}
    return found


STEPS: dict[str, Callable[[Asked, list[Line]], Iterator[Line]]] = {
    "rates": rates,
    "training": training,
    "recurrent": recurrent,
    "models": models,
}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--quick", action="store_true", help="use small models and few samples, to check that every step runs"
    )
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--processes", type=int, default=1, help="per timing; verdicts need 3")
    parser.add_argument("--minutes", type=float, default=20, help="start no further model after this time")
    parser.add_argument(
        "--append", action="store_true", help="keep the results in --output, and measure the missing ones"
    )
    parser.add_argument("--output", type=Path, help="a JSON file")
    chosen = parser.parse_args(words)
    if chosen.append and not chosen.output:
        parser.error("--append needs the --output to append to")
    if unknown := set(chosen.steps.split(",")) - set(STEPS):
        parser.error(f"no such steps: {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    deadline = time.monotonic() + 60 * chosen.minutes
    options = Asked(chosen.device, quick=chosen.quick, processes=chosen.processes, deadline=deadline)
    earlier = json.loads(chosen.output.read_text()) if chosen.append and chosen.output.is_file() else {}
    measure(options, chosen.steps.split(","), chosen.output, earlier.get("steps", {}))


def measure(options: Asked, steps: list[str], output: Path | None, earlier: dict[str, Any]) -> dict[str, Any]:
    """Do the steps, print their lines and write the report after each. earlier: steps of an earlier report."""
    from engine.measure import environment

    current = environment.current(options.device)
    done: dict[str, Any] = dict(earlier)
    report = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "quick": options.quick}
    report |= {
        "environment": current.model_dump(mode="json"),
        "data_sheet": SHEETS.get(current.device_name),
        "steps": done,
    }
    for name in steps:
        stored = done.get(name, {"seconds": 0.0, "complete": False, "lines": []})
        if stored["complete"]:
            continue
        lines: list[Line] = stored["lines"] if name == "models" else []
        started, before = time.monotonic(), stored["seconds"]
        print(f"\n{name}\n" + _row(COLUMNS[name]), flush=True)
        for line in STEPS[name](options, list(lines)):
            lines.append(line)
            print(_row([_cell(line.get(column)) for column in COLUMNS[name]]), flush=True)
            done[name] = {"seconds": before + time.monotonic() - started, "complete": False, "lines": lines}
            _write(report, output)
        done[name] = {"seconds": before + time.monotonic() - started, "lines": lines}
        done[name]["complete"] = name != "models" or time.monotonic() <= options.deadline
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
        _write(report, output)
    return report


def _write(report: dict[str, Any], output: Path | None) -> None:
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(output, json.dumps(report, indent=2) + "\n")  # a run may be killed at its machine's time limit


def _row(cells: Any) -> str:
    return "  ".join(f"{cell[:28]:<14}" for cell in cells).rstrip()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ",".join(value) if isinstance(value, list) else "" if value is None else str(value)


if __name__ == "__main__":
    main()
