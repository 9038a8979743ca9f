"""Predict what a timing needs: memory from the catalogue's counts, time from its parts."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Any

import pandas as pd

from engine.results import BenchmarkRow, Row, TimedRow
from engine.specs import BenchmarkSpec, ModelName, RecurrentSpec
from engine.specs.runners import GATES, RUNNERS, Family


@dataclass(frozen=True)
class Span:
    """Seconds that something should take, from and to."""

    low: float
    high: float

    def __add__(self, other: "Span") -> "Span":
        return Span(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> "Span":
        """Return it so many times."""
        return Span(self.low * factor, self.high * factor)


START_S = Span(3, 15)
"""Starting and ending a process, where no earlier run has measured it."""
AGAIN = Span(0.7, 1.5)
"""What differs from one run to the next, as a factor."""
READY_S = Span(0.1, 3)
"""Building, checking and calling something for the first time, in each process."""
COMPILE_S, COMPILE_AGAIN_S = Span(5, 60), Span(2, 20)
"""Compiling one graph into an empty cache folder, and in each later process."""
COST = Span(1.25, 2.0)
"""What sampling costs, in times the sampled seconds asked for: warm-up and untimed calls come on top, and at most as
much as was asked for is sampled beyond it."""
THREAD_GFLOPS, DEVICE_GFLOPS = Span(5, 80), Span(2e3, 3e5)
"""GFLOP/s that models reach on a thread of a CPU, and on an accelerator."""
STEP_S = Span(1e-5, 4e-4)
"""A time step of one layer, forward and backward, without its products: from fused to plain Python."""
RESNET_GFLOPS = 3 * 8.2
"""A ResNet-50 forward and backward, per image of 224 x 224 pixels."""
KEPT = 2
"""Training keeps the outputs of convolutions and matrix products for the backward pass, and about as much again of
what lies between them (normalisations, activations)."""
STATES = {"sgd": 0, "adamw": 2}
"""Values an optimizer keeps per weight."""
KEPT_PER_STEP: dict[Family, int] = {"lstm": 6, "vl_lstm": 6, "milstm": 6, "gru": 4, "rnn_relu": 1, "rnn_tanh": 1}
"""Values per unit of the hidden state and step that no backward pass can do without: gates, cell and state."""


@dataclass(frozen=True)
class Need:
    """Memory of the model that needs most."""

    model: str
    batch_size: int
    gb: float
    """1e9 bytes, without what PyTorch itself takes."""
    unknown: int
    """Models the catalogue has no figures of."""


def memory(spec: BenchmarkSpec, models: Sequence[ModelName], catalogue: pd.DataFrame) -> Need | None:
    """Return the largest need among models; None when their batch is searched for or the catalogue knows none of them.

    Weights are held once per variant, activations of one variant at a time; they grow with batch and image area.
    Errors: those of BenchmarkSpec.batch_sizes.
    """
    known = catalogue[catalogue["status"] == "ok"].drop_duplicates("name").set_index("name")
    needs = []
    for model in models:
        batch = max(spec.batch_sizes(model), default=0)
        if batch and model in known.index:
            gb = _bytes(spec, known.loc[model].to_dict(), batch) / 1e9
            needs.append((gb, model, batch))
    if not needs:
        return None
    gb, model, batch = max(needs)
    return Need(model, batch, gb, sum(model not in known.index for model in models))


def _bytes(spec: BenchmarkSpec, row: Mapping[Any, Any], batch: int) -> float:
    area = _timed_area(spec, row) / _area(row["image_size"]) if row["image_size"] else 1.0
    wide = max(_bytes_each(variant.precision) for variant in spec.plan) / 4
    weights = row["weights_mb"] * sum(_bytes_each(variant.precision) for variant in spec.plan) / 4
    if "training" in spec.modes:
        kept = KEPT * row["macts"] * 4 * batch * area * wide
        return 1e6 * float(weights * (2 + STATES[spec.optimizer]) + kept)
    return 1e6 * float(weights + (row["inference_peak_mb"] - row["weights_mb"]) * batch * area * wide)


def _bytes_each(precision: str | None) -> int:
    """Return the bytes of a value; amp keeps float32 beside what it casts."""
    return 2 if precision in ("float16", "bfloat16") else 4


def _timed_area(spec: BenchmarkSpec, row: Mapping[Any, Any]) -> float:
    """Pixels of an image, as it is timed: inference at the size that the publisher tests a model at."""
    if spec.image_size:
        return float(prod(spec.image_size))
    tested = "" if "training" in spec.modes else row.get("test_size")
    return _area(tested or row["image_size"])


def _area(image_size: str) -> float:
    sides = [int(side) for side in image_size.split("x")]
    return float(sides[0] * sides[-1])


def benchmark_s(
    spec: BenchmarkSpec, models: Sequence[ModelName], catalogue: pd.DataFrame, start: Span = START_S
) -> Span:
    """Return the seconds that timing these models should take. start: of a process, as `start_s` finds it.

    Errors: those of BenchmarkSpec.batch_sizes.
    """
    known = catalogue[catalogue["status"] == "ok"].drop_duplicates("name").set_index("name")
    compiled = sum(variant.execution == "compile" for variant in spec.plan)
    total = Span(0, 0)
    for model in models:
        row = known.loc[model].to_dict() if model in known.index else None
        for batch in spec.batch_sizes(model) or (0,):
            for mode in spec.modes:
                gflops = 0.0
                if row and batch:
                    area = _timed_area(spec, row) / _area(row["image_size"]) if row["image_size"] else 1.0
                    gflops = 2 * row["gmacs"] * batch * area * (3 if mode == "training" else 1)
                asked = _asked(spec.device, spec.threads, gflops, spec.floor_seconds, spec.floor_samples)
                if spec.purpose != "performance":
                    asked = Span(0, 0)
                total += _side_by_side(spec.processes, len(spec.plan), compiled, asked, start)
    return total


def recurrent_s(spec: RecurrentSpec, start: Span = START_S) -> Span:
    """Return the seconds that all comparisons of recurrent layers should take. start: as for `benchmark_s`."""
    total = Span(0, 0)
    for one in spec.comparisons:
        compiled = sum(RUNNERS[name].execution == "compile" for name in one.chosen)
        if one.family == "resnet":
            gflops, steps = RESNET_GFLOPS * one.mini_batch * prod(one.image_size) / 224**2, 0
        else:
            gflops = 3 * 2 * _weights(one) * one.mini_batch * one.seq_length / 1e9
            steps = one.seq_length * one.num_layers * (1 + one.bidirectional)
        asked = _asked(one.device, one.threads, gflops, one.floor_seconds, one.loops, STEP_S.times(steps))
        total += _side_by_side(one.processes, len(one.chosen), compiled, asked, start)
    return total


def _asked(
    device: str, threads: int | None, gflops: float, seconds: float, samples: int, besides: Span = Span(0, 0)
) -> Span:
    """Return the sampled seconds asked for of each in each process. gflops, besides: what a call computes and takes."""
    rate = THREAD_GFLOPS.times(threads or os.cpu_count() or 1) if device == "cpu" else DEVICE_GFLOPS
    call = Span(gflops / rate.high, gflops / rate.low) + besides
    asked = Span(max(seconds, samples * call.low), max(seconds, samples * call.high))
    return asked if device == "cpu" else asked.times(2)  # latency, and back to back


def _side_by_side(processes: int, timed: int, compiled: int, asked: Span, start: Span) -> Span:
    sampling = Span(COST.low * asked.low, COST.high * asked.high)
    compiling = COMPILE_S + COMPILE_AGAIN_S.times(processes - 1)
    return (start + (READY_S + sampling).times(timed)).times(processes) + compiling.times(compiled)


def start_s(rows: Iterable[Row]) -> Span:
    """Return what starting a process takes, going by the rows of an earlier run on this machine."""
    known = [
        row.parts.starts_s / row.processes for row in rows if isinstance(row, TimedRow) and row.parts and row.processes
    ]
    return Span(AGAIN.low * median(known), AGAIN.high * median(known)) if known else START_S


def like_s(seconds: float) -> Span:
    """Return the seconds of another run like one that took so many."""
    return Span(AGAIN.low * seconds, AGAIN.high * seconds)


def recurrent_least_gb(spec: RecurrentSpec) -> float:
    """1e9 bytes that the largest comparison needs at the least: inputs, outputs, weights and their gradients, and what
    one runner's backward pass cannot do without. Of ResNets, their images alone."""
    return max(map(_least_bytes, spec.comparisons)) / 1e9


