"""Resolve the references of a CLIP request at submission: a run's checkpoint, files below the data roots."""

import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.jobs import checkpoints
from engine.results.checkpoints import read_manifest
from engine.roots import expand_home, stat_within
from engine.settings import Settings
from engine.specs import EvaluateSpec, Refused, Spec
from engine.specs.clip import DIGITS_MODEL, EMBEDDED, default_precision, same_sources, split_sources
from engine.specs.evaluate import split_subject
from engine.specs.questions import EMBEDDINGS, Match, Search
from engine.specs.train import TrainSpec
from engine.store import Filter, Run, Store, mirror, uploads
from engine.store.files import RunFiles
from engine.words import plural, shortened

RUNS_PER_QUERY = 500
"""Run numbers in one query, because SQLite allows 1,000 conditions."""
RUN_FOLDER = re.compile(r"[1-9]\d{0,17}", re.ASCII)
WEIGHTS = (".pt", ".pth", ".bin", ".safetensors", ".ckpt")
DATA_FIELDS = ("data", "val_data", "zeroshot_data", "probe_data", "more_data")
"""Fields of specs that name data sets."""


def resolve(store: Store, settings: Settings, spec: Spec) -> Spec:
    """Return the request with all references replaced by definite values.

    Run N, also as a teacher, means its best checkpoint. If one of the models was trained on the data, all models are
    evaluated on the pairs that its training held out. The precision `auto` of a training becomes the default of its
    device. Errors: LookupError when there is no such run; Refused when it cannot be evaluated.
    """
    _fetch_files(store, settings, spec)
    for model_field, weights_field in (("distill_model", "distill_pretrained"), ("model", "pretrained")):
        if isinstance(spec, TrainSpec) and (weights := getattr(spec, weights_field)).isdecimal():
            subject = _subject(store, settings, getattr(spec, model_field), weights, held_out=False)
            update = {model_field: subject.model, weights_field: subject.checkpoint}
            spec = TrainSpec.model_validate(spec.model_dump() | update | {"configs": _configs(spec, [subject])})
    if isinstance(spec, TrainSpec) and spec.precision == "auto":
        return _with_precision(store, spec)
    return _evaluation(store, settings, spec) if isinstance(spec, EvaluateSpec) else spec


@dataclass(frozen=True)
class _Subject:
    """A model with its weights."""

    model: str
    checkpoint: str
    trainings: tuple[tuple[str, TrainSpec], ...]
    """The trainings that made its weights, the latest first, each with a name for messages."""
    fields: dict[str, Any]
    """Fields of a training's spec that its model needs; empty if the model is not given as a run."""


def _evaluation(store: Store, settings: Settings, spec: EvaluateSpec) -> EvaluateSpec:
    """Return the spec with runs replaced by their checkpoints, and with the split of the trainings."""
    subjects = [_subject(store, settings, *subject, held_out=spec.held_out) for subject in spec.subjects]
    first, *others = subjects
    # each checkpoint has its own sizes, so the sizes of one model must not be set for all
    update = {"configs": _configs(spec, subjects)} if others else dict(first.fields)
    held_out, splits = list(spec.held_out_data), dict[str, dict[str, Any]]()
    for subject in subjects:
        for training_name, training in subject.trainings:
            for data in spec.sources:
                if (split := _split(training, spec, data, training_name)) is not None:
                    splits[training_name] = split
                    held_out.append(data)
    if spec.held_out:
        _check_equal(spec, splits)
    if spec.held_out or len(spec.sources) == 1:
        update |= _split_fields(spec, splits)
    update |= {"held_out_data": tuple(dict.fromkeys(held_out))}
    lines = [f"{subject.model},{subject.checkpoint}".removesuffix(",") for subject in others]
    update |= {"model": first.model, "checkpoint": first.checkpoint, "more_models": tuple(lines)}
    return EvaluateSpec.model_validate({**spec.model_dump(), **update})


