"""Return results as tables. The page, the CSV and the command line show these same frames."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from engine.results import (
    BenchmarkRow,
    Contention,
    Device,
    DeviceRow,
    Machine,
    ModuleCount,
    OperatorCount,
    ProfileRow,
    RecurrentRow,
    Row,
)
from engine.results.answers import Hit
from engine.results.clip import EvaluateRow, TrainRow
from engine.roots import open_within
from engine.specs.fields.building import OPTIONS
from engine.store.model import Run
from engine.words import in_words, plural

LEFT_OUT = {"operators"}  # operators have their own table
NULLABLE: dict[Any, str] = {float | None: "float", int | None: "Int64", bool | None: "boolean"}
"""The type of a column by that of its field, because a column without values would have none of its own."""
_WHAT = ("library", "model", "status", "error", "family")
_BENCHMARK = (
    *(*_WHAT, "tower", "purpose", "mode", "variant", "baseline", "device", "device_name", "threads"),
    *("batch_size_requested", "batch_size", "image_size", "context_length", *OPTIONS),
    *"precision dtype autocast_dtype tf32 memory_format cudnn_benchmark deterministic cache optimizer".split(),
    *"latency_ms p90_ms p95_ms p99_ms mean_ms std_ms back_to_back_ms samples_per_s".split(),
    *("forward_ms", "backward_ms", "optimizer_ms"),
)
_RECURRENT = (
    *_WHAT,
    *"network baseline seq_length mini_batch input_size hidden_size num_layers proj_size bidirectional".split(),
    *"batch_first image_size precision tf32 cudnn_benchmark device device_name threads".split(),
    *"forward_ms forward_mean_ms forward_std_ms forward_p90_ms forward_spread".split(),
    *"backward_ms backward_mean_ms backward_std_ms backward_p90_ms backward_spread".split(),
)
_TRAIN = (
    *_WHAT[:4],
    *"device precision epoch step samples_seen train_loss clip_val_loss zeroshot_top1 zeroshot_top5".split(),
)
"""The first columns of each kind of table: what was done, then the main values. All other fields follow."""
ENVIRONMENT = ("host", "platform", "driver", "variables", "seed", "date")
"""Fields of a run's environment that its rows do not have. Versions and the GPU's settings are added to them."""

_PARAMETERS = ["mparams", "image_mparams", "text_mparams"]
_HEAD = ["model", "image_size", "image_width", "text_width", "embed_dim", *_PARAMETERS]
REFERENCE: dict[Literal["torch", "fvcore"], list[str]] = {
    "torch": [*_HEAD, "gflops", "image_gflops", "text_gflops"],
    "fvcore": [*_HEAD, "gmacs", "macts", "image_gmacs", "image_macts", "text_gmacs", "text_macts"],
}
"""Columns of open_clip's own profiler, in its order, by counter."""


def _flat(rows: Iterable[Row], kind: type[Row], first: Sequence[str]) -> pd.DataFrame:
    """Return a line per row and a column per field: first those of `first`, then the others, then those of contention.

    kind: the class of the rows. Lists are joined by semicolons; dictionaries, and lists of them, are JSON.
    """
    columns = [name for name in dict.fromkeys([*first, *kind.model_fields]) if name not in {"contention", *LEFT_OUT}]
    contended = list(Contention.model_fields) if "contention" in kind.model_fields else []
    records = []
    for row in rows:
        record = row.model_dump(mode="json", exclude=LEFT_OUT)
        contention = record.pop("contention", None) or {}
        records.append({name: _cell(value) for name, value in record.items()} | contention)
    frame = pd.DataFrame(records, columns=[*columns, *contended])
    annotated = ((name, field.annotation) for name, field in kind.model_fields.items())
    types = {name: NULLABLE[annotation] for name, annotation in annotated if annotation in NULLABLE}
    return frame.astype(dict.fromkeys(contended, "float") | types)


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        if value and isinstance(value[0], dict):
            return json.dumps(value)
        return "; ".join(map(str, value))
    if isinstance(value, dict):
        return json.dumps(value) if value else ""
    return value


benchmark = partial(_flat, kind=BenchmarkRow, first=_BENCHMARK)
recurrent = partial(_flat, kind=RecurrentRow, first=_RECURRENT)
device = partial(_flat, kind=DeviceRow, first=("model",))
train = partial(_flat, kind=TrainRow, first=_TRAIN)
"""Return every value of every row, in the given order: a line per variant, runner, operation or epoch."""


