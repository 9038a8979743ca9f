"""Time models, or compare what their variants compute: the task of a BenchmarkSpec.

This process takes no measurements. It starts a fresh one per repetition, waits, and makes rows from their reports.

On several nodes of a cluster, one process per node does this, for one model after the other. All repetitions and
variants of a model run on one node, so that they can be compared.

A later attempt at the same run keeps the rows of models that are finished, and times the others.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine import names
from engine.measure import environment
from engine.models import library, steps
from engine.models.own_modules import search_path
from engine.process import Share, nodes_to_use
from engine.replicates import summary
from engine.replicates.benchmark import rows
from engine.replicates.benchmark.sizes import Sizes
from engine.replicates.child import Ended
from engine.replicates.messages import Measured
from engine.replicates.processes import Processes
from engine.results import TRACES, Artifact, BenchmarkRow, Environment, Event, Progress, samples_name
from engine.specs import BenchmarkSpec, ModelName
from engine.specs.benchmark import CONDITIONS, Mode
from engine.specs.fields.building import OPTIONS
from engine.tasks.shards import spread_on_nodes
from engine.words import plural

FINISHED = "finished.jsonl"
"""File in the folder of a run: the rows of each finished model, for the next attempt."""


def run(spec: BenchmarkSpec, run_dir: Path) -> Iterator[Event]:
    """Yield the environment, then per model and batch size the file of samples, and a row per mode and variant.

    Errors: Refused, before anything is timed.
    """
    # the worker has refused modules of the user's own in queued runs
    models = names.select(spec, library.families(names.libraries(spec)), allow_code=True)
    batch_sizes = {model: spec.batch_sizes(model) or (None,) for model in models}
    if "training" in spec.modes:
        steps.check_optimizer(spec.optimizer)
    machine = environment.current(spec.device, spec.seed)
    yield machine
    processes = {model: spec.processes * len(spec.modes) * len(sizes) for model, sizes in batch_sizes.items()}
    nodes = nodes_to_use()
    finished = _read_finished(run_dir, _facts(machine, nodes))
    for rows_before in finished.values():
        yield from rows_before
    done = sum(processes[model] for model in finished)
    progress = Progress(done=done, total=sum(processes.values()))
    todo = {model: count for model, count in processes.items() if model not in finished}
    if nodes:
        yield from _time_on_nodes(spec, todo, nodes, machine, run_dir, progress)
        return
    for model, count in todo.items():
        progress = progress.model_copy(update={"note": model})
        yield progress
        events: list[Event] = []
        for event in _time_model(spec, model, batch_sizes[model], run_dir, progress, machine.device_name):
            events.append(event)
            yield event
        _write_finished(run_dir, machine, nodes, events)
        progress = progress.model_copy(update={"done": progress.done + count})
    yield progress.model_copy(update={"note": ""})


def _time_model(
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
                started = time.monotonic()
                outcome = yield from sizes.outcome(mode, size, progress)
                progress = progress.model_copy(update={"done": progress.done + spec.processes})
                seconds = round(time.monotonic() - started, 3)
                common = _common(spec, model, mode, device_name)
                common |= {"seconds": seconds, "parts": processes.parts(seconds)}
                file = samples_name(model.library, model.model, outcome.batch_size)
                columns: dict[str, Any] = {"constants": {"mode": mode}, "label": "variant", "phases": rows.PHASES}
                for artifact in summary.write_samples(run_dir, file, outcome.processes, written, **columns):
                    common["samples_file"] = file
                    yield artifact
                timed = rows.rows(spec, common, outcome)
                yield from (Artifact(name=row.trace_file, kind="trace") for row in timed if row.trace_file)
                yield from timed
            if sizes.exhausted:
                return


def _common(spec: BenchmarkSpec, model: ModelName, mode: Mode, device_name: str) -> dict[str, Any]:
    """Return the fields that all rows of a model in one mode have."""
    return {
        "library": model.library,
        "model": model.model,
        "tower": spec.tower,
        "purpose": spec.purpose,
        "device": spec.device,
        "device_name": device_name,
        "threads": spec.threads or environment.threads(),
        "batch_size_requested": str(spec.batch_size),
        "optimizer": spec.optimizer if mode == "training" else "",
        **{name: getattr(spec, name) for name in (*CONDITIONS, *OPTIONS)},
        "deterministic": spec.reproducible,
    }


@dataclass(frozen=True)
class _Timed:
    """The events of a model that was timed on one of several nodes, and the files of its artifacts by name."""

    events: list[Event]
    files: dict[str, bytes]


def _time_on_nodes(
    spec: BenchmarkSpec,
    processes: Mapping[ModelName, int],
    nodes: Mapping[str, Share],
    machine: Environment,
    run_dir: Path,
    progress: Progress,
) -> Iterator[Event]:
    """Yield what `run` does for models that several nodes share. processes: how many each model takes."""
    todo, note = list(processes), f"on {plural(len(nodes), 'node')}"
    yield (progress := progress.model_copy(update={"note": note}))
    with closing(spread_on_nodes(partial(_time_on_this_node, spec, note), todo, nodes)) as results:
        for result in results:
            if result:
                model, timed = todo[result[0]], result[1]
                if isinstance(timed, Ended):
                    timed = _Timed([*_failed_rows(spec, model, machine.device_name, timed)], {})
                for name, content in timed.files.items():
                    (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
                    (run_dir / name).write_bytes(content)
                yield from timed.events
                _write_finished(run_dir, machine, nodes, timed.events)
                progress = progress.model_copy(update={"done": progress.done + processes[model]})
            yield progress


def _time_on_this_node(spec: BenchmarkSpec, note: str, model: ModelName) -> _Timed:
    """Time a model on the node of this process."""
    machine, events = environment.current(spec.device, spec.seed), list[Event]()
    with tempfile.TemporaryDirectory(prefix="vitals-") as folder:
        sizes = spec.batch_sizes(model) or (None,)
        for event in _time_model(spec, model, sizes, Path(folder), Progress(done=0), machine.device_name):
            if isinstance(event, BenchmarkRow):
                notes = (f"timed on {machine.host}; the models of this run were shared out {note}", *event.notes)
                event = event.model_copy(update={"host": machine.host, "notes": notes})
            if not isinstance(event, Progress):
                events.append(event)
        files = [event.name for event in events if isinstance(event, Artifact)]
        return _Timed(events, {name: Path(folder, name).read_bytes() for name in files})


def _failed_rows(spec: BenchmarkSpec, model: ModelName, device_name: str, end: Ended) -> Iterator[BenchmarkRow]:
    """Yield the rows of a model that ended every process that timed it."""
    size, *_ = spec.batch_sizes(model) or (1,)
    failed = {variant.label: Measured(label=variant.label, status=end.status, error=end.error) for variant in spec.plan}
    for mode in spec.modes:
        yield from rows.rows(spec, _common(spec, model, mode, device_name), rows.Outcome(mode, size, (failed,)))


def _facts(machine: Environment, nodes: Mapping[str, Share]) -> dict[str, Any]:
    """Return the facts that must be equal for rows of an earlier attempt to be kept.

    With several nodes, these are only the versions: each row names its own host.
    """
    return machine.model_dump(mode="json", include={"versions"} if nodes else None, exclude={"date", "settings"})


def _write_finished(run_dir: Path, machine: Environment, nodes: Mapping[str, Share], events: Sequence[Event]) -> None:
    """Write the rows of a model to FINISHED. If one of them failed, the next attempt times the model again."""
    timed = [event for event in events if isinstance(event, BenchmarkRow)]
    if timed and all(row.status == "ok" for row in timed):
        note = f"timed by an earlier attempt at this run, which began {machine.date}"
        marked = [row.model_copy(update={"date": machine.date, "notes": (*row.notes, note)}) for row in timed]
        kept = {"conditions": _facts(machine, nodes), "rows": [row.model_dump(mode="json") for row in marked]}
        with (run_dir / FINISHED).open("a") as file:
            file.write(f"{json.dumps(kept)}\n")


def _read_finished(run_dir: Path, facts: dict[str, Any]) -> dict[ModelName, list[BenchmarkRow]]:
    """Return the rows, by model, that earlier attempts have kept, if their samples exist.

    facts: from `_facts`, equal to those of the kept rows. A row's date and note say which attempt timed it.
    """
    found: dict[ModelName, list[BenchmarkRow]] = {}
    for line in (run_dir / FINISHED).read_text().splitlines() if (run_dir / FINISHED).is_file() else ():
        try:
            kept = json.loads(line)
            rows_before = [BenchmarkRow.model_validate(row) for row in kept["rows"]]
            is_valid = kept["conditions"] == facts
        except (ValueError, KeyError):
            continue  # the disk was full, the machine lost its power, or an older version of this program wrote it
        if is_valid and all((run_dir / row.samples_file).exists() for row in rows_before):
            found[rows_before[0].name] = rows_before
    return found
