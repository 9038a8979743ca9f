"""Resolve what a CLIP request refers to when it is submitted: a run's checkpoint, files below the roots."""

import json
import os
from pathlib import Path
from typing import Any

from engine.results import TrainRow
from engine.roots import Roots, expand_home, open_within, stat_within
from engine.settings import Settings
from engine.specs import EvaluateSpec, Refused, Spec
from engine.specs.clip import EMBEDDED, default_precision, same_sources, split_sources
from engine.specs.questions import Search
from engine.specs.train import TrainSpec
from engine.store import Run, Store
from engine.store.files import RunFiles

CHECKPOINTS = "checkpoints"
BEST = "best.pt"
MANIFEST = ".json"
WEIGHTS = (".pt", ".pth", ".bin", ".safetensors", ".ckpt")


def resolve(store: Store, settings: Settings, spec: Spec) -> Spec:
    """Make a request definite.

    An evaluation of run N is one of its best checkpoint, on the pairs that its training held out; so is one of a
    checkpoint of ours, by its path. The precision `auto` of a training becomes that of its device. Errors: LookupError,
    Refused.
    """
    if isinstance(spec, TrainSpec) and spec.precision == "auto":
        return _precise(store, spec)
    if not isinstance(spec, EvaluateSpec):
        return spec
    if not spec.model.isdecimal():
        found = _trained(settings, spec)
        return _updated(spec, _split(found, spec, Path(spec.checkpoint).name)) if found else spec
    run = store.run(int(spec.model))
    trained = run.spec
    if not isinstance(trained, TrainSpec):
        raise Refused(f"run {run.id} is a {run.kind}, and only a training has a model to evaluate")
    model = {
        "model": trained.model,
        "configs": trained.configs,
        "image_size": trained.image_size,
        "context_length": trained.context_length,
        "checkpoint": str(best_checkpoint(settings, run.id)),
    }
    return _updated(spec, model | _split(trained, spec, f"run {run.id}"))


def _precise(store: Store, spec: TrainSpec) -> TrainSpec:
    """Replace the precision `auto`. An accelerator that was not probed yet leaves it to the worker."""
    machine = store.machine()
    known = {device.name: device.bf16 for device in machine.devices} if machine else {}
    device = spec.devices[0]
    if device != "cpu" and device not in known:
        return spec
    return spec.model_copy(update={"precision": default_precision(device, bf16=known.get(device, False))})


def _updated(spec: EvaluateSpec, update: dict[str, Any]) -> EvaluateSpec:
    return EvaluateSpec.model_validate({**spec.model_dump(), **update})


def _trained(settings: Settings, spec: EvaluateSpec) -> TrainSpec | None:
    """Return what a checkpoint was trained by, where it lies where it may be read and its manifest tells. Errors:
    Refused."""
    if not spec.checkpoint or not _readable(settings, spec.checkpoint):
        return None
    fields = _manifest(Path(f"{expand_home(spec.checkpoint)}{MANIFEST}"), settings.roots).get("spec")
    try:
        return None if fields is None else TrainSpec.model_validate(fields)
    except ValueError as error:
        if not spec.held_out:
            return None
        whole = "give --no-held-out to evaluate on all of the data"
        raise Refused(f"the manifest of {spec.checkpoint} does not tell what was held out: {whole}") from error


def _split(trained: TrainSpec, spec: EvaluateSpec, what: str) -> dict[str, Any]:
    """Return the fields by which an evaluation holds out what a training did. what: has trained. Errors: Refused."""
    if not same_sources(trained.data, spec.data):
        return {} if spec.samples is not None else {"seed": trained.seed}
    split: dict[str, Any] = {"seed": trained.seed, "samples": trained.samples}
    if trained.val_data or not trained.val_fraction:
        if spec.held_out:
            whole = "give its val_data, other data, or --no-held-out to evaluate on what it was trained on"
            raise Refused(f"{what} has held nothing of {spec.data} out: {whole}")
        return split
    return split | {"val_fraction": trained.val_fraction, "data_kind": trained.data_kind}