def _least_bytes(spec: RecurrentSpec) -> float:
    size = _bytes_each(spec.precision)
    if spec.family == "resnet":
        return float(size * spec.mini_batch * 3 * prod(spec.image_size))
    ways, hidden = 1 + spec.bidirectional, spec.hidden_size
    out = (spec.proj_size or hidden) * ways
    kept = ways * spec.num_layers * KEPT_PER_STEP[spec.family] * hidden
    return float(size * (2 * _weights(spec) + spec.seq_length * spec.mini_batch * (spec.input_size + out + kept)))


def _weights(spec: RecurrentSpec) -> int:
    """Return how many weights a recurrent layer's matrices have."""
    ways, out = 1 + spec.bidirectional, spec.proj_size or spec.hidden_size
    inputs = spec.input_size + (spec.num_layers - 1) * out * ways + spec.num_layers * out
    return ways * GATES.get(spec.family, 4) * spec.hidden_size * inputs


def expected_s(models: int, rows: Iterable[BenchmarkRow]) -> float | None:
    """Seconds for so many models going by rows of a run like it, each of which knows what its model took.

    None without any.
    """
    took = {(row.library, row.model, row.batch_size): row.seconds for row in rows if row.seconds is not None}
    seconds = pd.Series(list(took.values()), dtype=float)
    if seconds.empty:
        return None
    sizes = len(took) / len({key[:2] for key in took})
    return float(seconds.median()) * sizes * models
