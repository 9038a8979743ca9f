"""Compare timings of one run or several, or of several models: ratios with intervals, computed from their samples."""

import socket
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations, groupby
from operator import itemgetter
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from engine import statistics
from engine.report.compare import rows as compare_rows
from engine.report.compare.timed import MOST_REPEATS, Timed
from engine.report.timings import samples
from engine.results import BenchmarkRow, RecurrentRow, Row, TimedRow
from engine.specs import Spec
from engine.store import UNFINISHED, Filter, Run, Store

PER_SAMPLE = "per_sample"
METRICS = {
    samples.TOTAL: "Time per call",
    PER_SAMPLE: "Time per image or sequence",
    "forward_ms": "Forward",
    "backward_ms": "Backward",
    "optimizer_ms": "Optimizer",
}
"""Times that can be compared, with their labels."""
COLUMNS = [
    *("model", "library", *compare_rows.APART, "run", "metric", "ms", "baseline", "baseline_ms"),
    *("speedup", "speedup_low", "speedup_high", "verdict", "differs_in", "flags", "baseline_flags", "note"),
]
MOST = 100
"""Compute at most this many ratios at once. Each takes a tenth of a second."""
SIZES = {"seq_length": "Sequence length (time steps)", "hidden_size": "Hidden size", "mini_batch": "Mini-batch"}
"""Sizes over which recurrent layers can be swept, with their axis titles."""


def swept(rows: Sequence[RecurrentRow]) -> str:
    """Return the size in which rows differ. Empty if they do not differ in size."""
    return next((size for size in SIZES if len({getattr(row, size) for row in rows} - {None}) > 1), "")


def groups(rows: Sequence[RecurrentRow], size: str) -> dict[str, list[RecurrentRow]]:
    """Return groups of rows that were timed side by side, by their label: `lstm`, `lstm, hidden size 64`.

    size: the field that their run sweeps; empty without a sweep.
    """
    rows_by_label: dict[str, list[RecurrentRow]] = {}
    for row in rows:
        value = getattr(row, size) if size else None
        suffix = "" if value is None else f", {size.replace('_', ' ')} {value:,}"
        rows_by_label.setdefault(row.family + suffix, []).append(row)
    return rows_by_label


def metrics(rows: Iterable[Row]) -> list[str]:
    """Return the names in METRICS for which at least one row has a time."""
    timed = [row for row in rows if isinstance(row, TimedRow)]
    return [name for name in METRICS if any(milliseconds(row, name) is not None for row in timed)]


def milliseconds(row: TimedRow, metric: str) -> float | None:
    """Return a row's median in ms for one of METRICS. None if the row has none."""
    if metric in (samples.TOTAL, PER_SAMPLE):
        return None if row.latency_ms is None else row.latency_ms / _divisor(row, metric)
    value: float | None = getattr(row, metric, None)
    return value


def _divisor(row: TimedRow, metric: str) -> int:
    """Return the number by which a time is divided: the batch size for a time per sample, else 1."""
    if metric != PER_SAMPLE:
        return 1
    assert isinstance(row, BenchmarkRow | RecurrentRow)
    return row.batch_size if isinstance(row, BenchmarkRow) else row.mini_batch


def matching_pairs(runs: Mapping[int, Sequence[Timed]], baseline: int) -> list[tuple[Timed, Timed]]:
    """Return pairs of matching rows: the baseline run's row first, then another run's. runs: rows by run number."""
    rows = {run: [timed_row.row for timed_row in timed] for run, timed in runs.items()}
    axes = compare_rows.axes(rows)
    baseline_rows = compare_rows.by_key(rows[baseline], axes)
    origin = {id(timed_row.row): timed_row for timed in runs.values() for timed_row in timed}
    return [
        (origin[id(baseline_rows[key])], origin[id(row)])
        for run in runs
        if run != baseline
        for key, row in compare_rows.by_key(rows[run], axes).items()
        if key in baseline_rows
    ]


def unmatched(runs: Mapping[int, Sequence[Timed]], pairs: Iterable[tuple[Timed, Timed]]) -> str:
    """Return a text with the number of rows of each run that are in no pair: `3 of run 12`. Empty if there are none."""
    matched = {id(timed) for pair in pairs for timed in pair}
    numbers = {run: sum(id(timed) not in matched for timed in rows) for run, rows in runs.items()}
    return ", ".join(f"{number} of run {run}" for run, number in numbers.items() if number)


