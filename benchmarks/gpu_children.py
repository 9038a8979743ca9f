"""Functions that benchmarks/gpu.py runs in fresh processes, so that they occupy no GPU memory during other timings.

python -m benchmarks.gpu_children NAME JSON
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Line = dict[str, Any]


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


def rates(spec: Line) -> list[Line]:
    """Return the rows of a DeviceSpec."""
    from engine.results import DeviceRow
    from engine.specs import DeviceSpec
    from engine.tasks import device

    found = device.run(DeviceSpec.model_validate(spec), Path())
    return [event.model_dump(mode="json") for event in found if isinstance(event, DeviceRow)]


def timer(job: Line, seconds: float) -> dict[str, Line]:
    """Time every variant of a benchmark's job with torch.utils.benchmark. Return `ms` or `error` by variant.

    The variants are prepared by the program's own code.
    """
    import torch
    from torch.utils.benchmark import Timer

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
    found: dict[str, Line] = {}
    for variant in child_job.plan:
        try:
            prepared = prepare(child_job, variant, stopwatch_for(device), library.build, resident())
            with prepared.ready.settings():
                call = {"call": lambda phases=prepared.ready.phases: once(phases)}
                stopwatch = Timer("call()", globals=call, num_threads=torch.get_num_threads())
                found[variant.label] = {"ms": stopwatch.blocked_autorange(min_run_time=seconds).median * 1e3}
            del prepared, call, stopwatch
        except Exception as error:  # noqa: BLE001 - a variant that fails gets a line too
            found[variant.label] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        release()
    return found


FUNCTIONS: dict[str, Callable[..., Any]] = {"rates": rates, "timer": timer}

if __name__ == "__main__":
    print(json.dumps(FUNCTIONS[sys.argv[1]](**json.loads(sys.argv[2]))))
