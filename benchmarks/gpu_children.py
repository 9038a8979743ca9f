"""What benchmarks/gpu.py does in processes of their own, to take no place on the GPU that others are timed on.

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
    """A process that has ended badly, with the end of what it said."""


def run(name: str, given: Line, environment: Line | None = None) -> Any:
    """Return what a function of FUNCTIONS gives in a fresh process. Errors: Failed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_children", name, json.dumps(given)],
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
    """Return the variables with which a process finds what the timing that is under way here has compiled."""
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
    """Return the ms of every variant of a benchmark's job by torch.utils.benchmark, or its error.

    The variants are made ready as the program makes them.
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
            made = prepare(child_job, variant, stopwatch_for(device), library.build, resident())
            with made.ready.settings():
                call = {"call": lambda phases=made.ready.phases: once(phases)}
                stopwatch = Timer("call()", globals=call, num_threads=torch.get_num_threads())
                found[variant.label] = {"ms": stopwatch.blocked_autorange(min_run_time=seconds).median * 1e3}
            del made, call, stopwatch
        except Exception as error:  # noqa: BLE001 - a variant that fails is a line like the others
            found[variant.label] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        release()
    return found


FUNCTIONS: dict[str, Callable[..., Any]] = {"rates": rates, "timer": timer}

if __name__ == "__main__":
    print(json.dumps(FUNCTIONS[sys.argv[1]](**json.loads(sys.argv[2]))))
