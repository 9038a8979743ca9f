"""What devices have been measured to do, and how much of that a model gets out of them."""

from collections.abc import Iterable

import pandas as pd

from engine.report import frames
from engine.results import BenchmarkRow, DeviceRow
from engine.store import Store

LATEST = 50
"""Runs looked through, newest first."""
KEY = ["device", "device_name", "threads", "dtype"]
COLUMNS = (
    *("host", "device", "device_name", "threads", "operation", "dtype", "size", "gflop_per_s", "gb_per_s"),
    *("latency_ms", "samples", "flags", "run", "date"),
)


def rates(store: Store, host: str | None = None) -> pd.DataFrame:
    """The latest rate of every operation, data type and device, of one host where it is given.

    A CPU measured with other threads is another device. Columns: those of COLUMNS; `run` is the run that measured it,
    `date` (UTC) when. A failed measurement hides no earlier one.
    """
    rows, origins = [], []
    for run in store.runs(kind="device", limit=LATEST):
        if run.environment is None or host not in (None, run.environment.host):
            continue
        measured = [row for row in store.rows(run.id) if isinstance(row, DeviceRow) and row.status == "ok"]
        rows += measured
        origins += [(run.environment.host, run.id, run.environment.date)] * len(measured)
    frame = frames.device(rows).join(pd.DataFrame(origins, columns=["host", "run", "date"]))
    frame["date"] = pd.to_datetime(frame["date"], utc=True)
    latest = frame.drop_duplicates(["host", "operation", *KEY])
    return latest[list(COLUMNS)].reset_index(drop=True)


def achieved(row: BenchmarkRow) -> float | None:
    """GFLOP/s: counted FLOPs of the batch / median latency; of a training step, those of its forward pass.

    None where nothing was counted or timed.
    """
    latency = row.forward_ms if row.mode == "training" else row.latency_ms
    return row.gflops * row.batch_size / latency * 1e3 if row.gflops and latency else None


def computes_in(row: BenchmarkRow) -> str:
    """The data type of a row's matrix products, as rates name it: autocast's, else the weights', or tf32."""
    dtype = row.autocast_dtype or row.dtype or row.precision
    return "tf32" if dtype == "float32" and row.tf32 else dtype


def utilisation(rows: Iterable[BenchmarkRow], rates: pd.DataFrame) -> list[float | None]:
    """Of each row, the share (1 is all) of its device's measured matmul rate in its data type that it achieved.

    rates: of `rates`. None where that rate was not measured, on a CPU: with as many threads.
    """
    matmuls = rates[rates["operation"] == "matmul"].sort_values("run")  # of hosts with the same device, the latest
    known = {}
    for device, name, threads, dtype, rate in matmuls[[*KEY, "gflop_per_s"]].itertuples(index=False):
        known[_key(device, name, None if pd.isna(threads) else int(threads), dtype)] = float(rate)
    shares = []
    for row in rows:
        rate = known.get(_key(row.device, row.device_name, row.threads, computes_in(row)))
        got = achieved(row)
        shares.append(got / rate if got is not None and rate else None)
    return shares


def _key(device: str, name: str, threads: int | None, dtype: str) -> tuple[str, str, int | None, str]:
    """A CPU is as fast as its threads; of an accelerator, neither they nor its number matter."""
    kind = device.partition(":")[0]
    return kind, name, threads if kind == "cpu" else None, dtype
