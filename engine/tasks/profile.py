"""Count parameters, FLOPs, activations and memory of models: the task of a ProfileSpec."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engine import names
from engine.measure import environment
from engine.measure.counting import flops, fvcore_counter, memory
from engine.measure.counting.flops import Count
from engine.measure.counting.live import state, tensor_bytes
from engine.models import library
from engine.models.built import Built, Wanted, one_line, out_of_memory
from engine.models.variants import Builder
from engine.replicates.child import Ended
from engine.results import LOW_MEMORY, Artifact, Event, ModuleCount, ProfileRow, Progress, detail_name
from engine.specs import ModelName, ProfileSpec, error_message, format_image_size
from engine.specs.base import CLUSTER, device_on_node
from engine.specs.fields.building import OPTIONS
from engine.specs.profile import DETAILED
from engine.tasks.shards import Shards, spread, spread_on_cluster
from engine.words import plural

Place = tuple[str, int]
"""A model, and the number of one of the spec's points."""
MODELS_EACH = 16
"""Minimum number of models per process. Counting 16 models takes about as long as importing the libraries."""
MOST_PROCESSES = 16
"""Maximum number of processes of a run. 16 processes count the whole catalogue in about a minute."""


@dataclass(frozen=True)
class Profiled:
    """A row, and the model's modules if they were counted."""

    row: ProfileRow
    modules: tuple[ModuleCount, ...] = ()


