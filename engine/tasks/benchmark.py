"""Time models, or compare what their variants compute: the task of a BenchmarkSpec.

This process takes no measurements. It starts a fresh one per repetition, waits, and makes rows from their reports.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engine import names
from engine.measure import environment
from engine.models import library, steps
from engine.models.own_modules import search_path
from engine.replicates import summary
from engine.replicates.benchmark import rows
from engine.replicates.benchmark.sizes import Sizes
from engine.replicates.processes import Processes, Spent
from engine.results import TRACES, Artifact, Event, Progress, samples_name
from engine.specs import BenchmarkSpec, ModelName
from engine.specs.building import OPTIONS


def run(spec: BenchmarkSpec, run_dir: Path) -> Iterator[Event]:
    """Yield the environment, then per model and batch size the file of samples, and a row per mode and variant.

    Errors: Refused, before anything is timed.
    """
    # the worker has refused modules of the user's own in queued runs
    models = names.select(spec, library.families(), runs_code=True)
    batch_sizes = {model: spec.batch_sizes(model) for model in models}
    if "training" in spec.modes:
        steps.check_optimizer(spec.optimizer)
    here = environment.current(spec.device, spec.seed)
    yield here
    for done, (model, sizes) in enumerate(batch_sizes.items()):
        progress = Progress(done=done, total=len(models), note=model)
        yield progress
        yield from _model(spec, model, sizes or (None,), run_dir, progress, here.device_name)
    yield Progress(done=len(models), total=len(models))


def _model(
    spec: BenchmarkSpec,
    model: ModelName,
    batch_sizes: Sequence[int | None],
    run_dir: Path,
    progress: Progress,
    device_name: str,
) -> Iterator[Event]:
    """Yield the rows of a model. batch_sizes: None means the largest that fits."""
    written: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="vitals-", ignore_cleanup_errors=True) as folder:
        # required by cuBLAS to be deterministic
        variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if spec.reproducible else {}
        if model.runs_code:
            variables["PYTHONPATH"] = search_path()
        processes = Processes(Path(folder), time.monotonic() + spec.time_limit, environment=variables)
        sizes = Sizes(spec, model, processes, run_dir / TRACES if spec.trace else None)
        for size in batch_sizes:
            for mode in spec.modes:
                started, processes.spent = time.monotonic(), Spent()
                outcome = yield from sizes.outcome(mode, size, progress)
                common = {
                    "library": model.library,
                    "model": model.model,
                    "tower": spec.tower,
                    "purpose": spec.purpose,
                    "device": spec.device,
                    "device_name": device_name,
                    "threads": spec.threads or environment.threads(),
                    "batch_size_requested": str(spec.batch_size),
                    "cudnn_benchmark": spec.cudnn_benchmark,
                    "deterministic": spec.reproducible,
                    "cache": spec.cache,
                    "optimizer": spec.optimizer if mode == "training" else "",
                    **{option: getattr(spec, option) for option in OPTIONS},
                    "seconds": (seconds := round(time.monotonic() - started, 3)),
                    "parts": processes.spent.parts(seconds),
                }
                file = samples_name(model.library, model.model, outcome.batch_size)
                columns: dict[str, Any] = {"what": {"mode": mode}, "label": "variant", "phases": rows.PHASES}
                for artifact in summary.write_samples(run_dir, file, outcome.processes, written, **columns):
                    common["samples_file"] = file
                    yield artifact
                found = rows.rows(spec, common, outcome)
                yield from (Artifact(name=row.trace_file, kind="trace") for row in found if row.trace_file)
                yield from found
            if sizes.exhausted:
                return
