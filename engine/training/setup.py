"""Prepare a training: pairs and their split, schedule, model, objective and optimizer."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from engine import atomic, datasets
from engine.datasets import Pairs
from engine.measure import environment
from engine.models.clip import weights
from engine.models.clip.weights import Made
from engine.roots import Roots, expand_home, file_within, open_within
from engine.specs import Refused
from engine.specs.base import format_image_size
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields.clip import default_workers
from engine.specs.schedule import Schedule, schedule
from engine.specs.train import TrainSpec
from engine.training import objectives, optimizers, precision
from engine.training.batches import Batches, Order
from engine.training.distributed import Place
from engine.training.evaluation.encode import Reader
from engine.training.objectives import Objective
from engine.words import plural

UNREADABLE = "unreadable_{}.json"
"""Name of the record of unreadable images in a run's folder; {} is data, val_data or zeroshot_data."""
MOST_EXAMINED = 1000
"""Examine the captions of at most 1,000 pairs for their length, because tokenizing takes 0.1 ms each."""
VERIFY_S = 60
"""Open images for at most 60 s to see whether they can be read."""
NO_CLASSES = "give class folders, the class column of a CSV (csv_class_key), or shards with classes"


@dataclass(frozen=True)
class Held:
    """The pairs of a training, with class names, prompt templates and notes."""

    train: Pairs
    val: Pairs | None
    zeroshot: Pairs | None
    """Labelled data for zero-shot; None if the held-out pairs are used."""
    classes: tuple[str, ...]
    templates: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass
class Setup:
    """A training, ready for its first step."""

    spec: TrainSpec
    place: Place
    pairs: Held
    plan: Schedule
    made: Made
    network: nn.Module
    """The model as it is called: it may be compiled or wrapped in DDP."""
    objective: Objective
    optimizer: torch.optim.Optimizer
    scaler: Any
    lr: Callable[[int], float]
    batches: Batches
    reader: Reader
    roots: Roots
    """The folders that must contain a checkpoint to resume from."""

    @property
    def model(self) -> nn.Module:
        """Return the model itself, whose weights a checkpoint holds."""
        return self.made.model

    @cached_property
    def fingerprints(self) -> dict[str, Any]:
        """Return what identifies the pairs to train on and the held-out ones, for a checkpoint's manifest."""
        parts = {"train": self.pairs.train, "val": self.pairs.val}
        return {name: datasets.fingerprint(pairs) for name, pairs in parts.items() if pairs is not None}


def opener(spec: TrainSpec | EvaluateSpec, roots: Roots) -> Callable[..., Pairs]:
    """Return a function that opens pairs with the spec's settings. roots: the folders that must contain the files."""
    options = {parameter: getattr(spec, name) for parameter, name in datasets.FIELDS.items()}
    if isinstance(spec, TrainSpec):
        options["class_column"] = spec.pairs_class_key
    return partial(datasets.open_pairs, **options, roots=roots)


def named(spec: TrainSpec | EvaluateSpec, pairs: Pairs) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return class names and templates: the request's, else the data's, else open_clip's templates. Errors: Refused."""
    templates = datasets.prompts(spec.templates, pairs.templates, spec.classes)
    return datasets.class_names(spec.classes, pairs.classes), templates or weights.TEMPLATES


def readable(
    pairs: Pairs, run_dir: Path, what: str, before: str = "", roots: Roots = None
) -> tuple[Pairs, tuple[str, ...]]:
    """Return the pairs whose images can be read, and messages on the others.

    Images are opened once per run, for at most VERIFY_S, and the unreadable ones are recorded. Later attempts, other
    processes and trainings that continue from a checkpoint of this run leave out the same ones; otherwise order and
    split would differ. before: the path of that checkpoint or of its run; empty without one. roots: the folders that
    must contain the records of that run. Errors: DataProblem if no image can be read.
    """
    record = run_dir / UNREADABLE.format(what)
    path = expand_home(before)
    beside = (path, *path.parents[:2]) if before else ()
    records: list[tuple[Path, Roots]] = [(record, None), *((folder / record.name, roots) for folder in beside)]
    known_record = next((entry for entry in records if file_within(*entry)), None)
    left_out: dict[str, str]
    if known_record:
        with open_within(*known_record) as file:
            left_out = json.load(file)
    else:
        left_out = dict(datasets.summarise(pairs, examples=0, deadline_s=VERIFY_S).unreadable)
        run_dir.mkdir(parents=True, exist_ok=True)
        atomic.write(record, json.dumps(left_out))
    return datasets.readable(pairs, [index for index in range(len(pairs)) if pairs.source(index) not in left_out])