def run(spec: ProfileSpec, run_dir: Path) -> Iterator[Event]:
    """Yield the environment, then per model its progress and row. Errors: Refused, before anything is counted."""
    # the worker has refused modules of the user's own in queued runs
    models = names.select(spec, library.families(names.libraries(spec)), allow_code=True)
    on_cluster = spec.device == f"{CLUSTER}meta"
    spec = spec.model_copy(update={"device": device_on_node(spec.device)})
    yield environment.current(spec.device)
    todo = [(model, number) for model in models for number in range(len(spec.points))]
    spec = spec.model_copy(update={"detail": spec.detail or len(todo) <= DETAILED})
    count = partial(_count, spec)
    if on_cluster:
        yield from _in_shards(spec, todo, spread_on_cluster(count, todo), "on the cluster", run_dir)
        return
    # on a real device, one process counts, because each holds a model's weights
    most = min(environment.threads(), MOST_PROCESSES) if spec.device == "meta" else 1
    if (processes := min(most, len(todo) // MODELS_EACH)) > 1:
        yield from _in_shards(spec, todo, spread(count, todo, processes), f"in {processes} processes", run_dir)
        return
    for done, (model, number) in enumerate(todo):
        yield Progress(done=done, total=len(todo), note=model)
        yield from _events(profile(model, spec.points[number]), run_dir)
    yield Progress(done=len(todo), total=len(todo))


def _in_shards(
    spec: ProfileSpec, todo: Sequence[Place], results: Shards[Profiled], note: str, run_dir: Path
) -> Iterator[Event]:
    """Yield rows in the order in which they are counted, and progress at least once a second, to let the run stop."""
    yield (progress := Progress(done=0, total=len(todo), note=note))
    with closing(results):
        for result in results:
            if result:
                (model, number), counted = todo[result[0]], result[1]
                if isinstance(counted, Ended):
                    counted = Profiled(failed_row(ModelName(model), spec.points[number], counted))
                yield from _events(counted, run_dir)
                progress = progress.model_copy(update={"done": progress.done + 1})
            yield progress


def _count(spec: ProfileSpec, place: Place) -> Profiled:
    torch.set_num_threads(1)  # one of several processes
    model, number = place
    return profile(model, spec.points[number])


def _events(profiled: Profiled, run_dir: Path) -> Iterator[Event]:
    if profiled.modules:
        name = profiled.row.detail_file
        path = run_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([module.model_dump() for module in profiled.modules]))
        yield Artifact(name=name, kind="detail")
    yield profiled.row


def profile(model: str, spec: ProfileSpec, build: Builder = library.build) -> Profiled:
    """Return one model's counts. Errors become the status. If an accelerator runs out of memory, the CPU is used.

    spec: with one batch size and at most one image size.
    """
    name = ModelName(model)
    profiled = _attempt(name, spec, spec.device, build)
    if profiled.row.status == "out_of_memory" and spec.device not in ("cpu", "meta"):
        note = f"out of memory on {spec.device}: counted on cpu instead"
        profiled = _attempt(name, spec, "cpu", build)
        row = profiled.row.model_copy(update={"notes": (note, *profiled.row.notes)})
        profiled = replace(profiled, row=row)
    return profiled


def _attempt(name: ModelName, spec: ProfileSpec, device: str, build: Builder) -> Profiled:
    known = _known_fields(name, spec, device)
    counts: dict[str, Any] = {}
    started = time.perf_counter()
    try:
        for step in _steps(name, spec, device, build):
            counts |= step
    except Exception as error:  # noqa: BLE001 - any error of a model becomes its row's status
        counts["status"] = "out_of_memory" if out_of_memory(error) else "error"
        counts["error"] = error_message(error)
    modules = counts.pop("modules", ())
    fields = known | counts
    if modules:
        fields["detail_file"] = detail_name(name.library, name.model, fields["image_size"], fields["batch_size"])
    return Profiled(ProfileRow(**fields, seconds=round(time.perf_counter() - started, 3)), modules)


def failed_row(name: ModelName, spec: ProfileSpec, end: Ended) -> ProfileRow:
    """Return the row of a model whose processes died. spec: as in profile."""
    return ProfileRow(
        **_known_fields(name, spec, spec.device), status=end.status, error=f"{end.error} (when tried again, too)"
    )


def _known_fields(name: ModelName, spec: ProfileSpec, device: str) -> dict[str, Any]:
    """Return the fields of a row that are known before anything is counted."""
    fields: dict[str, Any] = {
        "library": name.library,
        "model": name.model,
        "counter": spec.counter,
        "device": spec.device,
        "device_used": device,
        "batch_size": spec.batch_size[0],
        "precision": spec.precision,
        **{option: getattr(spec, option) for option in OPTIONS},
    }
    if spec.image_size:
        fields["image_size"] = format_image_size(spec.image_size[0])
    return fields


def _steps(name: ModelName, spec: ProfileSpec, device: str, build: Builder) -> Iterator[dict[str, Any]]:
    """Yield the fields of a row step by step, so that earlier ones remain if a later step fails."""
    (batch_size,) = spec.batch_size
    (image_size,) = spec.image_size or (None,)
    about = {"batch_size": batch_size, "image_size": image_size, "precision": spec.precision}
    wanted = Wanted.of(spec, name, device=device, **about)
    built = build(name, wanted)
    yield _description(built) | _parameters(built)
    counted = None
    if spec.counter != "fvcore":
        with torch.no_grad():
            counted = flops.count(built.model, built.inputs, run=lambda: library.run(name, built))
        yield _costs(built, counted, batch_size)
        if spec.detail:
            yield {"modules": _modules(built, counted, batch_size)}
    if spec.training:
        yield _training(name, wanted, build, _notes(counted))
    if spec.counter != "torch":
        yield fvcore_counter.columns(built, counted, batch_size)


def _description(built: Built) -> dict[str, Any]:
    return {
        "family": built.family,
        "image_size": format_image_size(built.image_size),
        "test_size": format_image_size(built.test_size) if built.test_size not in (None, built.native_size) else "",
        "context_length": built.context_length,
        "image_width": built.image_width,
        "text_width": built.text_width,
        "embed_dim": built.embed_dim,
        "weights_mb": tensor_bytes(state(built.model)) / 1e6,
    }


def _parameters(built: Built) -> dict[str, float]:
    """Return millions of parameters, in total and per tower."""
    towers = {name: _numel(built.model.get_submodule(path).parameters()) for name, path in built.towers.items()}
    return _by_part("mparams", _numel(built.model.parameters()), towers, 1e6) | {
        "trainable_mparams": _numel(p for p in built.model.parameters() if p.requires_grad) / 1e6,
        "mbuffers": _numel(built.model.buffers()) / 1e6,
    }


def _by_part(field: str, total: int, towers: Mapping[str, int], unit: float) -> dict[str, float]:
    """Return the fields with a count, in this unit, of the model, of each tower, and of what is in neither."""
    other = {f"other_{field}": total - sum(towers.values())}
    counts = {field: total, **{f"{name}_{field}": count for name, count in towers.items()}, **other}
    return {name: count / unit for name, count in counts.items()}


def _numel(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _costs(built: Built, counted: Count, batch_size: int) -> dict[str, Any]:
    """Return counts per sample, and traffic and memory of the batch."""
    towers = {name: counted.modules[path] for name, path in built.towers.items()}
    flops_of = {name: tally.flops for name, tally in towers.items()}
    activations_of = {name: tally.activations for name, tally in towers.items()}
    return {
        **_by_part("gflops", counted.flops, flops_of, 1e9 * batch_size),
        **_by_part("gmacs", counted.flops, flops_of, 2e9 * batch_size),
        **_by_part("macts", counted.activations, activations_of, 1e6 * batch_size),
        "traffic_mb": counted.traffic_bytes / 1e6,
        "intensity": counted.intensity,
        "inference_peak_mb": memory.inference_peak_bytes(built.model, built.inputs, counted) / 1e6,
        "complete": not counted.unknown,
        "uncounted": counted.uncounted,
        "operators": counted.operators,
        "notes": _notes(counted),
    }


def _notes(counted: Count | None) -> tuple[str, ...]:
    if counted is None:
        return ()
    names = ", ".join(f"{operator} ({plural(calls, 'call')})" for operator, calls in counted.unknown.items())
    return (*([f"work of unknown size is missing: {names}"] if names else []), *counted.notes)


def _modules(built: Built, counted: Count, batch_size: int) -> tuple[ModuleCount, ...]:
    """Return every module that was called, outer modules first."""
    return tuple(
        ModuleCount(
            path=path,
            type=type(module).__name__,
            mparams=_numel(module.parameters()) / 1e6,
            gmacs=counted.modules[path].flops / batch_size / 2e9,
            macts=counted.modules[path].activations / batch_size / 1e6,
            calls=max(counted.modules[path].calls, 1),
            output="×".join(map(str, counted.modules[path].output)),
            kernel=_sides(module, "kernel_size"),
            stride=_sides(module, "stride"),
        )
        for path, module in built.model.named_modules()
        if path in counted.modules
    )


def _sides(module: torch.nn.Module, name: str) -> str:
    """Return the kernel size or stride of a module as text, such as `7×7`; empty if it has none."""
    value = getattr(module, name, None) if hasattr(module, "kernel_size") else None
    if value is None:  # also the stride of an LPPool2d that was given none
        return ""
    return "×".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def memory_notes(model: torch.nn.Module) -> tuple[str, ...]:
    """Return what to say about the counted memory of training of a model."""
    return (LOW_MEMORY,) if any(isinstance(module, torch.nn.LSTM) for module in model.modules()) else ()


def _training(name: ModelName, wanted: Wanted, build: Builder, notes: tuple[str, ...]) -> dict[str, Any]:
    """Return the peak memory of training and its part per sample, or a note if the model cannot train.

    It is always estimated on meta, so no device needs that much memory.
    """
    built = build(name, replace(wanted, device="meta"))
    try:
        peak_mb = memory.training_peak_bytes(built.model, built.inputs) / 1e6
        kept_mb = memory.kept_bytes(built.model, built.inputs) / wanted.batch_size / 1e6
        notes = (*notes, *memory_notes(built.model))
        return {"training_peak_mb": peak_mb, "kept_mb": kept_mb, "notes": notes}
    except Exception as error:  # noqa: BLE001 - as above; the other counts are valid without it
        return {"notes": (*notes, f"no training peak: {one_line(error)}")}
