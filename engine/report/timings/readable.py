"""Return timings as text: percentiles or the samples they need, flags in words, summaries."""

import math
from collections.abc import Iterable, Sequence
from statistics import geometric_mean

import pandas as pd

from engine.report import frames
from engine.report.style import digits
from engine.results import VERDICTS, BenchmarkRow, Parts, TimedRow
from engine.statistics import NEEDED
from engine.words import in_words

NO_LIMIT = "no upper limit"
"""Upper end of the interval of a speed-up with too few or too noisy samples."""


def percentile(row: TimedRow, q: int) -> str:
    """Return a percentile such as `12.3 ms`, or how many samples it needs."""
    value = getattr(row, f"p{q}_ms")
    if value is not None:
        return f"{digits(value)} ms"
    return f"needs {NEEDED[q]} samples" if row.samples else "–"


def interval(low: float | None, high: float | None) -> str:
    """Return the interval of a speed-up: `1.015 to 1.024, 99 %`, `0 to no upper limit, 99 %` or `no interval`."""
    if low is None or pd.isna(low):
        return "no interval"
    return f"{digits(low, 4)} to {NO_LIMIT if high is None or not math.isfinite(high) else digits(high, 4)}, 99 %"


def spent(parts: Parts) -> str:
    """Return the parts of a time, such as `starts 12 s, compilation 0 s, warm-up 11 s, samples 42 s, rest 6.1 s`."""
    names = "starts", "compilation", "warm-up", "samples", "rest"
    return ", ".join(f"{name} {digits(seconds)} s" for name, (_, seconds) in zip(names, parts, strict=True))


def table(frame: pd.DataFrame, rows: Sequence[TimedRow], utilisation: Sequence[float | None]) -> pd.DataFrame:
    """Return the rows' frame for reading: percentiles and flags as words, shares in per cent, and the utilisation.

    frame: from frames.benchmark or frames.recurrent. utilisation: shares from timings.rates.utilisation.
    """
    frame = frame.copy()
    for q in NEEDED:
        frame[f"p{q}_ms"] = [percentile(row, q).removesuffix(" ms") for row in rows]
    frame["status"] = frame["status"].str.replace("_", " ")
    frame["flags"] = [in_words(row.flags) for row in rows]
    frame["differs_in"] = [in_words(row.differs_in) for row in rows]
    for name in frame.columns[frame.columns.str.endswith("spread")]:
        frame[f"{name}_percent"] = 100 * frame[name]
    frame["utilisation_percent"] = [None if share is None else 100 * share for share in utilisation]
    return frame.astype({"utilisation_percent": float})


def summary(rows: Iterable[BenchmarkRow]) -> pd.DataFrame:
    """Return a line per mode and variant: models, geometric mean of the speed-ups, verdicts, accuracy checks passed.

    The geometric mean is of rows that have a speed-up. A failed row is counted as failed, not as a speed-up of zero.
    """
    frame = frames.benchmark(rows)
    frame = frame[frame["baseline"] != ""]
    lines = []
    for (mode, variant), part in frame.groupby(["mode", "variant"], sort=False):
        ratios = [float(value) for value in part["speedup"].dropna()]
        accuracies = part["accuracy"].dropna()
        line = {"mode": mode, "variant": variant, "rows": len(part), "failed": int((part["status"] != "ok").sum())}
        line["geometric_mean"] = geometric_mean(ratios) if ratios else None
        line |= {verdict: int((part["verdict"] == verdict).sum()) for verdict in VERDICTS}
        passed = int(accuracies.str.startswith("pass").sum())
        lines.append(line | {"passed": f"{passed} of {len(accuracies)}" if len(accuracies) else ""})
    columns = ["mode", "variant", "rows", "failed", "geometric_mean", *VERDICTS, "passed"]
    return pd.DataFrame(lines, columns=columns).astype({"geometric_mean": float})


def summary_lines(rows: Iterable[BenchmarkRow]) -> list[str]:
    """Return `summary` as text: `compile, inference: geometric mean of the speed-ups 1.52, 2 faster, 1 failed`.

    Accuracy checks say `3 of 4 passed (75 %)` instead. A variant without ratios, verdicts, checks and failures has
    no line.
    """
    texts = []
    for line in summary(rows).to_dict("records"):
        mean, (passed, _, checked) = line["geometric_mean"], line["passed"].partition(" of ")
        parts = [f"geometric mean of the speed-ups {mean:.3g}"] if pd.notna(mean) else []
        parts += [f"{line['passed']} passed ({100 * int(passed) / int(checked):.0f} %)"] if checked else []
        parts += [f"{line[word]} {word}" for word in (*VERDICTS, "failed") if line[word]]
        texts += [f"{line['variant']}, {line['mode']}: {', '.join(parts)}"] if parts else []
    return texts
