"""Predict what a timing needs: memory from the catalogue's counts, time from its parts."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from statistics import median
from typing import Any

import pandas as pd

from engine.report import frames
from engine.results import BenchmarkRow, ProfileRow, Row, TimedRow, TrainRow
from engine.specs import BenchmarkSpec, ModelName, RecurrentSpec, Variant, parse_image_size
from engine.specs.base import device_on_node
from engine.specs.fields.building import changes
from engine.specs.fields.runners import KEPT_PER_STEP, RUNNERS
from engine.specs.recurrent import macs_per_step
from engine.words import plural


@dataclass(frozen=True)
class Span:
    """A range of expected seconds."""

    low: float
    high: float

    def __add__(self, other: "Span") -> "Span":
        return Span(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> "Span":
        """Return the range multiplied by a factor."""
        return Span(self.low * factor, self.high * factor)

    @property
    def middle(self) -> float:
        """Return the geometric mean of the bounds."""
        return sqrt(self.low * self.high)

    def corrected(self, ratios: Sequence[float]) -> "Span":
        """Return the range corrected by earlier runs. ratios: seconds of a run / middle of its predicted range."""
        return similar_s([ratio * self.middle for ratio in ratios]) if ratios else self


MOST_LOAD = 2
"""At a larger load per CPU, timings take longer than predicted."""
START_S = Span(3, 15)
"""Seconds to start and end a process, if no earlier run has measured it."""
VARIATION = Span(0.7, 1.5)
"""Factor by which times differ from one run to the next."""
READY_S = Span(0.1, 3)
"""Seconds to build, check and first call a model or layer, in each process."""
COMPILE_S, COMPILE_AGAIN_S = Span(5, 60), Span(2, 20)
"""Seconds to compile one graph with an empty cache folder, and in each later process."""
COST = Span(1.25, 2.0)
"""Factor from the requested sampled seconds to the total. Warm-up and untimed calls are added, and up to twice the
requested time is sampled."""
THREAD_GFLOPS, DEVICE_GFLOPS = Span(5, 80), Span(2e3, 3e5)
"""GFLOP/s that models reach on one CPU thread, and on an accelerator."""
STEP_S = Span(1e-5, 4e-4)
"""Seconds of one time step of one layer, forward and backward, without its products. From fused to plain Python."""
RESNET_GFLOPS = 3 * 8.2
"""GFLOPs of a ResNet-50 forward and backward, per image of 224 x 224 pixels."""
STATES = {"sgd": 0, "adamw": 2}
MOST_STATES = 2
"""Values that an optimizer keeps per weight. Those of timm keep at most as many as AdamW."""
CACHING = ("eager", "export")
"""Executions in which autocast keeps a half-precision copy of each weight until the end of a forward pass. Compiled and
traced models, and CUDA graphs, free each copy after its use."""


@dataclass(frozen=True)
class ValueBytes:
    """Mean bytes of a value in amp. It has 2 in half precision and 4 in float32."""

    inference: float
    training: float
    """Bytes of a value that is kept for the backward pass."""


AMP_WITH_BATCH_NORM = {"cpu": ValueBytes(2.1, 2.1), "accelerator": ValueBytes(3.2, 2.3)}
AMP_WITHOUT_BATCH_NORM = {"cpu": ValueBytes(2.6, 2.3), "accelerator": ValueBytes(3.6, 3.0)}
"""By kind of device. Autocast computes batch norm in half precision, and most other norms, and what their results are
added to, in float32. On a CPU, values of counted models have 2.0 and 2.4 bytes on average in inference, those of most
vision transformers 2.6 to 2.8. Accelerators have workspaces and gaps besides; their values fit published batch sizes
best (docs/benchmarks.md)."""


@dataclass(frozen=True)
class Need:
    """Memory of the model that needs the most."""

    model: str
    batch_size: int
    gb: float
    """1e9 bytes, without the memory of PyTorch itself."""
    unknown: int
    """Number of models without values in the catalogue."""


def memory(spec: BenchmarkSpec, models: Sequence[ModelName], catalogue: pd.DataFrame) -> Need | None:
    """Return the largest need among models. None if the run itself finds their batch size, or the catalogue has none of
    them, or the request changes how they are built. It has none of CLIP models of which one tower is timed.

    Weights are held once per variant, activations of only one variant at a time. Activations grow with batch and image
    area. Errors: those of BenchmarkSpec.batch_sizes.
    """
    if changes(spec):
        return None
    counted = frames.own_sizes(catalogue[catalogue["status"] == "ok"])
    # an older catalogue lacks live_mb
    counted = counted.fillna({"live_mb": counted["inference_peak_mb"] - counted["weights_mb"]})
    if "training" in spec.modes:
        counted = counted[counted["kept_mb"].notna()]
    if spec.tower != "whole":  # the catalogue has the memory of whole models
        counted = counted[counted["text_mparams"].isna()]
    needs = []
    for model in models:
        batch = max(spec.batch_sizes(model), default=0)
        if batch and model in counted.index:
            gb = _bytes(spec, counted.loc[model].to_dict(), batch) / 1e9
            needs.append((gb, model, batch))
    if not needs:
        return None
    gb, model, batch = max(needs)
    return Need(model, batch, gb, sum(model not in counted.index for model in models))


def _bytes(spec: BenchmarkSpec, row: Mapping[Any, Any], batch: int) -> float:
    area = _area_factor(spec, row)
    weights = row["weights_mb"] * sum(_bytes_each(variant.precision) for variant in spec.plan) / 4
    if "training" in spec.modes:
        kept = row["kept_mb"] * max(_value_bytes(variant, spec.device, row).training for variant in spec.plan) / 4
        return 1e6 * float(weights * (2 + STATES.get(spec.optimizer, MOST_STATES)) + kept * batch * area)
    first = max(row["inference_peak_mb"] - row["weights_mb"], row["live_mb"])  # with what does not grow with the batch
    live = (first + row["live_mb"] * (batch - 1)) * area
    forward = (_forward_mb(variant, spec.device, row, live) for variant in spec.plan)
    return 1e6 * float(weights + max(forward))


def _forward_mb(variant: Variant, device: str, row: Mapping[Any, Any], live: float) -> float:
    """Return the MB that a forward pass of a variant adds to its weights. live: MB of its values in float32."""
    copies = row["weights_mb"] / 2 if _is_amp(variant.precision) and variant.execution in CACHING else 0.0
    return float(copies + live * _value_bytes(variant, device, row).inference / 4)


def _value_bytes(variant: Variant, device: str, row: Mapping[Any, Any]) -> ValueBytes:
    """Return the mean bytes of the values of a model."""
    if not _is_amp(variant.precision):
        size = _bytes_each(variant.precision)
        return ValueBytes(size, size)
    amp = AMP_WITH_BATCH_NORM if "native_batch_norm" in row["uncounted"] else AMP_WITHOUT_BATCH_NORM
    found = amp["cpu" if device_on_node(device) == "cpu" else "accelerator"]
    return found if variant.execution in CACHING else replace(found, inference=4)


def _is_amp(precision: str | None) -> bool:
    return precision is not None and precision.startswith("amp")


def _bytes_each(precision: str | None) -> int:
    """Return the bytes of a weight. With amp it is 4, because float32 copies are kept."""
    return 2 if precision in ("float16", "bfloat16") else 4


def _area_factor(spec: BenchmarkSpec, row: Mapping[Any, Any]) -> float:
    """Return the pixels of a timed image / those of a counted one. Inference uses the publisher's test size."""
    if not row["image_size"]:
        return 1.0
    test_size = "" if "training" in spec.modes else row.get("test_size")
    timed: tuple[int, int] = spec.image_size or parse_image_size(test_size or row["image_size"])
    return float(prod(timed)) / float(prod(parse_image_size(row["image_size"])))


