"""Combine what several processes have measured into fields of rows."""

import csv
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from engine.measure.contention import MOST_NAMES, shares_text, why_contended
from engine.replicates.messages import Measured, TimedSpec
from engine.results import Artifact, Contention, Flag, TimedRow
from engine.statistics import NEEDED, UNSTABLE, drifting, percentile, ratio, spread
from engine.words import plural

BACK_TO_BACK = "back_to_back"
"""The only phase of queued calls. It names the column and the file of their samples."""
AnyRow = TypeVar("AnyRow", bound=TimedRow)


def common(
    spec: TimedSpec, label: str, processes: Sequence[Mapping[str, Measured]]
) -> tuple[list[Measured], dict[str, Any], list[str]]:
    """Return the results of one label, the fields of its row that all timings have, and notes.

    Only a label with status ok in all processes has values.
    """
    measured = [process[label] for process in processes if label in process]
    fields: dict[str, Any] = {}
    for result in reversed(measured):
        fields |= result.row
    notes = list(dict.fromkeys(note for result in measured for note in result.notes))
    failed = next(((number, result) for number, result in enumerate(measured, 1) if result.status != "ok"), None)
    if failed:
        number, result = failed
        where = f" (in process {number} of {spec.processes})" if number > 1 else ""
        fields |= {"status": result.status, "error": result.error + where}
    elif any(result.timed.rounds for result in measured):
        fields |= _values(measured) | {"flags": flags(measured, below_floor=spec.below_floor)}
        notes += disturbances(measured)
    return measured, fields, notes


def _values(measured: Sequence[Measured]) -> dict[str, Any]:
    """Return values over all processes, as fields of a row."""
    per_process = [result.timed.samples_ms for result in measured]
    samples = [sample for process in per_process for sample in process]
    medians = process_medians(measured)
    queued = [statistics.median(result.back_to_back.samples_ms) for result in measured if result.back_to_back]
    compiled = [result.compile_ms for result in measured if result.compile_ms is not None]
    again = [measured[0].compile_again_ms] if measured[0].compile_again_ms is not None else compiled[1:]
    parts = {phase: process_medians(measured, phase) for phase in measured[0].timed.phases}
    return {
        "latency_ms": statistics.median(medians),
        **{f"p{q}_ms": percentile(samples, q) for q in NEEDED},
        "mean_ms": float(np.mean(samples)),
        "std_ms": deviation(samples),
        **({f"{phase}_ms": statistics.median(values) for phase, values in parts.items()} if len(parts) > 1 else {}),
        "back_to_back_ms": statistics.median(queued) if queued else None,
        "first_call_ms": measured[0].first_call_ms,
        "compile_cold_ms": compiled[0] if compiled else None,
        "compile_warm_ms": statistics.median(again) if again else None,
        "samples": len(samples),
        "calls_per_sample": statistics.median_low(calls for result in measured for calls in result.timed.calls),
        "loop_ms": statistics.median(result.timed.loop_ms for result in measured),
        "processes": len(measured),
        "process_medians_ms": medians,
        "spread": spread(medians),
        "contention": _worst([result.contention for result in measured if result.contention]),
        "neighbours": neighbours(measured),
        "device_peak_mb": _maximum(result.device_peak_mb for result in measured),
        "process_peak_mb": _maximum(result.process_peak_mb for result in measured),
    }


def process_medians(measured: Sequence[Measured], phase: str = "") -> tuple[float, ...]:
    """Return each process's median in ms per call, of one phase or of all its phases together."""
    timed = [process.timed for process in measured]
    return tuple(statistics.median(one.phases[phase] if phase else one.samples_ms) for one in timed)


def neighbours(measured: Sequence[Measured]) -> dict[str, float]:
    """Return the busiest other processes by name, busiest first, with their largest share of the CPUs."""
    most: dict[str, float] = {}
    for process in measured:
        for name, share in process.neighbours.items():
            most[name] = max(share, most.get(name, 0.0))
    return dict(sorted(most.items(), key=lambda item: -item[1])[:MOST_NAMES])


