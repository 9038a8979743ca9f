"""What the processes of one model measured, made into one row per variant."""

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.measure.contention import contended
from engine.replicates.messages import Measured
from engine.results import BenchmarkRow, Contention, Status
from engine.specs import BenchmarkSpec, Variant
from engine.specs.benchmark import Mode
from engine.statistics import UNSTABLE, drifting, percentile, ratio, spread

PHASES = ("forward", "backward", "optimizer")
COLUMNS = ("process", "mode", "variant", "round", "calls", *(f"{phase}_ms" for phase in PHASES))


@dataclass(frozen=True)
class Outcome:
    """One model in one mode at one batch size: what each process measured of each variant."""

    mode: Mode
    batch_size: int
    processes: tuple[Mapping[str, Measured], ...] = ()
    """By label. A variant that has failed in one process is in none that follow."""
    notes: tuple[str, ...] = ()


def rows(spec: BenchmarkSpec, common: Mapping[str, Any], outcome: Outcome) -> list[BenchmarkRow]:
    """One per variant, in the order of the plan. common: fields that are the same for all of them."""
    found: dict[Variant, BenchmarkRow] = {}
    for variant in spec.plan:
        found[variant] = _row(spec, common, outcome, variant)
    return [_compared(spec, outcome, found, variant) for variant in spec.plan]


def _row(spec: BenchmarkSpec, common: Mapping[str, Any], outcome: Outcome, variant: Variant) -> BenchmarkRow:
    measured = [process[variant.label] for process in outcome.processes if variant.label in process]
    fields: dict[str, Any] = dict(common) | {
        "mode": outcome.mode,
        "variant": variant.label,
        "batch_size": outcome.batch_size,
        "precision": variant.precision,
        "memory_format": "channels_last" if variant.channels_last else "contiguous",
    }
    if base := spec.baseline(variant):
        fields["baseline"] = base.label
    for each in reversed(measured):
        fields |= each.row
    notes = [*outcome.notes, *dict.fromkeys(note for each in measured for note in each.notes)]
    failed = next(((number, each) for number, each in enumerate(measured, 1) if each.status != "ok"), None)
    if failed:
        number, each = failed
        where = f" (in process {number} of {spec.processes})" if number > 1 else ""
        fields |= {"status": each.status, "error": each.error + where, "accuracy": each.accuracy}
    elif measured and spec.purpose == "performance":
        fields |= _figures(spec, measured, outcome.batch_size)
        worst = _worst([each.contention for each in measured if each.contention])
        notes += contended(worst) if worst else []
        if collections := sum(each.gc_runs for each in measured):
            notes.append(f"the model itself ran Python's garbage collector {collections} times within samples")
        notes += dict.fromkeys(reason for each in measured for reason in (*each.foreign, each.throttled) if reason)
    elif measured:
        fields["accuracy"] = measured[0].accuracy
    return BenchmarkRow(**fields, notes=tuple(notes))


def _figures(spec: BenchmarkSpec, measured: Sequence[Measured], batch_size: int) -> dict[str, Any]:
    """Of all processes together."""
    per_process = [each.samples_ms for each in measured]
    samples = [sample for process in per_process for sample in process]
    medians = tuple(statistics.median(process) for process in per_process)
    latency = statistics.median(samples)
    compiled = [each.compile_ms for each in measured if each.compile_ms is not None]
    again = [measured[0].compile_again_ms] if measured[0].compile_again_ms is not None else compiled[1:]
    parts = {phase: [value for each in measured for value in each.phases[phase]] for phase in measured[0].phases}
    return {
        "latency_ms": latency,
        "p90_ms": percentile(samples, 90),
        "p95_ms": percentile(samples, 95),
        "p99_ms": percentile(samples, 99),
        "mean_ms": float(np.mean(samples)),
        "std_ms": float(np.std(samples, ddof=1)) if len(samples) > 1 else None,
        "samples_per_s": batch_size / latency * 1e3,
        **({f"{phase}_ms": statistics.median(values) for phase, values in parts.items()} if len(parts) > 1 else {}),
        "first_call_ms": measured[0].first_call_ms,
        "compile_cold_ms": compiled[0] if compiled else None,
        "compile_warm_ms": statistics.median(again) if again else None,
        "samples": len(samples),
        "calls_per_sample": measured[0].calls,
        "loop_ms": statistics.median(each.loop_ms for each in measured),
        "processes": len(measured),
        "process_medians_ms": medians,
        "spread": spread(medians),
        "flags": _flags(spec, measured, medians),
        "contention": _worst([each.contention for each in measured if each.contention]),
        "device_peak_mb": _most(each.device_peak_mb for each in measured),
        "process_peak_mb": _most(each.process_peak_mb for each in measured),
        "joules_per_sample": _joules(measured, batch_size),
    }


