"""Record what a call does with torch's profiler: a Chrome trace and its slowest kernels or operators."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from engine.results import SlowOperator

CALLS = 3
"""Calls in a trace: enough to see what repeats, and a file of some MB."""
SLOWEST = 10
"""Number of kernels or operators to return."""
LONGEST_NAME = 200
"""Cut names to this length. Names of CUDA kernels made from templates have thousands of characters."""


def record(phases: Mapping[str, Callable[[], object]], device: str, path: Path) -> tuple[SlowOperator, ...]:
    """Write a Chrome trace of some calls to `path` (.json.gz), each phase marked by its name.

    Returns the slowest kernels of an accelerator, or the slowest operators of a CPU, by their own time. The result
    is empty where the profiler sees none. Make one call before, so that compilation is not recorded.
    """
    activities = supported_activities() if device != "cpu" else {ProfilerActivity.CPU}  # type: ignore[no-untyped-call]
    with profile(activities=activities) as profiler:
        for _ in range(CALLS):
            for name, phase in phases.items():
                with record_function(name):
                    phase()
        if device != "cpu":
            torch.accelerator.synchronize(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
    return _slowest(profiler, set(phases), kernels=device != "cpu")


def _slowest(profiler: profile, marks: set[str], *, kernels: bool) -> tuple[SlowOperator, ...]:
    times = []
    for event in profiler.key_averages():
        if event.key in marks or (event.device_type != DeviceType.CPU) != kernels:
            continue
        # torch marks optimizer steps and compiled graphs: on an accelerator a mark lasts as long as all kernels in it
        if kernels and event.is_user_annotation:
            continue
        us = event.self_device_time_total if kernels else event.self_cpu_time_total
        times.append((us, event.key, event.count))
    total = sum(us for us, _, _ in times)
    return tuple(
        SlowOperator(name=name[:LONGEST_NAME], calls=count / CALLS, ms=us / 1e3 / CALLS, share=us / total)
        for us, name, count in sorted(times, reverse=True)[:SLOWEST]
        if us > 0
    )
