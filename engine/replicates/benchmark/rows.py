"""Make one row per variant from what the processes of a model measured."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.replicates import summary
from engine.replicates.messages import Measured
from engine.results import BenchmarkRow
from engine.specs import BenchmarkSpec, Variant
from engine.specs.benchmark import Mode

PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Outcome:
    """Measurements of one model in one mode at one batch size, by process and variant."""

    mode: Mode
    batch_size: int
    processes: tuple[Mapping[str, Measured], ...] = ()
    """Results by label, one mapping per process. A variant that failed in one process is left out of later ones."""
    notes: tuple[str, ...] = ()


def rows(spec: BenchmarkSpec, common: Mapping[str, Any], outcome: Outcome) -> list[BenchmarkRow]:
    """Return one row per variant, in the order of the plan. common: fields that are the same for all rows."""
    by_variant = {variant: _row(spec, common, outcome, variant) for variant in spec.plan}
    return [
        summary.compared(row, by_variant[base], (base.label, variant.label), outcome.processes, spec)
        if (base := spec.baseline(variant))
        else row
        for variant, row in by_variant.items()
    ]


def _row(spec: BenchmarkSpec, common: Mapping[str, Any], outcome: Outcome, variant: Variant) -> BenchmarkRow:
    measured, values, notes = summary.common(spec, variant.label, outcome.processes)
    fields: dict[str, Any] = dict(common) | {
        "mode": outcome.mode,
        "variant": variant.label,
        "batch_size": outcome.batch_size,
        "precision": variant.precision,
        "memory_format": "channels_last" if variant.channels_last else "contiguous",
    }
    if base := spec.baseline(variant):
        fields["baseline"] = base.label
    fields |= values
    if latency := values.get("latency_ms"):
        fields["samples_per_s"] = outcome.batch_size / (values["back_to_back_ms"] or latency) * 1e3
        joules = [process.joules_per_call for process in measured if process.joules_per_call is not None]
        fields["joules_per_sample"] = statistics.median(joules) / outcome.batch_size if joules else None
    elif measured:
        fields["accuracy"] = measured[0].accuracy  # comparing results takes one process
    return BenchmarkRow(**fields, notes=(*outcome.notes, *notes))