def hold(spec: TrainSpec, run_dir: Path, roots: Roots = None) -> Held:
    """Open and split the data. Errors: DataProblem; Refused if all captions are equal or class names do not fit."""
    open_pairs = opener(spec, roots)
    pairs, notes = readable(open_pairs(spec.data, samples=spec.samples), run_dir, "data", spec.resume, roots)
    notes = (*pairs.notes, *notes)
    if len(pairs) > 1 and datasets.count_distinct(pairs) == 1:
        raise Refused("all captions are equal, so pairs cannot be told apart: give data with different captions")
    given: Pairs | None = None
    if spec.val_data:
        given, val_notes = readable(open_pairs(spec.val_data), run_dir, "val_data", spec.resume, roots)
        notes = (*notes, *given.notes, *val_notes)
    train, val = datasets.hold_out(pairs, given, spec.val_fraction, spec.seed)
    notes = (*notes, *_notes_on_split(pairs, given, train, val))
    zeroshot: Pairs | None = None
    if spec.zeroshot_data:
        options: Any = {"separator": spec.csv_separator, "roots": roots}
        columns = datasets.columns_of_zeroshot(spec.zeroshot_data, spec.model_dump(), **options)
        labelled_spec = spec.model_copy(update={**columns, "data_kind": "auto", "zeroshot_data": ""})
        found = opener(labelled_spec, roots)(spec.zeroshot_data)
        zeroshot, zeroshot_notes = readable(found, run_dir, "zeroshot_data", spec.resume, roots)
        note = f"zero-shot accuracy is measured on {plural(len(zeroshot), 'image')} of {spec.zeroshot_data}"
        notes = (*notes, note, *zeroshot.notes, *zeroshot_notes)
        if warning := datasets.note_on_shared(datasets.count_shared(train, zeroshot), len(zeroshot), "zero-shot image"):
            notes = (*notes, warning)
    labelled = zeroshot or val or pairs
    classes, templates = named(spec, labelled)  # labels are indices into its classes
    if zeroshot is not None:
        _check_labels(zeroshot, classes, spec.zeroshot_data)
    classified = len(classes) > 1 and labelled.label(0) is not None
    if spec.zeroshot_frequency and (spec.csv_class_key or spec.classes or spec.templates) and not classified:
        names = labelled.classes
        reason = f"all images are of {names[0]!r}" if len(names) == 1 else f"images have no class: {NO_CLASSES}"
        notes = (*notes, f"zero-shot accuracy is not measured: {reason}")
    if classified and (warning := datasets.note_on_ids(classes)):
        notes = (*notes, warning)
    if val is not None and not (classified and spec.zeroshot_frequency):
        captions = sum(len(val.captions(index)) for index in range(len(val)))
        if warning := datasets.note_on_repeats(captions, datasets.count_distinct(val)):
            notes = (*notes, warning)
    return Held(train, val, zeroshot, classes, templates, notes)


def _notes_on_split(pairs: Pairs, given: Pairs | None, train: Pairs, val: Pairs | None) -> Iterator[str]:
    """Yield notes on pairs that the data's own split leaves unused, and on held-out images that are also trained on.

    pairs, given: the training and validation data. train, val: the parts of them that are used.
    """
    if (given is not None or val is None) and (unused := len(pairs) - len(train)):
        yield f"not used: {plural(unused, 'pair')} that the split of {pairs.name} holds out"
    if given is not None and val is not None and len(val) < len(given):
        yield f"validation uses only the pairs of {given.name} that its own split holds out: {len(val):,}"
    if val is not None and (warning := datasets.note_on_shared(datasets.count_shared(train, val), len(val))):
        yield warning


def _check_labels(pairs: Pairs, classes: tuple[str, ...], data: str) -> None:
    """Check that each image has a class with a name. Errors: Refused."""
    labels = {pairs.label(index) for index in range(len(pairs))}
    if None in labels or not classes:
        raise Refused(
            f"zero-shot needs a class for each image of {data}: give class folders, shards with classnames.txt "
            "or a CSV or Parquet with --csv-class-key"
        )
    if len(classes) == 1:
        raise Refused(f"zero-shot needs at least two classes, and {data} has only {classes[0]!r}")
    if (largest := max(label for label in labels if label is not None)) >= len(classes):
        raise Refused(f"{data} has the label {largest}, but only {len(classes)} class names: give all names")


def resolved(spec: TrainSpec, processes: int | None = None) -> TrainSpec:
    """Return the request with defaults of this machine filled in: the precision and the number of loading processes.

    processes: number of processes that train on this machine. Default: all of the request.
    """
    workers = spec.workers
    if workers is None:
        workers = default_workers(spec.devices[0], spec.data, environment.threads(), processes or spec.nproc)
    return precision.resolved(spec).model_copy(update={"workers": workers})


