"""Resolve the references of CLIP requests: runs to their checkpoints, and data to the pairs that were held out."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.jobs import checkpoints
from engine.jobs.named_files import check_paths, fetch_files, from_any_folder, is_readable
from engine.results.checkpoints import read_manifest
from engine.roots import expand_home
from engine.settings import Settings
from engine.specs import EvaluateSpec, Refused, Spec
from engine.specs.fields.clip import DIGITS_MODEL, EMBEDDED, default_precision, same_sources, split_sources
from engine.specs.questions import EMBEDDINGS, Match, Search
from engine.specs.train import TrainSpec
from engine.store import Run, Store
from engine.store.copies import mirror
from engine.store.files import RunFiles


def resolve(store: Store, settings: Settings, spec: Spec) -> Spec:
    """Return the request with all references replaced by definite values, and with absolute paths.

    Run N, also as a teacher, means its best checkpoint. If one of the models was trained on the data, all models are
    evaluated on the pairs that its training held out. The precision `auto` of a training becomes the default of its
    device. Errors: LookupError when there is no such run; Refused when it cannot be evaluated.
    """
    spec = from_any_folder(spec)
    fetch_files(store, settings, spec)
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
    if not checkpoint or not is_readable(settings, checkpoint):
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
    fetch_files(store, settings, subject := EvaluateSpec.model_validate(model))
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
    fetch_files(store, settings, needed)
    check_paths(settings, needed)
    return Search(spec=run.spec, folder=RunFiles(settings.runs_dir, run.id).dir, file=file, text=text, top=top)
