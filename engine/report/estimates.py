"""What a timing will take, told beforehand: memory from the catalogue's counts, time from the floors asked for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import pandas as pd

from engine import suite
from engine.results import BenchmarkRow
from engine.specs import BenchmarkSpec, RecurrentSpec
from engine.specs.runners import GATES, RUNNERS, Family

WARM_S, START_S, COMPILE_S = 1.0, 8.0, 30.0
"""Roughly: warming a variant up, starting a process, compiling one graph with an empty cache folder."""
KEPT = 2
"""Training keeps the outputs of convolutions and matrix products for the backward pass, and about as much again of
what lies between them (normalisations, activations)."""
STATES = {"sgd": 0, "adamw": 2}
"""Values an optimizer keeps per weight."""
KEPT_PER_STEP: dict[Family, int] = {"lstm": 6, "vl_lstm": 6, "milstm": 6, "gru": 4, "rnn_relu": 1, "rnn_tanh": 1}
"""Values per unit of the hidden state and step that no backward pass can do without: gates, cell and state."""


@dataclass(frozen=True)
class Need:
    """What the model that needs most memory should take."""

    model: str
    batch_size: int
    gb: float
    """1e9 bytes, without what PyTorch itself takes."""
    unknown: int
    """Models the catalogue has no figures of."""


def batch_size(spec: BenchmarkSpec, model: str) -> int | None:
    """The largest batch a model will be run at; None where it is searched for. model: qualified."""
    if spec.batch_size == "max":
        return None
    if spec.batch_size == "sweep":
        return spec.swept[-1]
    if spec.batch_size == "recorded":
        return suite.recorded_batch_size(model) or 1
    return spec.batch_size


def memory(spec: BenchmarkSpec, models: Sequence[str], catalogue: pd.DataFrame) -> Need | None:
    """The largest need among models; None when their batch is searched for or the catalogue knows none of them.

    Weights are held once per variant, activations of one variant at a time; they grow with batch and image area.
    """
    known = catalogue[catalogue["status"] == "ok"].drop_duplicates("name").set_index("name")
    needs = []
    for model in models:
        batch = batch_size(spec, model)
        if batch is not None and model in known.index:
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
    """Of a value; amp keeps float32 beside what it casts."""
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


def least_s(spec: BenchmarkSpec, models: int) -> float:
    """Seconds it takes at the least: what must be sampled and warmed up, processes that start, graphs to compile."""
    compiled = sum(variant.execution == "compile" for variant in spec.plan)
    sampled = spec.processes * len(spec.modes) * len(spec.plan) * (spec.floor_seconds + WARM_S)
    if spec.purpose != "performance":
        sampled = 0.0
    sizes = len(spec.swept) if spec.batch_size == "sweep" else 1
    per_size = sampled + spec.processes * START_S + compiled * len(spec.modes) * COMPILE_S
    return models * sizes * per_size


def recurrent_least_s(spec: RecurrentSpec) -> float:
    """Seconds that recurrent layers take at the least: as least_s, of all comparisons."""
    runners = sum(len(comparison.chosen) for comparison in spec.comparisons)
    compiled = sum(RUNNERS[name].execution == "compile" for part in spec.comparisons for name in part.chosen)
    sampled = spec.processes * runners * (spec.floor_seconds + WARM_S)
    return sampled + spec.processes * len(spec.comparisons) * START_S + compiled * COMPILE_S


def recurrent_least_gb(spec: RecurrentSpec) -> float:
    """1e9 bytes that the largest comparison needs at the least: inputs, outputs, weights and their gradients, and what
    one runner's backward pass cannot do without. Of ResNets, their images alone."""
    return max(map(_least_bytes, spec.comparisons)) / 1e9


def _least_bytes(spec: RecurrentSpec) -> float:
    each = _bytes_each(spec.precision)
    if spec.family == "resnet":
        return float(each * spec.mini_batch * 3 * prod(spec.image_size))
    ways, hidden = 1 + spec.bidirectional, spec.hidden_size
    out = (spec.proj_size or hidden) * ways
    gates = GATES.get(spec.family, 4)
    later = (spec.num_layers - 1) * out
    weights = ways * gates * hidden * (spec.input_size + later + spec.num_layers * (spec.proj_size or hidden))
    kept = ways * spec.num_layers * KEPT_PER_STEP[spec.family] * hidden
    return float(each * (2 * weights + spec.seq_length * spec.mini_batch * (spec.input_size + out + kept)))


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
