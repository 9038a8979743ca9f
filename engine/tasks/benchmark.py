"""Time models, or compare what their variants compute: the task of a BenchmarkSpec.

This process takes no measurements. It starts a fresh one per repetition, waits, and makes rows from their reports.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from engine import names
from engine.measure import environment
from engine.models import library, steps
from engine.models.own_modules import search_path
from engine.replicates import summary
from engine.replicates.benchmark import rows
from engine.replicates.benchmark.sizes import Sizes
from engine.replicates.messages import Measured
from engine.replicates.processes import Processes, Spent
from engine.results import TRACES, Artifact, Event, Progress, samples_name
from engine.specs import BenchmarkSpec, ModelName
from engine.specs.benchmark import Mode
from engine.specs.building import OPTIONS

Found = Sequence[Mapping[str, Measured]]


def run(spec: BenchmarkSpec, run_dir: Path) -> Iterator[Event]:
    """Yield the environment, then per model and batch size the file of samples, and a row per mode and variant.

    Errors: Refused, before anything is timed.
    """
    # the worker has refused modules of the user's own in queued runs
    models = names.select(spec, library.families(), runs_code=True)
    batch_sizes = {model: spec.batch_sizes(model) or (None,) for model in models}
    if "training" in spec.modes:
        steps.check_optimizer(spec.optimizer)
    here = environment.current(spec.device, spec.seed)
    yield here
    each = spec.processes * len(spec.modes)  # processes per batch size
    progress = Progress(done=0, total=each * sum(map(len, batch_sizes.values())))
    for model, sizes in batch_sizes.items():
        progress = progress.model_copy(update={"note": model})
        yield progress
        yield from _model(spec, model, sizes, run_dir, progress, here.device_name)
        progress = progress.model_copy(update={"done": progress.done + each * len(sizes)})
    yield progress.model_copy(update={"note": ""})


def _model(
    spec: BenchmarkSpec,
    model: ModelName,
    batch_sizes: Sequence[int | None],
    run_dir: Path,
    progress: Progress,
    device_name: str,
) -> Iterator[Event]:
    """Yield the rows of a model. batch_sizes: None means the largest that fits."""
    written: set[Path] = set()
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
                progress = progress.model_copy(update={"done": progress.done + spec.processes})
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
                if any(measured.rounds for process in outcome.processes for measured in process.values()):
                    common["samples_file"] = file
                    yield _samples(run_dir / file, outcome.processes, mode, rows.PHASES, written)
                if queued := summary.back_to_back(outcome.processes):
                    path = run_dir / summary.back_to_back_name(file)
                    yield _samples(path, queued, mode, [summary.BACK_TO_BACK], written)
                found = rows.rows(spec, common, outcome)
                yield from (Artifact(name=row.trace_file, kind="trace") for row in found if row.trace_file)
                yield from found
            if sizes.exhausted:
                return


def _samples(path: Path, found: Found, mode: Mode, phases: Sequence[str], written: set[Path]) -> Artifact:
    """Write the samples of one mode. written: files that already hold samples of this model; they are appended to."""
    summary.write_samples(path, found, what={"mode": mode}, label="variant", phases=phases, begin=path not in written)
    written.add(path)
    return Artifact(name=f"{path.parent.name}/{path.name}", kind="samples")