def _flags(spec: BenchmarkSpec, measured: Sequence[Measured], medians: Sequence[float]) -> tuple[str, ...]:
    found = {
        "single_process": len(measured) == 1,
        "unstable": (spread(medians) or 0) > UNSTABLE,
        "contended": any(each.foreign or (each.contention and contended(each.contention)) for each in measured),
        "drifting": any(drifting(each.samples_ms) for each in measured),
        "throttled": any(each.throttled for each in measured),
        "below_floor": spec.below_floor,
    }
    return tuple(flag for flag, raised in found.items() if raised)


def _worst(found: Sequence[Contention]) -> Contention | None:
    """Each figure at its worst in any process."""
    if not found:
        return None
    return Contention(
        cpu_share=min(each.cpu_share for each in found),
        neighbour_share=_most(each.neighbour_share for each in found),
        switches_per_s=_most(each.switches_per_s for each in found),
    )


def _most(figures: Iterable[float | None]) -> float | None:
    return max((figure for figure in figures if figure is not None), default=None)


def _joules(measured: Sequence[Measured], batch_size: int) -> float | None:
    """Per image, the median of the processes that could tell."""
    known = [each.joules_per_call for each in measured if each.joules_per_call is not None]
    return statistics.median(known) / batch_size if known else None


def _compared(
    spec: BenchmarkSpec, outcome: Outcome, found: Mapping[Variant, BenchmarkRow], variant: Variant
) -> BenchmarkRow:
    """A row with its speed-up over its baseline, where both were timed."""
    row, base = found[variant], spec.baseline(variant)
    if base is None or row.latency_ms is None or found[base].latency_ms is None:
        return row
    differs = row.differences(found[base])
    ones, others = (
        [process[label].samples_ms for process in outcome.processes] for label in (base.label, variant.label)
    )
    result = ratio(ones, others, seed=spec.seed)
    return row.model_copy(
        update={
            "speedup": result.value,
            "speedup_low": result.low,
            "speedup_high": result.high,
            "verdict": "not comparable" if differs else result.verdict,
            "differs_in": differs,
        }
    )


def write_samples(path: Path, outcome: Outcome, *, begin: bool) -> None:
    """Every sample, at full precision, so that all that a row says of them can be computed again.

    begin: write a new file, rather than add to one that holds another mode's samples.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w" if begin else "a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if begin:
            writer.writerow(COLUMNS)
        for number, process in enumerate(outcome.processes, start=1):
            for label, measured in process.items():
                for index, turn in enumerate(measured.rounds):
                    parts = [repr(measured.phases[p][index]) if p in measured.phases else "" for p in PHASES]
                    writer.writerow([number, outcome.mode, label, turn, measured.calls, *parts])


def failed(variant: str, status: Status, error: str, spec: BenchmarkSpec) -> Measured:
    """A variant that no process could report on."""
    named: dict[Status, Any] = {"timeout": "timeout", "out_of_memory": "OOM", "error": "fail_to_run"}
    accuracy = None if spec.purpose == "performance" else named.get(status)
    return Measured(variant=variant, status=status, error=error, accuracy=accuracy)