def ratios(pairs: Sequence[tuple[Timed, Timed]], metric: str, *, seed: int) -> pd.DataFrame:
    """Return how many times as fast each second row is as the first of its pair: COLUMNS, a line per pair.

    Of rows that were timed side by side, the interval (99 %) is that of statistics.ratio. The others, also different
    models of one run, differ by more than their processes do, because the machine changes in between. They get a
    verdict, and the interval of statistics.ratio_of_runs, only if both requests were run often enough. Two runs of one
    request never do, because each counts among the repeats of the other. Without a verdict, processes are paired in
    order, extra processes are left out, and the interval does not include changes of the machine.
    Without samples, the ratio is that of the medians, without an interval.
    """
    reader = samples.Reader()
    lines = [_line(baseline, other, metric, reader, seed) for baseline, other in pairs]
    # as objects, because whole numbers beside missing ones would become 8.0
    apart = {name: pd.Series([line[name] for line in lines], dtype=object) for name in compare_rows.APART}
    return pd.DataFrame(lines, columns=COLUMNS).assign(**apart)


def _line(baseline: Timed, other: Timed, metric: str, reader: samples.Reader, seed: int) -> dict[str, Any]:
    row, differs = other.row, _differences(baseline, other, metric)
    line = {name: getattr(row, name, None) for name in ("model", "library", *compare_rows.APART)}
    line |= {
        "run": other.run,
        "metric": METRICS[metric],
        "baseline": baseline.name,
        "differs_in": "",
        "flags": "; ".join(row.flags),
        "baseline_flags": "; ".join(baseline.row.flags),
    }
    line |= {"ms": milliseconds(row, metric), "baseline_ms": milliseconds(baseline.row, metric)}
    if line["ms"] is None or line["baseline_ms"] is None:
        untimed = [timed for timed in (baseline, other) if milliseconds(timed.row, metric) is None]
        notes = [
            f"run {timed.run}: {'not timed' if timed.row.status == 'ok' else timed.row.error or timed.row.status}"
            for timed in untimed
        ]
        return line | {"note": "; ".join(notes)}
    line["differs_in"] = ", ".join(differs)
    if _forward_only(row) != _forward_only(baseline.row) and metric in (samples.TOTAL, PER_SAMPLE):
        return line | {"note": "one of the two has no backward pass: compare their forward passes"}
    separate = not side_by_side(baseline, other)
    same_request = _same_request(baseline, other)
    ratio, note = _ratio_of_runs(baseline, other, metric) if separate and not same_request else (None, "")
    if of_processes := ratio is None:
        ratio, note = _ratio(baseline, other, metric, reader, seed)
    line |= {"speedup": line["baseline_ms"] / line["ms"], "verdict": "undecided"}
    if ratio is not None:
        line |= {"speedup": ratio.value, "verdict": ratio.verdict}
        line |= {"speedup_low": ratio.low, "speedup_high": ratio.high if np.isfinite(ratio.high) else None}
    if separate and of_processes:
        line["verdict"] = "same request" if same_request else "needs 3 runs"
        note = note or "the interval does not include changes of the machine"
    return line | {"note": note} | ({"verdict": "not comparable"} if differs else {})


def side_by_side(first: Timed, second: Timed) -> bool:
    """Return whether two rows were timed in the same processes, so that changes of the machine affect both alike."""
    sessions = [
        (timed.run, getattr(timed.row, "date", ""), timed.row.samples_file, getattr(timed.row, "mode", ""))
        for timed in (first, second)
    ]
    return sessions[0] == sessions[1]


def _same_request(first: Timed, second: Timed) -> bool:
    """Return whether a timing is among the repeats of both.

    It is known by its start and row: a copy has another number, and an unfinished run is only among its own repeats.
    """
    rows_by_start = dict(first.repeats.values())
    return any(rows_by_start.get(start) == row for start, row in second.repeats.values())


def _ratio_of_runs(baseline: Timed, other: Timed, metric: str) -> tuple[statistics.Ratio | None, str]:
    """Return the ratio of two requests from all their turns, and a note with their number; None for too few turns.

    If all runs of one request precede those of the other, a change of the machine looks like a difference of requests.
    """
    sides = _times_of_turns(baseline, other, metric)
    return statistics.ratio_of_runs(*sides), f"of {len(sides[0])} and {len(sides[1])} turns"


def turns(first: Timed, second: Timed, metric: str) -> int:
    """Return how many turns two requests took, the smaller number of both."""
    return min(map(len, _times_of_turns(first, second, metric)))