def profile(rows: Iterable[ProfileRow]) -> pd.DataFrame:
    """Return every value of every row, sorted by cost, smallest first; failed models last."""
    frame = _flat(rows, ProfileRow, ())
    frame["cost"] = frame["gmacs"].fillna(frame["fvcore_gmacs"])
    return frame.sort_values(["cost", "mparams", "model", "batch_size"], ignore_index=True).drop(columns="cost")


def reference(rows: Iterable[ProfileRow], counter: Literal["torch", "fvcore"]) -> pd.DataFrame:
    """Return exactly the columns, order, rounding and sorting of open_clip's own profiler.

    Its `image_size` is the height in pixels. A failed model keeps its line, without values.
    """
    frame = profile(rows)
    frame["image_size"] = [int(size.partition("x")[0]) if size else None for size in frame["image_size"]]
    if counter == "fvcore":
        for name in ("gmacs", "macts", "image_gmacs", "image_macts", "text_gmacs", "text_macts"):
            frame[name] = frame[f"fvcore_{name}"]
    frame = frame[REFERENCE[counter]].round(2)
    whole = ["image_size", "image_width", "text_width", "embed_dim"]
    frame = frame.astype(dict.fromkeys(whole, "Int64"))
    leading = "gflops" if counter == "torch" else "gmacs"
    return frame.sort_values([leading, "mparams", "model"], ignore_index=True)


def evaluate(rows: Iterable[EvaluateRow]) -> pd.DataFrame:
    """Return every value of every row, in the given order. Recalls at other ranks get their own columns."""
    rows = list(rows)
    frame = _flat(rows, EvaluateRow, (*_WHAT[:2], "checkpoint", "data", "task", "status", "error"))
    recalls = pd.DataFrame([row.recalls for row in rows], dtype=float)
    return pd.concat([frame.drop(columns="recalls"), recalls], axis="columns")