def prepare(spec: TrainSpec, place: Place, run_dir: Path, roots: Roots = None) -> Setup:
    """Return a training ready for its first step. Errors: Refused, DataProblem, those of building the model."""
    spec = resolved(spec)
    if ":" in place.device:
        # otherwise the thread that pins memory opens a context on the first accelerator, whoever works there
        torch.accelerator.set_device_index(place.device)
    precision.set_tf32(place.device)
    held = hold(spec, run_dir, roots)
    plan = schedule(spec, len(held.train))
    if plan.problem:
        raise Refused(f"{plural(len(held.train), 'pair')} to train on: {plan.problem}")
    precision.check(spec.precision, place.device)
    made = weights.create(spec, weights=spec.pretrained, roots=roots)
    made.notes.extend(weights.arrange(made.model, spec))
    if warning := note_on_cut_captions(held.train, made):
        made.notes.append(warning)
    made.model.to(place.device)
    teacher: nn.Module | None = None
    if spec.loss == "distill":
        sizes = {"image_size": made.image_size, "context_length": made.context_length}  # as the student's inputs
        wanted = spec.teacher.model_copy(update=sizes)
        teacher = weights.create(wanted, weights=spec.distill_pretrained, roots=roots).model
        if not spec.distill_pretrained:
            made.notes.append(f"the teacher {spec.distill_model} has random weights (set distill_pretrained)")
        teacher.to(place.device).eval().requires_grad_(requires_grad=False)
    network: nn.Module = made.model
    if place.world_size > 1:
        ids = None if place.device == "cpu" else [torch.device(place.device)]
        # without the contrastive loss, DDP would wait for the gradients of the features: this gives them zeros
        captions_alone = spec.loss == "coca" and not spec.coca_contrastive_weight
        network = DistributedDataParallel(network, device_ids=ids, find_unused_parameters=captions_alone)
    if spec.compile:
        # DDP's own splitting of the graph fails with checkpointed activations; open_clip_train does the same
        torch._dynamo.config.optimize_ddp = not spec.grad_checkpointing
        network = torch.compile(network)  # type: ignore[assignment]
    order = Order(
        count=len(held.train),
        batch_size=plan.batch_size,
        batches=plan.batches,
        seed=spec.seed,
        rank=place.rank,
        world_size=place.world_size,
        resampled=spec.resampled,
        weights=datasets.weights(held.train, spec.data_weights),
        repeat=spec.overfit,
    )
    pin = torch.device(place.device).type == "cuda"
    return Setup(
        spec=spec,
        place=place,
        pairs=held,
        plan=plan,
        made=made,
        network=network,
        objective=objectives.create(spec, made.model, rank=place.rank, world_size=place.world_size, teacher=teacher),
        optimizer=optimizers.create(made.model, spec),
        scaler=precision.scaler(spec.precision, place.device),
        lr=optimizers.learning_rate(spec, plan),
        batches=Batches(held.train, made.preprocess_train, made.tokenizer, order, workers=spec.workers or 0, pin=pin),
        reader=Reader(made, spec.precision, place.device, plan.batch_size, spec.workers or 0),
        roots=roots,
    )


def note_on_cut_captions(pairs: Pairs, made: Made) -> str:
    """Return a warning if captions have more tokens than the model's texts; empty if none has.

    The captions of at most MOST_EXAMINED pairs are examined, spread evenly over the data.
    """
    examined = range(0, len(pairs), -(-len(pairs) // MOST_EXAMINED))
    captions = [caption for index in examined for caption in pairs.captions(index)]
    length = made.tokenizer([""]).shape[1]
    tokenizer: Any = made.tokenizer
    # with room for one more token, the last one is padding, as for an empty text, unless a caption is too long
    last = tokenizer(["", *captions], context_length=length + 1)[:, -1]
    if not (cut := int((last[1:] != last[0]).sum())):
        return ""
    counted = plural(len(captions), "caption") + " examined" * (len(examined) < len(pairs))
    return f"{cut:,} of {counted} cut at {length} tokens: set a larger text length (--context-length)"


def used_settings(setup: Setup) -> dict[str, Any]:
    """Return the values that a training uses for settings that may be empty in a request, by field name."""
    spec, plan, group = setup.spec, setup.plan, setup.optimizer.param_groups[0]
    values = {name: getattr(plan, name) for name in ("batch_size", "epochs", "steps")}
    values |= {name: getattr(spec, name) for name in ("precision", "workers")}
    values |= {"threads": torch.get_num_threads(), "image_size": format_image_size(setup.made.image_size)}
    values |= {"context_length": setup.made.context_length, "train_pairs": len(setup.pairs.train)}
    values |= {"warmup_steps": plan.warmup_steps, "val_pairs": len(setup.pairs.val or ())}
    values |= dict(zip(("beta1", "beta2"), group.get("betas") or (), strict=False))
    return values | {name: group[name] for name in ("eps", "momentum") if isinstance(group.get(name), int | float)}
