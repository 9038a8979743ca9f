"""Measure a device's matrix product and copy rates: the task of a DeviceSpec."""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from engine.measure import environment, gpu_watch, rates
from engine.measure.plan import Plan
from engine.measure.rates import Rate
from engine.models.built import out_of_memory
from engine.replicates import summary
from engine.replicates.messages import Measured
from engine.replicates.side_by_side import observations
from engine.results import DeviceRow, Event, Progress
from engine.specs import DeviceSpec, error_message

ENOUGH_S = 2.0
"""Shorter measurements, in seconds, get the flag below_floor."""


def run(spec: DeviceSpec, run_dir: Path) -> Iterator[Event]:
    """Yield the environment, then per operation its progress and row. Errors: Refused."""
    yield environment.current(spec.device)
    wanted = [*(("matmul", dtype) for dtype in dict.fromkeys(spec.dtypes)), ("copy", "float32")]
    torch.set_num_threads(threads := spec.threads or environment.threads())
    for done, (operation, dtype) in enumerate(wanted):
        yield Progress(done=done, total=len(wanted), note=label(operation, dtype))
        yield measure(operation, dtype, spec, threads)
    yield Progress(done=len(wanted), total=len(wanted))


def label(operation: str, dtype: str) -> str:
    """Return the name of an operation, such as `matmul bfloat16`. Copies have one data type, which is left out."""
    return f"{operation} {dtype}" if operation == "matmul" else operation


def measure(operation: str, dtype: str, spec: DeviceSpec, threads: int) -> DeviceRow:
    """Return the row of one operation. Errors become its status."""
    fields: dict[str, Any] = {
        "model": label(operation, dtype),
        "device": spec.device,
        "device_name": environment.current(spec.device).device_name,
        "threads": threads if spec.device == "cpu" else None,
        "operation": operation,
        "dtype": dtype,
    }
    plan = Plan(min_seconds=spec.seconds)
    started = time.perf_counter()
    try:
        rate = rates.copy(spec.device, plan) if operation == "copy" else rates.matmul(spec.device, dtype, plan)
        values = _values(rate, operation, spec)
    except Exception as error:  # noqa: BLE001 - any error of a device or driver becomes the row's status
        status = "out_of_memory" if out_of_memory(error) else "error"
        values = {"status": status, "error": error_message(error)}
    return DeviceRow(**fields | values, seconds=round(time.perf_counter() - started, 3))


def _values(rate: Rate, operation: str, spec: DeviceSpec) -> dict[str, Any]:
    """Return a rate with flags that limit its meaning, and notes with the reasons, as fields of a row."""
    measured = [Measured(label=str(rate.size), timed=rate.timed, **observations(rate.session))]
    return {
        "size": rate.size,
        "gflop_per_s" if operation == "matmul" else "gb_per_s": rate.by_size[rate.size] / 1e9,
        "latency_ms": median(rate.timed.samples_ms),
        "samples": len(rate.timed.samples_ms),
        "rates": {str(size): per_s / 1e9 for size, per_s in rate.by_size.items()},
        "contention": rate.session.contention,
        "flags": summary.flags(measured, below_floor=spec.seconds < ENOUGH_S),
        "notes": (*rate.notes, *summary.disturbances(measured), *gpu_watch.notes(spec.device, rate.session.gpu)),
    }