def _split_fields(spec: EvaluateSpec, splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of the split, which are equal in all trainings if held-out pairs are asked for.

    A field that the request sets stays as it is. Errors: Refused when held-out pairs are asked for, and the training
    had another value of such a field.
    """
    training_name, split = next(iter(splits.items()), ("", {}))
    changed = {name: value for name in split if (value := getattr(spec, name)) not in (spec.default(name), split[name])}
    for name, value in changed.items():
        if spec.held_out and split[name] != "auto":  # auto: the training recognised the format
            setting = f"all {name}" if split[name] is None else f"{name} {split[name]}"
            raise Refused(
                f"{training_name} was trained with {setting}, which decides the pairs that it held out: leave out "
                f"{name} {value}, or give --no-held-out"
            )
    return {**split, **changed}


def _configs(spec: EvaluateSpec | TrainSpec, subjects: Sequence[_Subject]) -> dict[str, Any]:
    """Return the configurations of all models. Errors: Refused when two with the same name differ."""
    configs = dict(spec.configs)
    for subject in subjects:
        for name, config in subject.fields.get("configs", {}).items():
            if configs.setdefault(name, config) != config:
                raise Refused(f"two models have different configurations called {name}: rename one, or use one per run")
    return configs


def _subject(store: Store, settings: Settings, model: str, checkpoint: str, *, held_out: bool) -> _Subject:
    """Return a model with its checkpoint. `model` or `checkpoint` may be the number of a training."""
    number = next((text for text in (checkpoint, model) if text.isdecimal()), "")
    if not number:
        return _Subject(model, checkpoint, _trainings(settings, checkpoint, held_out=held_out), {})
    run = store.run(int(number))
    training = run.spec
    if not isinstance(training, TrainSpec):
        raise Refused(f"run {run.id} ({run.kind}) has no model to evaluate: only a training has one")
    if model not in (number, training.model, DIGITS_MODEL):
        raise Refused(f"run {run.id} trained {training.model}, not {model}: choose {training.model} as the model")
    fields = {name: getattr(training, name) for name in ("configs", "image_size", "context_length")}
    trainings = ((f"run {run.id}", training), *_trainings(settings, training.pretrained, held_out=held_out))
    path = checkpoint if checkpoint not in ("", number) else str(checkpoints.best(settings, run))
    return _Subject(training.model, path, trainings, fields)


def _trainings(settings: Settings, checkpoint: str, *, held_out: bool) -> tuple[tuple[str, TrainSpec], ...]:
    """Return the training that wrote a checkpoint, and the trainings that its initial weights came from."""
    found: dict[str, TrainSpec] = {}
    while checkpoint not in found and (training := _training_of(settings, checkpoint, held_out=held_out)):
        found[checkpoint] = training
        checkpoint = training.pretrained
    return tuple(found.items())


def _check_equal(spec: EvaluateSpec, splits: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that one setting of each field fits all trainings and data sets. Errors: Refused."""
    for name in dict.fromkeys(name for split in splits.values() for name in split):
        values = {training_name: split.get(name) for training_name, split in splits.items()}
        if len(set(values.values())) > 1:
            texts = ", ".join(f"{training_name} {value}" for training_name, value in values.items())
            raise Refused(f"the trainings hold out different pairs ({name}: {texts}): evaluate each in its own run")
        first, value = next(iter(values.items()))
        if len(spec.sources) > 1 and name in ("samples", "csv_class_key", "data_kind") and value != getattr(spec, name):
            raise Refused(
                f"{first} was trained with {name} {value}, which would apply to every data set: evaluate "
                "its data in its own run"
            )


def _with_precision(store: Store, spec: TrainSpec) -> TrainSpec:
    """Replace the precision `auto`. For an accelerator that was not probed yet, the worker replaces it later."""
    machine = store.machine()
    bf16_by_device = {device.name: device.bf16 for device in machine.devices} if machine else {}
    device = spec.devices[0]
    if device != "cpu" and device not in bf16_by_device:
        return spec
    return spec.model_copy(update={"precision": default_precision(device, bf16=bf16_by_device.get(device, False))})


def _training_of(settings: Settings, checkpoint: str, *, held_out: bool) -> TrainSpec | None:
    """Return the spec of the training that wrote a checkpoint; None when the file or its manifest cannot be read.

    Errors: Refused when held-out pairs are asked for and the manifest has an unreadable spec.
    """
    if not checkpoint or not _readable(settings, checkpoint):
        return None
    fields = read_manifest(expand_home(checkpoint), settings.roots).get("spec")
    try:
        return None if fields is None else TrainSpec.model_validate(fields)
    except ValueError as error:
        if not held_out:
            return None
        advice = "give --no-held-out to evaluate on all of the data"
        raise Refused(f"the manifest of {checkpoint} does not say which pairs were held out: {advice}") from error


def _split(training: TrainSpec, spec: EvaluateSpec, data: str, training_name: str) -> dict[str, Any] | None:
    """Return the spec fields that hold out the same pairs as a training; None when it was not trained on the data.

    Errors: Refused when held-out pairs are asked for, and the training held out none of these data.
    """
    if not same_sources(training.data, data):
        shared = [
            part for part in split_sources(data) for other in split_sources(training.data) if same_sources(part, other)
        ]
        if shared and spec.held_out:
            raise Refused(
                f"{training_name} was trained on {training.data}, which shares {shared[0]} with {data}: evaluate that "
                "mixture, or give --no-held-out to evaluate on its training data"
            )
        return None
    trained_on_all = (spec.json_split, training.json_split) == ("train", "auto")  # `auto` trains on all of `train`
    if spec.json_split not in ("auto", training.json_split) and not trained_on_all:
        return None  # another part of a Karpathy JSON, which the training did not use
    split: dict[str, Any] = {"seed": training.seed, "samples": training.samples}
    if training.val_data or not training.val_fraction or trained_on_all:
        if spec.held_out:
            advice = "give its val_data, other data, or --no-held-out to evaluate on its training data"
            raise Refused(f"{training_name} held out no pairs of {data}: {advice}")
        return split
    if spec.held_out and spec.csv_class_key not in ("", training.pairs_class_key):
        raise Refused(
            f"{training_name} was trained without the class column {spec.csv_class_key!r}, which changes the held-out "
            "pairs: give --no-held-out, or train with the column"
        )
    classes = training.pairs_class_key if spec.held_out else spec.csv_class_key or training.pairs_class_key
    kept = {"val_fraction": training.val_fraction, "data_kind": training.data_kind, "csv_class_key": classes}
    return split | kept | {"json_split": training.json_split}


def _fetch_files(store: Store, settings: Settings, spec: Spec) -> None:
    """Fetch the files of other runs that a spec names and other machines have made. Errors: Unreachable."""
    for _, path in named_paths(spec) if settings.artifacts_url else ():
        if upload := uploads.folder_of(settings, expand_home(path)):
            uploads.fetch(settings, upload)
        run_id, name = _in_folder(settings, path)
        if run_id:
            with suppress(LookupError):
                mirror.fetch(settings, store.run(run_id), partial(_is_needed, name))


def _is_needed(name: str, file: str) -> bool:
    """Return whether to fetch `file` of a run: it is no checkpoint, or its path begins with `name`."""
    return mirror.is_light(file) or file.startswith(name)


def _in_folder(settings: Settings, text: str) -> tuple[int, str]:
    """Return the number of the run in whose folder a path lies, and the rest of the path; 0 for other paths."""
    path, runs = expand_home(text).absolute(), settings.runs_dir.absolute()
    if not path.is_relative_to(runs):
        return 0, ""
    number, _, name = path.relative_to(runs).as_posix().partition("/")
    return (int(number), name) if RUN_FOLDER.fullmatch(number) else (0, "")


def deletion_warning(store: Store, settings: Settings, run_ids: Sequence[int]) -> str:
    """Return a text that names the other runs that began from these runs; empty if there are none."""
    if not (users := _users(store, settings, run_ids)):
        return ""
    names = shortened([f"{run.kind} {run.id}" for run in users], 5)
    began = f"{plural(len(users), 'other run')} began from {'these' if len(run_ids) > 1 else 'it'}: {names}."
    keeps = "They keep their" if len(users) > 1 else "It keeps its"
    kept = f"{keeps} results and checkpoints, but cannot be run again"
    return f"{began} {kept}, and an evaluation can no longer try texts or search its images."


def _users(store: Store, settings: Settings, run_ids: Sequence[int]) -> list[Run]:
    """Return the other runs whose requests name files of these runs: trained on, resumed or evaluated from them."""
    named, found = set(run_ids), dict[int, Run]()
    for start in range(0, len(run_ids), RUNS_PER_QUERY):
        wanted = Filter(uses=tuple(run_ids[start : start + RUNS_PER_QUERY]))
        for run in store.find(wanted, limit=store.count(wanted)):
            if run.id not in named and any(_in_folder(settings, path)[0] in named for _, path in named_paths(run.spec)):
                found[run.id] = run
    return sorted(found.values(), key=lambda run: -run.id)


def share_uploads(settings: Settings, spec: Spec) -> None:
    """Copy the uploads that a spec names for other machines. Errors: Unreachable."""
    for _, path in named_paths(spec) if settings.artifacts_url else ():
        if (upload := uploads.folder_of(settings, expand_home(path))) and upload.is_dir():
            uploads.push(settings, upload)


def check_paths(settings: Settings, spec: Spec) -> None:
    """Check that all files of a spec lie below the readable roots.

    Errors: Refused, with the same message for absent and forbidden files, so that it does not reveal which files exist.
    """
    for name, path in named_paths(spec):
        if not _readable(settings, path):
            allowed = f"Readable folders (VITALS_DATA_ROOTS): {', '.join(map(str, settings.roots))}"
            why = " The run that made it may have been deleted." if _in_folder(settings, path)[0] else ""
            raise Refused(f"{name}: nothing can be read at {path!r}.{why} {allowed}")


def check_again(store: Store, settings: Settings, run: Run) -> None:
    """Check the files of a stored run as `check_paths` does for a new one. Errors: Refused, as there.

    A stored run may have been imported, and links and roots may have changed since its submission. A training with its
    own checkpoints resumes from them, so its original `resume` path is not checked.
    """
    has_checkpoints = any(path.suffix == ".pt" for path in checkpoints.versions(settings, run))
    spec = run.spec.model_copy(update={"resume": ""}) if has_checkpoints else run.spec
    _fetch_files(store, settings, spec)
    check_paths(settings, spec)


def named_paths(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the paths that a spec names, each with its field."""
    for name in (*DATA_FIELDS, "pretrained", "checkpoint", "distill_pretrained", "resume"):
        value = getattr(spec, name, "")
        for item in [value] if isinstance(value, str) else value:
            yield from ((name, path) for path in _paths(name, item))
    for line in getattr(spec, "more_models", ()):
        yield from (("more_models", path) for path in _paths("more_models", split_subject(line)[1]))


def _paths(name: str, value: str) -> list[str]:
    """Return the paths in a value of the field `name`."""
    if name in DATA_FIELDS:
        return [part for part in split_sources(value) if part not in EMBEDDED]
    is_path = name == "resume" or os.sep in value or "/" in value or value.endswith(WEIGHTS)
    return [value] if value and is_path else []


def _readable(settings: Settings, text: str) -> bool:
    """Return whether a path exists and may be read. Of a pattern such as `{000..071}.tar`, the folder is checked."""
    begin, brace, _ = text.partition("{")
    path = expand_home(begin)
    path = (path if begin.endswith("/") else path.parent) if brace else path
    return stat_within(path, settings.roots) is not None


def match_question(
    store: Store, settings: Settings, run: Run, image: bytes, texts: Sequence[str], templates: Sequence[str] = ()
) -> Match:
    """Return the question that asks how well texts fit an image, for the model of a training or an evaluation.

    The best checkpoint of a training is used. templates: as in Match.
    Errors: Refused or LookupError when there is no such model; ValidationError.
    """
    spec = run.spec
    if isinstance(spec, TrainSpec):
        spec = resolve(store, settings, EvaluateSpec(model=str(run.id), data=EMBEDDED[0]))
    if not isinstance(spec, EvaluateSpec):
        raise Refused(f"run {run.id} ({run.kind}) has no CLIP model")
    model = {name: getattr(spec, name) for name in spec.needs}
    _fetch_files(store, settings, subject := EvaluateSpec.model_validate(model))
    check_paths(settings, subject)
    return Match(spec=subject, image=b64encode(image), texts=tuple(texts), templates=tuple(templates))


def search_question(store: Store, settings: Settings, run: Run, text: str, top: int, file: str = EMBEDDINGS) -> Search:
    """Return the question that asks which images of a run are nearest to a text. file: its embeddings of images.

    Errors: Refused when the run is not an evaluation, or its checkpoint is missing or may not be read; ValidationError.
    """
    if not isinstance(run.spec, EvaluateSpec):
        raise Refused(f"run {run.id} ({run.kind}) has no images to search: only an evaluation has them")
    mirror.fetch(settings, run)
    needed = run.spec.model_copy(update={"data": EMBEDDED[0]})  # the stored embeddings replace the data
    _fetch_files(store, settings, needed)
    check_paths(settings, needed)
    return Search(spec=run.spec, folder=RunFiles(settings.runs_dir, run.id).dir, file=file, text=text, top=top)