def to_repeat(store: Store, pairs: Sequence[tuple[Timed, Timed]], metric: str) -> tuple[list[Run], int]:
    """Return the runs whose requests must run again to get verdicts on pairs, and how many times each.

    Runs of these requests that are queued or running count, too. With enough of them, it is 0 times.

    The runs are in the order of their turns: the one that was not repeated for the longest time first. Without runs,
    repeating cannot help: they ran on another host, or only their versions or environment variables differ, which are
    the same in all new runs.
    """
    by_last_start = sorted(chain(*pairs), key=lambda timed: max(start for start, _ in timed.repeats.values()))
    first_of_request: list[Timed] = []
    for timed in by_last_start:
        if not any(timed.run in other.repeats for other in first_of_request):
            first_of_request.append(timed)
    runs = [store.run(timed.run) for timed in first_of_request]
    host = machine.host if (machine := store.machine()) else socket.gethostname()
    if any(run.host != host for run in runs) or any(run.spec == other.spec for run, other in combinations(runs, 2)):
        return [], 0
    with_rows = {number for timed in chain(*pairs) for number in timed.repeats}
    unfinished = store.find(Filter(kinds=(runs[0].kind,), states=UNFINISHED), limit=MOST_REPEATS)
    specs = [run.spec for run in unfinished if run.id not in with_rows]
    coming = min(specs.count(run.spec) for run in runs)
    return runs, max(0, statistics.LEAST_RUNS - min(turns(*pair, metric) for pair in pairs) - coming)


def in_turns(runs: Sequence[Run], times: int) -> dict[str, Spec]:
    """Return the requests of runs in turns, each as many times, by labels such as `run 12 again, 1`."""
    return {f"run {run.id} again, {turn}": run.spec for turn in range(1, times + 1) for run in runs}


def _times_of_turns(first: Timed, second: Timed, metric: str) -> tuple[list[float], list[float]]:
    """Return the ms of each turn of two requests: the geometric mean of its runs. Runs without the metric do not count.

    A turn is one or more runs in a row: A, A, B, A, B are two turns of each. Runs in a row share the state of the
    machine, so they count once. Otherwise the interval of ten A, ten B, A, B, A, B would hold the true ratio in 45 % of
    the cases (benchmarks/documented_shares.py, with states that differ by 3 % and runs by 1 %).
    """
    timed = sorted(
        (start, side, ms)
        for side, request in enumerate((first, second))
        for start, row in request.repeats.values()
        if (ms := milliseconds(row, metric)) is not None
    )
    sides: tuple[list[float], list[float]] = [], []
    for side, runs in groupby(timed, key=itemgetter(1)):
        sides[side].append(geometric_mean(ms for _, _, ms in runs))
    return sides


def _times(timed: Timed, metric: str, reader: samples.Reader) -> list[list[float]]:
    """Return a row's times in ms, one list per process; empty without kept samples. Errors: ValueError, OSError."""
    divisor = _divisor(timed.row, metric)
    name = samples.TOTAL if metric == PER_SAMPLE else metric
    return [[ms / divisor for ms in process] for process in reader.phase(timed.folder, timed.row, name) or ()]


def _ratio(
    baseline: Timed, other: Timed, metric: str, reader: samples.Reader, seed: int
) -> tuple[statistics.Ratio | None, str]:
    """Return the ratio of two timings with its interval and verdict, and a note."""
    try:
        baseline_ms, other_ms = (_times(timed, metric, reader) for timed in (baseline, other))
    except (ValueError, OSError) as error:
        return None, f"no interval: {error}"
    lacking = [timed.run for timed, times in ((baseline, baseline_ms), (other, other_ms)) if not times]
    if lacking:
        runs = " and ".join(f"run {run}" for run in dict.fromkeys(lacking))
        return None, f"no interval: {runs} kept no samples of this time"
    count = min(len(baseline_ms), len(other_ms))
    publishable = baseline.publishable and other.publishable
    ratio = statistics.ratio(baseline_ms[:count], other_ms[:count], seed=seed, publishable=publishable)
    if not np.isfinite(ratio.high):
        return ratio, "too few samples: the interval has no upper limit"
    if len(baseline_ms) != len(other_ms):
        return ratio, f"{len(baseline_ms)} and {len(other_ms)} processes: the first {count} of each are compared"
    return ratio, ""


def _differences(baseline: Timed, other: Timed, metric: str) -> list[str]:
    """Return the settings that make two rows not comparable, as words."""
    hosts = {baseline.host, other.host} - {""}
    names = dict.fromkeys([*other.row.differences(baseline.row), *["host"] * (len(hosts) > 1)])
    may_differ = ["batch_size", "mini_batch"] * (metric == PER_SAMPLE)
    if isinstance(other.row, BenchmarkRow) and other.row.name != baseline.row.name:
        may_differ.append("image_size")  # each model has its own
    return [name.replace("_", " ") for name in names if name not in may_differ]


def _forward_only(row: TimedRow) -> bool:
    return isinstance(row, RecurrentRow) and row.backward_ms is None
