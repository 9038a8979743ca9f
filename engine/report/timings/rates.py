"""Read the measured rates of devices, and compute the share of them that models reach."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from engine.report import frames
from engine.report.style import bandwidth, compute, digits
from engine.results import BenchmarkRow, DeviceRow, RecurrentRow
from engine.results.flags import SPOILING
from engine.specs.benchmark import CONDITIONS
from engine.specs.fields.building import changes
from engine.store import Store
from engine.words import plural

Counted = BenchmarkRow | RecurrentRow
"""Rows with both counted work and a measured time."""
LATEST = 50
"""Read at most this many runs of a kind, newest first, because a page reads all their rows."""
POINTS = (
    *("where", "name", "model", "family", "variant", "mode", "batch_size", "image_size", "dtype", "device"),
    *("device_name", "threads", "latency_ms", "forward_ms", "intensity", "intensity_of", "gflop_per_s", "flags", "run"),
    *("date", "tower", "context_length", *CONDITIONS, "optimizer"),
)
FUSING = ("compile", "trace")
"""Variants whose label begins with one of these may fuse operators, and then move less memory than eager."""
KEY = ["device", "device_name", "threads", "dtype"]
COLUMNS = (
    "where host device device_name threads operation dtype size gflop_per_s gb_per_s latency_ms samples flags run date"
).split()


def rates(store: Store) -> pd.DataFrame:
    """Return the latest rate of every operation, data type and device, on every host.

    A CPU with another number of threads counts as another device. Failed measurements are ignored, and one with a flag
    of SPOILING is used only if there is none without. Columns: those of COLUMNS; `where` identifies a device, `run` is
    the run that measured the rate and `date` (UTC) its date.
    """
    rows, origins = [], []
    for run in store.runs(kind="device", limit=LATEST):
        if run.environment is None:
            continue
        measured = [row for row in store.rows(run.id) if isinstance(row, DeviceRow) and row.status == "ok"]
        rows += measured
        origins += [(run.environment.host, run.id, run.environment.date)] * len(measured)
    frame = frames.device(rows).join(pd.DataFrame(origins, columns=["host", "run", "date"]))
    frame["date"] = pd.to_datetime(frame["date"], utc=True)
    frame["where"] = [where(*key) for key in frame[["host", "device", "device_name", "threads"]].to_numpy(object)]
    latest = undisturbed_first(frame).drop_duplicates(["host", "operation", *KEY])
    return latest[COLUMNS].reset_index(drop=True)


def undisturbed_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without a flag of SPOILING first, then the others; both keep their order. frame: has `flags`."""
    spoiled = frame["flags"].astype(str).str.contains("|".join(SPOILING))
    return frame.loc[spoiled.sort_values(kind="stable").index]


def models(store: Store) -> pd.DataFrame:
    """Return the latest timing of every model in every setting that was timed and counted: the points of a roofline.

    A timing with a flag of SPOILING is used only if there is none without. Models of the latest LATEST benchmarks are
    included, as their library defines them: without other classes, channels or keywords. Columns: those of POINTS.
    `gflop_per_s` is the achieved rate; for a training, that of its forward pass (`forward_ms`). `intensity` is in FLOPs
    per byte. `intensity_of` is `itself`, or `eager` if a compiler may have fused operators: the true intensity is then
    higher.
    """
    points = []
    for run in store.runs(kind="benchmark", limit=LATEST):
        for row in store.rows(run.id):
            if not isinstance(row, BenchmarkRow) or row.status != "ok" or not row.intensity or not achieved(row):
                continue
            if changes(row):
                continue  # a point is labelled with the model's name alone
            values = {name: getattr(row, name) for name in POINTS if name in BenchmarkRow.model_fields}
            values |= {"name": row.name, "dtype": computes_in(row), "gflop_per_s": achieved(row)}
            values["intensity_of"] = "eager" if row.variant.startswith(FUSING) else "itself"
            date = row.date or (run.environment.date if run.environment else "")
            place = where(row.host or run.host, row.device, row.device_name, row.threads)
            points.append(values | {"where": place, "run": run.id, "date": date[:10]})
    frame = pd.DataFrame(points, columns=POINTS)
    result = {"latency_ms", "forward_ms", "intensity", "intensity_of", "gflop_per_s", "flags", "run", "date"}
    kept = undisturbed_first(frame).drop_duplicates([name for name in POINTS if name not in result])
    return kept.sort_index(ignore_index=True)


