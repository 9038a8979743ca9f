"""Functions that benchmarks/gpu.py runs in fresh processes, so that they occupy no GPU memory during other timings.

python -m benchmarks.gpu_children NAME JSON
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Line = dict[str, Any]

TURNS = 9
"""Turns of each side when our stopwatch is compared with torch's Timer."""


class Failed(Exception):
    """Raised when a process fails; the message is the end of its output on stderr."""


def run(name: str, arguments: Line, environment: Line | None = None) -> Any:
    """Call a function of FUNCTIONS in a fresh process and return its result. Errors: Failed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_children", name, json.dumps(arguments)],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def compiled_caches() -> dict[str, str]:
    """Return the variables with which a process finds the compiled code of the timing under way; {} without any."""
    folders = list(Path(tempfile.gettempdir()).glob("vitals-*/*/inductor"))
    if not folders:
        return {}
    latest = max(folders, key=lambda folder: folder.stat().st_mtime)
    return {"TORCHINDUCTOR_CACHE_DIR": str(latest), "TRITON_CACHE_DIR": str(latest.with_name("triton"))}


def rates(spec: Line, *, quick: bool) -> list[Line]:
    """Return the rows of a DeviceSpec. quick: copy little memory, which a server's caches may hold."""
    from engine.measure import rates
    from engine.results import DeviceRow
    from engine.specs import DeviceSpec
    from engine.tasks import device

    if quick:
        rates.CACHES_APART = 0  # 4 would copy gigabytes on a server
    found = device.run(DeviceSpec.model_validate(spec), Path())
    return [event.model_dump(mode="json") for event in found if isinstance(event, DeviceRow)]


def timer(job: Line, seconds: float) -> dict[str, Line]:
    """Compare our stopwatch with torch.utils.benchmark on every variant of a benchmark's job.

    The variants are prepared by the program's own code. Return the values of `side_by_side`, or `error`, by variant.
    """
    import torch

    from engine.measure import environment
    from engine.measure.stopwatch import stopwatch_for
    from engine.models import library
    from engine.replicates.benchmark.job import Job
    from engine.replicates.benchmark.prepared import prepare
    from engine.replicates.ready import once, release, resident

    child_job = Job.model_validate(job | {"parent": os.getppid()})
    device = child_job.spec.device
    torch.set_num_threads(child_job.spec.threads or environment.threads())
    if ":" in device:
        torch.accelerator.set_device_index(device)
    stopwatch, found = stopwatch_for(device), dict[str, Line]()
    for variant in child_job.plan:
        try:
            prepared = prepare(child_job, variant, stopwatch, library.build, resident())
            with prepared.ready.settings():
                found[variant.label] = side_by_side(partial(once, prepared.ready.phases), stopwatch, seconds)
            del prepared
        except Exception as error:  # noqa: BLE001 - a variant that fails gets a line too
            found[variant.label] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        release()
    return found


def side_by_side(
    call: Callable[[], object], stopwatch: Any, seconds: float, clock: Callable[[], float] | None = None
) -> Line:
    """Time a call with torch's Timer and with our stopwatch's `queued`, in turns with the same number of calls.

    seconds: of samples on each side. clock: of the Timer; None takes its own, which synchronises the device.
    Return the median ms per call of each, `timer_ms` and `beside_timer_ms`, and the median `ratio` of ours to the
    Timer's turn before or after it. What changes over seconds, such as clock rates, affects both alike.
    """
    import torch
    from torch.utils.benchmark import Timer

    options = {"timer": clock} if clock else {}
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads(), **options)
    calls = max(2, math.ceil(seconds / TURNS / timer.timeit(2).mean))
    theirs, ours = list[float](), list[float]()
    for turn in range(TURNS):
        for side in (theirs, ours) if turn % 2 else (ours, theirs):
            side.append(timer.timeit(calls).mean * 1e3 if side is theirs else stopwatch.queued(call, calls) / calls)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    medians = (statistics.median(values) for values in (theirs, ours, ratios))
    return dict(zip(("timer_ms", "beside_timer_ms", "ratio"), medians, strict=True))


FUNCTIONS: dict[str, Callable[..., Any]] = {"rates": rates, "timer": timer}

if __name__ == "__main__":
    print(json.dumps(FUNCTIONS[sys.argv[1]](**json.loads(sys.argv[2]))))