def deviation(samples: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample (n - 1); None for a single value."""
    return float(np.std(samples, ddof=1)) if len(samples) > 1 else None


def flags(measured: Sequence[Measured], *, below_floor: bool) -> tuple[Flag, ...]:
    """Return the flags of a value. below_floor: less was requested than a result to quote needs."""
    medians = process_medians(measured)
    found: dict[Flag, bool] = {
        "single_process": len(measured) == 1,
        "unstable": (spread(medians) or 0) > UNSTABLE,
        "contended": any(
            process.foreign or (process.contention and why_contended(process.contention)) for process in measured
        ),
        "drifting": any(drifting(process.timed.samples_ms) for process in measured),
        "throttled": any(process.throttled for process in measured),
        "below_floor": below_floor or any(process.timed.cut_off for process in measured),
    }
    return tuple(flag for flag, raised in found.items() if raised)


def disturbances(measured: Sequence[Measured]) -> list[str]:
    """Return notes on what disturbed the measurements."""
    worst = _worst([process.contention for process in measured if process.contention])
    notes = why_contended(worst) if worst else []
    if notes and (busiest := neighbours(measured)):
        notes.append(f"busiest others: {shares_text(busiest)}")
    if collections := sum(process.timed.gc_runs for process in measured):
        notes.append(f"the model itself ran Python's garbage collector {plural(collections, 'time')} within samples")
    return [
        *notes,
        *dict.fromkeys(reason for process in measured for reason in (*process.foreign, process.throttled) if reason),
    ]


def _worst(contentions: Sequence[Contention]) -> Contention | None:
    """Return the worst value of each field over all processes; None without any."""
    if not contentions:
        return None
    return Contention(
        cpu_share=min((one.cpu_share for one in contentions if one.cpu_share is not None), default=None),
        neighbour_share=_maximum(one.neighbour_share for one in contentions),
        switches_per_s=_maximum(one.switches_per_s for one in contentions),
    )


def _maximum(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def compared(
    row: AnyRow, base: AnyRow, labels: tuple[str, str], found: Sequence[Mapping[str, Measured]], spec: TimedSpec
) -> AnyRow:
    """Return a row with its speed-up over another, if both were timed. labels: the other's and its own."""
    if row.latency_ms is None or base.latency_ms is None:
        return row
    base_ms, row_ms = ([process[label].timed.samples_ms for process in found] for label in labels)
    result = ratio(base_ms, row_ms, seed=spec.seed, publishable=spec.publishable)
    differs = row.differences(base)
    return row.model_copy(
        update={
            "speedup": result.value,
            "speedup_low": result.low,
            "speedup_high": result.high,
            "verdict": "not comparable" if differs else result.verdict,
            "differs_in": differs,
        }
    )


def write_samples(
    run_dir: Path,
    file: str,
    found: Sequence[Mapping[str, Measured]],
    begun_files: set[str],
    *,
    constants: Mapping[str, str],
    label: str,
    phases: Sequence[str],
) -> Iterator[Artifact]:
    """Write every sample at full precision, so that all values of a row can be computed again, and yield the files.

    Samples of queued calls are in a separate file. begun_files: names of the files begun so far, to which lines are
    appended; new names are added. constants: values of columns that are the same in all lines, by name. label: name of
    the column of labels.
    """
    timed = [{name: one.timed for name, one in process.items()} for process in found]
    queued = [{name: one.back_to_back for name, one in process.items() if one.back_to_back} for process in found]
    queued_file = f"{file.removesuffix('.csv')}__{BACK_TO_BACK}.csv"
    for name, processes, columns in ((file, timed, phases), (queued_file, queued, [BACK_TO_BACK])):
        if not any(one.rounds for process in processes for one in process.values()):
            continue
        path, begun = run_dir / name, name in begun_files
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if begun else "w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out, lineterminator="\n")
            if not begun:
                writer.writerow(["process", *constants, label, "round", "calls", *(f"{name}_ms" for name in columns)])
            for number, process in enumerate(processes, start=1):
                for subject, one in process.items():
                    for index, turn in enumerate(one.rounds):
                        parts = [repr(one.phases[c][index]) if c in one.phases else "" for c in columns]
                        writer.writerow([number, *constants.values(), subject, turn, one.calls[index], *parts])
        begun_files.add(name)
        yield Artifact(name=name, kind="samples")