def with_environment(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Add a run's environment to each of its rows, so that a saved file is complete without the run."""
    environment = run.environment
    facts = {name: getattr(environment, name) if environment else None for name in ENVIRONMENT}
    for name in frame.columns.intersection(["host", "date"]):  # rows of other nodes and attempts have their own
        facts[name] = frame[name].where(frame[name] != "", facts[name])
    nested = {name: json.dumps(getattr(environment, name)) if environment else "" for name in ("versions", "gpu")}
    return frame.assign(**facts, **nested)


def own_sizes(catalogue: pd.DataFrame) -> pd.DataFrame:
    """Return the first row of each model, that of its own image size, by its qualified name."""
    return catalogue.drop_duplicates("name").set_index("name")


def towers(costs: Mapping[Any, Any]) -> pd.DataFrame:
    """Return parameters, MACs and activations of each tower and of the whole. Columns: tower, mparams, gmacs, macts.

    costs: the fields of a ProfileRow, or a row of the catalogue. A tower without costs has no line.
    """
    quantities = ["mparams", "gmacs", "macts"]
    prefixes = {"image": "image_", "text": "text_", "other": "other_", "total": ""}
    lines = [[costs.get(f"{prefix}{quantity}") for quantity in quantities] for prefix in prefixes.values()]
    frame = pd.DataFrame(lines, index=list(prefixes), columns=quantities, dtype=float)
    return frame[frame.gt(0).any(axis=1)].reset_index(names="tower")


def operators(row: ProfileRow) -> pd.DataFrame:
    """Return a line per operator kind, unknown work first, then by MACs: per sample, but bytes of the whole batch."""
    counts = pd.DataFrame([count.model_dump() for count in row.operators], columns=list(OperatorCount.model_fields))
    counts = counts.astype(dict.fromkeys(("flops", "activations", "read_bytes", "written_bytes"), float))
    frame = counts.assign(
        gmacs=counts["flops"] / 2e9 / row.batch_size,
        share=100 * counts["flops"] / (counts["flops"].sum() or 1),
        macts=counts["activations"] / 1e6 / row.batch_size,
        read_mb=counts["read_bytes"] / 1e6,
        written_mb=counts["written_bytes"] / 1e6,
        unknown=counts["work"] == "unknown",  # operators that make a count incomplete come first
    )
    frame = frame.sort_values(["unknown", "gmacs", "read_mb"], ascending=False, ignore_index=True)
    return frame[["operator", "calls", "gmacs", "share", "macts", "read_mb", "written_mb", "work"]]


def differences(row: ProfileRow) -> pd.DataFrame:
    """Return the operators for which the two counters disagree, in GMACs per sample."""
    columns = ["operator", "torch_gmacs", "fvcore_gmacs", "explanation"]
    return pd.DataFrame([item.model_dump() for item in row.differences], columns=columns)


def modules(counts: Iterable[ModuleCount]) -> pd.DataFrame:
    """Return one line per module, outermost first, with its nearest listed `parent` and its `name` relative to that.

    Values include all submodules. The whole model has path "" and no parent.
    """
    frame = pd.DataFrame([count.model_dump() for count in counts], columns=list(ModuleCount.model_fields))
    paths = set(frame["path"])
    frame["parent"] = [_parent(path, paths) for path in frame["path"]]
    frame["name"] = [
        path.removeprefix(f"{parent}.") or "model" for path, parent in zip(frame["path"], frame["parent"], strict=True)
    ]
    frame["depth"] = [path.count(".") + 1 if path else 0 for path in frame["path"]]
    return frame


def _parent(path: str, known: set[str]) -> str | None:
    """Return the path of the nearest listed module that contains this one. None for the whole model."""
    while path:
        path = path.rpartition(".")[0]
        if path in known:
            return path
    return None


RUN_COLUMNS = (
    *("id", "state", "kind", "what", "latency_ms", "flags", "zeroshot_top1"),
    *("mean_average_precision", "clip_val_loss", "train_loss"),
    *("tags", "created", "duration_s", "owner", "device", "error", "cause", "progress"),
)


def runs(runs: Iterable[Run], now: datetime | None = None) -> pd.DataFrame:
    """Return one line per run as in the list of runs. Durations are in seconds; for a running run, until now."""
    records = [
        {
            "id": run.id,
            "kind": run.kind,
            "what": run.name or run.spec.summary,
            "state": run.outcome,
            "tags": list(run.tags),
            "owner": run.owner,
            "progress": run.done / run.total if run.total else None,
            "created": run.created_at,
            "duration_s": run.seconds(now),
            "device": ", ".join(run.spec.devices),
            "cause": run.cause.value if run.cause else "",
            "error": run.error,
            "train_loss": run.results.loss,
            "clip_val_loss": run.results.held_out_loss,
            "zeroshot_top1": run.results.accuracy,
            "mean_average_precision": run.results.mean_average_precision,
            "latency_ms": run.results.latency_ms,
            "flags": in_words(run.results.flags),
        }
        for run in runs
    ]
    numbers = ["progress", "duration_s", "train_loss", "clip_val_loss", "zeroshot_top1"]
    numbers += ["mean_average_precision", "latency_ms"]
    return pd.DataFrame(records, columns=RUN_COLUMNS).astype(dict.fromkeys(numbers, float))


def read_modules(run_dir: Path, name: str) -> pd.DataFrame | None:
    """Return the modules in the detail artifact `name`, as from `modules`. None without that file, or if it is cut."""
    try:
        with open_within(run_dir / name, (run_dir.resolve(),)) as file:
            return modules(TypeAdapter(list[ModuleCount]).validate_json(file.read()))
    except (FileNotFoundError, ValidationError):
        return None


def machine_facts(machine: Machine) -> dict[str, str]:
    """Return ten facts about a machine, as text by name."""
    accelerators = [device for device in machine.devices if device.name != "cpu"]
    versions = dict(machine.versions)
    torch = versions.pop("torch", "not installed")
    drivers = sorted({device.driver for device in accelerators if device.driver})
    return {
        "Host": machine.host,
        "System": machine.platform,
        "Processor": machine.cpu,
        "Cores": f"{machine.cores or 'unknown'} physical; {plural(machine.threads, 'thread')} may be used",
        "Caches": ", ".join(f"{name} {size}" for name, size in machine.caches.items()) or "unknown",
        "Memory": f"{machine.memory_gb:g} GB",
        "Accelerators": "; ".join(map(_accelerator, accelerators)) or "none that torch can use",
        "Driver": ", ".join(drivers) or "–",
        "torch": torch,
        "Libraries": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _accelerator(device: Device) -> str:
    memory = f", {device.memory_gb:g} GB" if device.memory_gb else ""
    return f"{device.name} {device.model}{memory}"


def hits(found: Sequence[Hit]) -> pd.DataFrame:
    """Return a line per hit, the nearest first: index, source, label, similarity."""
    return pd.DataFrame([hit.model_dump() for hit in found], columns=list(Hit.model_fields))