def own_image_sizes(spec: BenchmarkSpec, models: Sequence[ModelName], catalogue: pd.DataFrame) -> list[str]:
    """Return the distinct sizes at which models are timed if the request names none, smallest first: `224`, `192x256`.

    Models that are not in the catalogue, or that take no images, are left out.
    """
    rows = frames.own_sizes(catalogue[catalogue["name"].isin(models)])
    sizes = rows["image_size"]
    if "training" not in spec.modes:
        sizes = sizes.where(rows["test_size"] == "", rows["test_size"])
    return sorted({size for size in sizes if size}, key=lambda size: prod(parse_image_size(size)))


def benchmark_s(
    spec: BenchmarkSpec, models: Sequence[ModelName], catalogue: pd.DataFrame, start: Span = START_S
) -> Span:
    """Return the seconds that timing these models should take. start: seconds to start a process, from `start_s`.

    Several nodes are assumed to be equally fast.

    Errors: those of BenchmarkSpec.batch_sizes.
    """
    counted = frames.own_sizes(catalogue[catalogue["status"] == "ok"])
    gmacs = "gmacs" if spec.tower == "whole" else f"{spec.tower}_gmacs"
    compiled = sum(variant.execution == "compile" for variant in spec.plan)
    total = Span(0, 0)
    for model in models:
        row = counted.loc[model].to_dict() if model in counted.index and not changes(spec) else None
        for batch in spec.batch_sizes(model) or (0,):
            for mode in spec.modes:
                gflops = 0.0
                if row and batch and pd.notna(row[gmacs]):
                    gflops = 2 * row[gmacs] * batch * _area_factor(spec, row) * (3 if mode == "training" else 1)
                requested = _requested_span(spec.device, spec.threads, gflops, spec.floor_seconds, spec.floor_samples)
                if spec.purpose != "performance":
                    requested = Span(0, 0)
                total += _side_by_side(spec.processes, len(spec.plan), compiled, requested, start, spec.max_seconds)
    return total.times(1 / spec.nodes)