def continued(path: Path) -> TrainSpec:
    """Return a request for a training that goes on from a checkpoint of ours, or from the newest in a training's
    folder.

    Errors: Refused of what has no manifest that tells what was asked for.
    """
    folder = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    manifests = [Path(f"{path}{MANIFEST}")] if path.is_file() else list(folder.glob(f"*.pt{MANIFEST}"))
    contents = [_manifest(manifest, None) for manifest in manifests if manifest.is_file()]
    if not contents:
        raise Refused(f"{path} is neither a checkpoint with its manifest ({MANIFEST}) nor a folder of such")
    newest = max(contents, key=lambda manifest: manifest.get("step", 0))
    try:
        return TrainSpec.model_validate({**newest["spec"], "resume": str(path.resolve())})
    except (KeyError, ValueError) as error:
        raise Refused(f"the manifest of {path} does not tell what was asked for: {error}") from error


def best_checkpoint(settings: Settings, run_id: int) -> Path:
    """Return a training's best checkpoint, else its newest. Errors: Refused where there is none yet."""
    folder = RunFiles(settings.runs_dir, run_id).dir / CHECKPOINTS
    if (folder / BEST).is_file():
        return folder / BEST
    steps = {path: _manifest(Path(f"{path}{MANIFEST}"), settings.roots).get("step", 0) for path in folder.glob("*.pt")}
    if not steps:
        raise Refused(f"run {run_id} has no checkpoint yet")
    return max(steps, key=lambda path: steps[path])


def check_resumable(store: Store, settings: Settings, run: Run) -> None:
    """Refuse a training that took steps and has no checkpoint: it would start again at step 0. Errors: Refused."""
    if not isinstance(run.spec, TrainSpec) or run.spec.resume:
        return
    steps = max([run.done, *(row.step for row in store.rows(run.id) if isinstance(row, TrainRow))])
    folder = RunFiles(settings.runs_dir, run.id).dir / CHECKPOINTS
    if steps and not any(Path(f"{path}{MANIFEST}").is_file() for path in folder.glob("*.pt")):
        raise Refused(
            f"run {run.id} stopped after {steps:,} steps, and {folder} has no checkpoint to continue from: the run "
            "stopped before its first one, or was imported, as bundles carry no checkpoints of an unfinished training. "
            'Train from the start as a new run ("Run again" on the page of the run), or put its checkpoints there'
        )


def _manifest(path: Path, roots: Roots) -> dict[str, Any]:
    """Return what is said of a checkpoint; nothing where that cannot be read."""
    try:
        with open_within(path, roots) as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def check_paths(settings: Settings, spec: Spec) -> None:
    """Refuse files beyond the folders from which may be read; absent and forbidden ones read alike. Errors: Refused."""
    for name in ("data", "val_data", "pretrained", "checkpoint", "distill_pretrained", "resume"):
        for path in _paths(name, getattr(spec, name, "")):
            if not _readable(settings, path):
                roots = ", ".join(str(root) for root in settings.roots)
                raise Refused(f"{name}: nothing can be read at {path!r}; what may be read lies below {roots}")


def check_again(settings: Settings, run: Run) -> None:
    """Refuse a stored run whose files may not be read, as check_paths does a new one. Errors: Refused.

    A stored run may have been imported, and links and roots may have changed since it was submitted. A training that
    has checkpoints of its own goes on from these, and needs the one it began from no more.
    """
    began = any((RunFiles(settings.runs_dir, run.id).dir / CHECKPOINTS).glob("*.pt"))
    check_paths(settings, run.spec.model_copy(update={"resume": ""}) if began else run.spec)


def _paths(name: str, given: str) -> list[str]:
    if name in ("data", "val_data"):
        return [part for part in split_sources(given) if part not in EMBEDDED]
    is_path = name == "resume" or os.sep in given or "/" in given or given.endswith(WEIGHTS)
    return [given] if given and is_path else []


def _readable(settings: Settings, given: str) -> bool:
    """Return whether there is something to read; of shards in braces, a folder for them."""
    begin, brace, _ = given.partition("{")
    path = expand_home(begin)
    path = (path if begin.endswith("/") else path.parent) if brace else path
    return stat_within(path, settings.roots) is not None


def search_question(settings: Settings, run: Run, text: str, top: int) -> Search:
    """Return the question which images of a run are nearest to a text. Errors: Refused of a run that is not an
    evaluation, of a checkpoint that is gone or lies where nothing may be read; ValidationError."""
    if not isinstance(run.spec, EvaluateSpec):
        raise Refused(f"run {run.id} is a {run.kind}, and only an evaluation's images can be searched")
    check_paths(settings, run.spec.model_copy(update={"data": EMBEDDED[0]}))  # their embeddings will do
    return Search(spec=run.spec, folder=RunFiles(settings.runs_dir, run.id).dir, text=text, top=top)