def achieved(row: Counted) -> float | None:
    """Return counted FLOPs / median time in GFLOP/s, in training of the forward pass; None without work or time."""
    if isinstance(row, RecurrentRow):
        work, ms = row.gflops, row.forward_ms
    else:
        work = row.gflops * row.batch_size if row.gflops else None
        ms = row.forward_ms if row.mode == "training" else row.latency_ms
    return work / ms * 1e3 if work and ms else None


def computes_in(row: Counted) -> str:
    """Return the data type of a row's matrix products, named as in rates: autocast's, else the weights', or tf32."""
    if isinstance(row, RecurrentRow):
        return row.precision
    dtype = row.autocast_dtype or row.dtype or row.precision
    return "tf32" if dtype == "float32" and row.tf32 else dtype


def utilisation(rows: Iterable[Counted], rates: pd.DataFrame, host: str) -> list[float | None]:
    """Return each row's share (1 is all) of the measured matmul rate in its data type.

    rates: from `rates`. host: where rows without a host of their own were timed. None if that rate was not measured on
    this host and device; on a CPU, the number of threads must also be the same.
    """
    matmuls = rates[rates["operation"] == "matmul"]
    peak_rates: dict[tuple[object, ...], float] = {}
    for rate_host, device, name, threads, dtype, rate in matmuls[["host", *KEY, "gflop_per_s"]].itertuples(index=False):
        key = _key(device, name, None if pd.isna(threads) else int(threads), dtype)
        peak_rates.setdefault((rate_host, *key), float(rate))
    shares = []
    for row in rows:
        key = _key(row.device, row.device_name, row.threads, computes_in(row))
        rate = peak_rates.get((row.host or host, *key))
        gflop_per_s = achieved(row)
        shares.append(gflop_per_s / rate if gflop_per_s is not None and rate else None)
    return shares


def where(host: str, device: str, name: str, threads: int | None) -> str:
    """Return a device's label: `AMD EPYC, 2 threads, on vm`, or for accelerators `cuda:0 NVIDIA H200, on vm`."""
    if device == "cpu":
        parts = [name or device, plural(threads, "thread") if threads else ""]
    else:
        parts = [f"{device} {name}".strip()]
    return ", ".join(filter(None, [*parts, f"on {host}" if host else ""]))


def unusual_conditions(conditions: Mapping[str, Any]) -> list[str]:
    """Return in words the CONDITIONS of a timing that are not the default, such as `cold cache`."""
    words = {"cache": f"{conditions['cache']} cache", "cudnn_benchmark": "cuDNN benchmark"}
    usual = (False, "hot")
    return [words.get(name, name) for name in CONDITIONS if conditions[name] not in usual]


def _key(device: str, name: str, threads: int | None, dtype: str) -> tuple[str, str, int | None, str]:
    """Return a key that equally fast devices share. A CPU's includes its threads; an accelerator's lacks its number."""
    kind = device.partition(":")[0]
    return kind, name, threads if kind == "cpu" else None, dtype


def readable(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rates as text, with `what`, `rate` and `at` (the size). frame: from `rates` or frames.device."""
    copies, flags = frame["operation"] == "copy", frame["flags"].str.replace("_", " ").str.replace(";", ",")
    what = frame["operation"].where(copies, "matmul " + frame["dtype"])
    rate = _texts(frame["gflop_per_s"], compute).mask(copies, _texts(frame["gb_per_s"], bandwidth))
    megabytes = _texts(frame["size"], lambda size: f"{digits(size / 1e6)} MB")
    at = _texts(frame["size"], lambda side: f"{side:,} × {side:,}").mask(copies, megabytes)
    return frame.assign(what=what, rate=rate, at=at, flags=flags)


def _texts(values: "pd.Series[Any]", form: Callable[[Any], str]) -> "pd.Series[Any]":
    return pd.Series(["–" if pd.isna(value) else form(value) for value in values], index=values.index, dtype=object)
