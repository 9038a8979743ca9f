"""Make one row per runner from what the processes of a comparison measured."""

import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from engine.measure.counting import flops
from engine.models import library, recurrent
from engine.models.built import Wanted, one_line
from engine.replicates import summary
from engine.replicates.messages import Measured
from engine.results import RecurrentRow
from engine.specs import RecurrentSpec, format_image_size
from engine.specs.fields.runners import RUNNERS, Runner
from engine.specs.recurrent import KNOBS
from engine.statistics import percentile, spread

PHASES = ("forward", "backward")
Found = Sequence[Mapping[str, Measured]]
SHAPE = ("num_layers", "input_size", "hidden_size", "proj_size", "bidirectional", "batch_first")
TORCHSCRIPT = ("fuser", "executor", *KNOBS)


def rows(spec: RecurrentSpec, common: Mapping[str, Any], found: Found) -> list[RecurrentRow]:
    """Return a row per runner. spec: one of `RecurrentSpec.comparisons`. common: fields that all rows share."""
    by_runner = {name: _row(spec, common, found, RUNNERS[name]) for name in spec.chosen}
    return [_compared(spec, by_runner, name, found) for name in by_runner]


def _row(spec: RecurrentSpec, common: Mapping[str, Any], found: Found, runner: Runner) -> RecurrentRow:
    measured, fields, notes = summary.common(spec, runner.name, found)
    if fields.get("latency_ms"):
        fields |= _phases(measured)
        try:
            per_call_ms = fields["back_to_back_ms"] or fields["latency_ms"]
            fields |= _cost(spec, runner, per_call_ms, both_ways="backward_ms" in fields)
        except Exception as error:  # noqa: BLE001 - models may raise any error; the timing is valid without a count
            notes.append(f"not counted: {one_line(error)}")
    if runner.execution in ("script", "trace"):
        fields |= {name: getattr(spec, name) for name in TORCHSCRIPT}
    runner_facts = {"library": runner.library, "model": runner.name, "family": runner.family, "network": runner.network}
    return RecurrentRow(**{**common, **runner_facts, **_sizes(spec, runner), **fields}, notes=tuple(notes))


def _sizes(spec: RecurrentSpec, runner: Runner) -> dict[str, Any]:
    sizes = {"mini_batch": spec.mini_batch, "precision": spec.precision}
    if runner.family == "resnet":
        return sizes | {"image_size": format_image_size(spec.image_size)}
    return sizes | {"seq_length": recurrent.steps(spec)} | {name: getattr(spec, name) for name in SHAPE}


def _phases(measured: Sequence[Measured]) -> dict[str, Any]:
    """Return statistics of each phase over the samples of all processes, as fields of a row."""
    fields: dict[str, Any] = {}
    for phase in measured[0].timed.phases:
        samples = [ms for process in measured for ms in process.timed.phases[phase]]
        medians = summary.process_medians(measured, phase)
        fields |= {
            f"{phase}_ms": statistics.median(medians),
            f"{phase}_mean_ms": statistics.fmean(samples),
            f"{phase}_std_ms": summary.deviation(samples),
            f"{phase}_p90_ms": percentile(samples, 90),
            f"{phase}_process_medians_ms": medians,
            f"{phase}_spread": spread(medians),
        }
    return fields


def _cost(spec: RecurrentSpec, runner: Runner, per_call_ms: float, *, both_ways: bool) -> dict[str, float | None]:
    if runner.family == "resnet":
        steps, gflops = 1, _resnet_gflops(runner.network, spec.image_size) * spec.mini_batch
    else:
        steps, gflops = recurrent.steps(spec), recurrent.gflops(spec)
    per_s = steps / per_call_ms * 1e3 if both_ways else None
    return {"steps_per_s": per_s, "gflops": gflops, "gflops_per_step": gflops / steps}


@cache
def _resnet_gflops(network: str, image_size: tuple[int, int]) -> float:
    """Return the GFLOPs of one image's forward pass."""
    built = library.build(f"torchvision:{network}", Wanted(device="meta", image_size=image_size))
    with torch.no_grad():
        return flops.count(built.model, built.inputs).flops / 1e9


def _compared(spec: RecurrentSpec, by_runner: Mapping[str, RecurrentRow], name: str, found: Found) -> RecurrentRow:
    """Return a row with its speed-up over the requested baseline, else over the first timed runner of its network."""
    timed = [row.model for row in by_runner.values() if row.latency_ms and row.network == by_runner[name].network]
    base = spec.baseline or (timed[0] if timed else "")
    if base in ("", name):
        return by_runner[name]
    row, base_row = by_runner[name], by_runner[base]
    if row.latency_ms and base_row.latency_ms and (row.backward_ms is None) != (base_row.backward_ms is None):
        note = f"not compared with {base}: only one of them was timed backward too"
        return row.model_copy(update={"notes": (*row.notes, note)})
    row = row.model_copy(update={"baseline": base})
    return summary.compared(row, base_row, (base, name), found, spec)