def recurrent_s(spec: RecurrentSpec, start: Span = START_S) -> Span:
    """Return the seconds that all comparisons of recurrent layers should take. start: as for `benchmark_s`."""
    total = Span(0, 0)
    for case in spec.comparisons:
        compiled = sum(RUNNERS[name].execution == "compile" for name in case.chosen)
        if case.family == "resnet":
            gflops, steps = RESNET_GFLOPS * case.mini_batch * prod(case.image_size) / 224**2, 0
        else:
            gflops = 3 * 2 * macs_per_step(case) * case.mini_batch * case.seq_length / 1e9
            steps = case.seq_length * case.num_layers * (1 + case.bidirectional)
        overhead = STEP_S.times(steps)
        calls = max(case.loops, case.warmup)  # COST covers the smaller of both
        requested = _requested_span(case.device, case.threads, gflops, case.floor_seconds, calls, overhead)
        total += _side_by_side(case.processes, len(case.chosen), compiled, requested, start)
    return total


def _requested_span(
    device: str, threads: int | None, gflops: float, seconds: float, samples: int, extra: Span = Span(0, 0)
) -> Span:
    """Return the sampled seconds per variant and process. gflops: of a call. extra: further seconds of a call."""
    on_cpu = device_on_node(device) == "cpu"
    rate = THREAD_GFLOPS.times(threads or os.cpu_count() or 1) if on_cpu else DEVICE_GFLOPS
    call = Span(gflops / rate.high, gflops / rate.low) + extra
    requested = Span(max(seconds, samples * call.low), max(seconds, samples * call.high))
    # an accelerator is timed twice: latency and back to back
    return requested if on_cpu else requested.times(2)


def _side_by_side(
    processes: int, timed: int, compiled: int, requested: Span, start: Span, most: float | None = None
) -> Span:
    """Return the seconds to time variants side by side. most: longest sampling of a process in s."""
    sampling = Span(COST.low * requested.low, COST.high * requested.high).times(timed)
    if most is not None:
        sampling = Span(min(most, sampling.low), min(most, sampling.high))
    compiling = COMPILE_S + COMPILE_AGAIN_S.times(processes - 1)
    return (start + READY_S.times(timed) + sampling).times(processes) + compiling.times(compiled)


def start_s(rows: Iterable[Row]) -> Span:
    """Return the seconds to start a process, from the rows of an earlier run on this machine."""
    seconds = [
        row.parts.starts_s / row.processes for row in rows if isinstance(row, TimedRow) and row.parts and row.processes
    ]
    return VARIATION.times(median(seconds)) if seconds else START_S


def similar_s(seconds: Sequence[float]) -> Span:
    """Return the expected duration of a run in s. seconds: durations of similar runs."""
    return Span(VARIATION.low * min(seconds), VARIATION.high * max(seconds))


def work(rows: Iterable[Row]) -> tuple[float, int]:
    """Return the seconds of a run that grow with its amount of work, and the amount: counts, timed models, or steps.

    Both are 0 if the rows lack them.
    """
    seconds: dict[tuple[object, ...], float] = {}
    trained = (0.0, 0)
    for row in rows:
        if isinstance(row, TrainRow):
            trained = (row.seconds or 0.0, row.step) if row.step else trained
        elif isinstance(row, ProfileRow):
            seconds[(row.name, row.image_size, row.batch_size),] = row.seconds or 0.0
        elif isinstance(row, BenchmarkRow):
            seconds[row.name, row.batch_size, row.mode] = row.seconds or 0.0
    return (sum(seconds.values()), len({key[0] for key in seconds})) if seconds else trained


def rescaled_s(took: float, work_s: float, amount: int, wanted: int | None) -> float:
    """Return the expected duration in s from an earlier run: its fixed part, and its work scaled to the new amount.

    took: duration of the earlier run in s. work_s, amount: from `work`. wanted: the new amount; None for the same.
    """
    if wanted is None or not amount:
        return took
    return max(took - work_s, 0.0) + work_s * wanted / amount


def overload() -> str:
    """Return a text if many more threads want to run than there are CPUs; else an empty one."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    return f"the load is {load:.0f} on {plural(cpus, 'CPU')}" if load > MOST_LOAD * cpus else ""


def recurrent_least_gb(spec: RecurrentSpec) -> float:
    """Return the 1e9 bytes that the largest comparison needs at the least.

    They include inputs, outputs, weights, their gradients, and the values that one runner's backward pass needs; for
    ResNets, only their images.
    """
    return max(map(_least_bytes, spec.comparisons)) / 1e9


def _least_bytes(spec: RecurrentSpec) -> float:
    size = _bytes_each(spec.precision)
    if spec.family == "resnet":
        return float(size * spec.mini_batch * 3 * prod(spec.image_size))
    directions, hidden = 1 + spec.bidirectional, spec.hidden_size
    out = (spec.proj_size or hidden) * directions
    state = directions * spec.num_layers * KEPT_PER_STEP[spec.family] * hidden
    return float(size * (2 * macs_per_step(spec) + spec.seq_length * spec.mini_batch * (spec.input_size + out + state)))
