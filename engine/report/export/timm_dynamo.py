"""Export timings in the exact columns of timm's benchmark.py and of PyTorch's dynamo benchmark.

Failed rows have empty values, never 0.0, which would distort a mean.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from engine.results import BenchmarkRow

_SPEED, _SIZE = ("samples_per_sec", "step_time"), ("batch_size", "img_size")
_DETAIL = {"fwd_time": "forward_ms", "bwd_time": "backward_ms", "opt_time": "optimizer_ms"}
TIMM = [
    *("model", *(f"infer_{name}" for name in (*_SPEED, *_SIZE, "gmacs", "macts"))),
    *(*(f"train_{name}" for name in (*_SPEED, *_DETAIL, *_SIZE)), "param_count", "error"),
]
"""Columns of timm's benchmark.py with --detail, which synchronises after each step: images per s, ms per step, pixels,
1e9 MACs, 1e6 activations, 1e6 parameters. `error` is empty where nothing failed."""

GRAPHS = ["calls_captured", "unique_graphs", "graph_breaks", "unique_graph_breaks"]
DYNAMO = {
    "performance": [
        *("dev", "name", "batch_size", "speedup", "abs_latency", "compilation_latency"),
        *("compression_ratio", "eager_peak_mem", "dynamo_peak_mem", *GRAPHS),
    ],
    "accuracy": ["dev", "name", "batch_size", "accuracy", *GRAPHS],
    "tolerance": ["dev", "name", "batch_size", "max", "mean", "std"],
}
"""Columns of PyTorch's dynamo benchmark, by purpose: latency in ms, compilation in s, memory in 1e9 bytes."""

NO_RESULT = {"out_of_memory": "OOM", "timeout": "timeout"}


def full(frame: pd.DataFrame, utilisation: Sequence[float | None]) -> pd.DataFrame:
    """Return all columns of a timing's frame and the utilisation, a share per row from timings.rates.utilisation."""
    return frame.assign(utilisation=[math.nan if share is None else share for share in utilisation])


def timm(rows: Iterable[BenchmarkRow]) -> pd.DataFrame:
    """Return one line per model and batch size, the baseline's inference and training side by side, fastest first."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row.baseline:
            continue
        # a sweep has several batch sizes in each mode; without one, the two modes may have used different ones
        requested = row.batch_size_requested
        swept = row.batch_size if requested == "sweep" or "," in requested else None
        line = lines.setdefault((_name(row), row.tower, requested, swept), {"model": _name(row)})
        line |= _timm_part(row)
        if row.status != "ok":
            line["error"] = "; ".join(filter(None, (line.get("error"), row.error or row.status)))
            line[f"{'train' if row.mode == 'training' else 'infer'}_batch_size"] = swept
        if row.mparams is not None:
            line["param_count"] = row.mparams
    frame = pd.DataFrame(list(lines.values()), columns=TIMM)
    whole = [f"{part}_{name}" for part in ("infer", "train") for name in ("batch_size", "img_size")]
    decimals = {name: 3 if name.endswith("_time") else 2 for name in TIMM[1:-1]}
    frame = frame.astype(dict.fromkeys(decimals, float)).round(decimals).astype(dict.fromkeys(whole, "Int64"))
    leading = "infer_samples_per_sec" if frame["infer_samples_per_sec"].notna().any() else "train_samples_per_sec"
    return frame.sort_values(leading, ascending=False, kind="stable", ignore_index=True)


def _timm_part(row: BenchmarkRow) -> dict[str, Any]:
    if row.status != "ok":
        return {}
    per_s = row.samples_per_s
    if row.back_to_back_ms and row.latency_ms:
        per_s = row.batch_size / row.latency_ms * 1e3
    values = {
        "samples_per_sec": per_s,
        "step_time": row.latency_ms,
        "batch_size": row.batch_size,
        "img_size": int(row.image_size.rpartition("x")[2]) if row.image_size else None,
    }
    if row.mode == "training":
        values |= {name: getattr(row, field) for name, field in _DETAIL.items()}
        return {f"train_{name}": value for name, value in values.items()}
    values |= {"gmacs": row.gmacs, "macts": row.macts}
    return {f"infer_{name}": value for name, value in values.items()}


def dynamo(rows: Sequence[BenchmarkRow]) -> pd.DataFrame:
    """Return one line per model and variant other than the baseline, in the columns of the rows' purpose.

    A file of the dynamo benchmark holds one variant in one mode. If there are several here, `name` has both in
    brackets.
    """
    compared = [row for row in rows if row.baseline]
    baselines = {_key(row, row.variant): row for row in rows}
    several = len({(row.mode, row.variant) for row in compared}) > 1
    lines = []
    for row in compared:
        name = f"{_name(row)} [{row.mode}, {row.variant}]" if several else _name(row)
        line = {"dev": row.device.partition(":")[0], "name": name, "batch_size": row.batch_size}
        line |= {column: getattr(row, column) for column in GRAPHS}
        line |= {"accuracy": row.accuracy or NO_RESULT.get(row.status, "fail_to_run" if row.status != "ok" else None)}
        line |= {"max": row.max_deviation, "mean": row.mean_deviation, "std": row.std_deviation}
        lines.append(line | _dynamo_speed(row, baselines.get(_key(row, row.baseline))))
    columns = DYNAMO[compared[0].purpose if compared else "performance"]
    frame = pd.DataFrame(lines, columns=columns)
    whole = {name: "Int64" for name in GRAPHS if name in columns}
    real = [name for name in columns if name not in ("dev", "name", "batch_size", "accuracy", *GRAPHS)]
    return frame.astype(whole | dict.fromkeys(real, float))


def _dynamo_speed(row: BenchmarkRow, baseline: BenchmarkRow | None) -> dict[str, float | None]:
    peak_gb, eager_gb = _peak_gb(row), _peak_gb(baseline) if baseline else None
    return {
        "speedup": row.speedup,
        "abs_latency": row.latency_ms,
        "compilation_latency": row.compile_cold_ms / 1000 if row.compile_cold_ms is not None else None,
        "compression_ratio": eager_gb / peak_gb if eager_gb is not None and peak_gb else None,
        "eager_peak_mem": eager_gb,
        "dynamo_peak_mem": peak_gb,
    }


def _peak_gb(row: BenchmarkRow) -> float | None:
    """Return the peak memory in 1e9 bytes: of the accelerator if there is one, else of the process."""
    peak = row.process_peak_mb if row.device_peak_mb is None else row.device_peak_mb
    return None if peak is None else peak / 1000


def _key(row: BenchmarkRow, variant: str) -> tuple[Any, ...]:
    return row.library, row.model, row.tower, row.mode, row.batch_size, variant


def _name(row: BenchmarkRow) -> str:
    """Return the model's name, with its library unless that is timm. Both programs use only timm's models."""
    return row.model if row.library == "timm" else row.name
