"""Evaluate CLIP: the task of an EvaluateSpec."""

import csv
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine import datasets
from engine.datasets import Pairs
from engine.measure import environment
from engine.models import clip_weights
from engine.results import Artifact, Event, Progress
from engine.results.clip import EvaluateRow
from engine.results.embeddings import pack_texts
from engine.roots import expand_home, file_within
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.training import checkpoints, precision
from engine.training.evaluation import classification
from engine.training.evaluation.classification import Classification
from engine.training.evaluation.encode import Encoded, Reader, classified, encode, retrieved
from engine.training.setup import named, opener, readable
from engine.training.validation import row_fields

EMBEDDINGS = "embeddings.npz"


@dataclass(frozen=True)
class Subject:
    """The encoded images and texts of an evaluation."""

    encoded: Encoded
    classes: tuple[str, ...]
    notes: list[str]
    """Grows when a probe encodes more pairs."""
    classify: Callable[[], Classification]
    probe: Callable[[], Generator[Event, None, Classification]]


def run(spec: EvaluateSpec, run_dir: Path) -> Iterator[Event]:
    """Yield the environment, the embeddings, then a row per task with its files.

    Errors: DeviceNotFound, Refused, errors of building the model.
    """
    here = environment.current(spec.device, spec.seed)
    yield here
    if spec.threads:
        torch.set_num_threads(spec.threads)
    precision.check(spec.precision, spec.device)
    begun = time.perf_counter()
    common: dict[str, Any] = {
        "library": "open_clip",
        "model": spec.model,
        "data": spec.data,
        "device": spec.device,
        "device_name": here.device_name,
        "precision": spec.precision,
    }
    subject = yield from _encoded(spec, run_dir)
    _write_embeddings(run_dir / EMBEDDINGS, subject)
    yield Artifact(name=EMBEDDINGS, kind="embeddings")
    encoded = subject.encoded
    common |= {"images": len(encoded.pairs), "captions": len(encoded.texts), "embeddings_file": EMBEDDINGS}
    for done, task in enumerate(spec.tasks, 1):
        yield Progress(done=done, total=len(spec.tasks) + 1, note=task)
        try:
            found = yield from _result(task, spec, subject, run_dir)
        except Refused as refused:
            found = {"status": "error", "error": str(refused)}
        seconds, begun = time.perf_counter() - begun, time.perf_counter()
        yield EvaluateRow.model_validate(common | {"task": task, "seconds": seconds, "notes": subject.notes} | found)
    yield Progress(done=len(spec.tasks) + 1, total=len(spec.tasks) + 1)


def _encoded(spec: EvaluateSpec, run_dir: Path) -> Generator[Event, None, Subject]:
    roots, checkpoint = Settings().roots, expand_home(spec.checkpoint)
    opened: Pairs = opener(spec, roots)(spec.data, samples=spec.samples)
    every, unreadable_notes = readable(opened, run_dir, "data", spec.checkpoint, roots)
    rest, held_out = datasets.split(every, spec.val_fraction, spec.seed)
    pairs = held_out if spec.held_out else every
    classes, templates = named(spec, every)
    torch.manual_seed(spec.seed)
    if spec.checkpoint and file_within(checkpoints.manifest_path(checkpoint), roots):
        checkpoints.verify(checkpoint, roots)
    yield from clip_weights.fetch(spec, spec.checkpoint, roots)
    made = clip_weights.create(spec, weights=spec.checkpoint, roots=roots)
    model = made.model.to(spec.device).eval()
    reader = Reader(
        transform=made.preprocess_val,
        tokenize=made.tokenizer,
        device=spec.device,
        autocast=lambda: precision.autocast(spec.precision, spec.device),
        dtype=precision.weights_dtype(spec.precision),
        batch_size=spec.batch_size,
        workers=spec.workers,
    )

    notes = [*every.notes, *unreadable_notes, *made.notes]
    if every.label(0) is not None and (warning := datasets.note_on_ids(classes)):
        notes.append(warning)

    def encoded(part: Pairs, what: str) -> Generator[Event, None, Encoded]:
        encoding = encode(model, part, reader)
        while True:
            try:
                done = next(encoding)
            except StopIteration as ended:
                found: Encoded = ended.value
                notes.extend(found.notes)
                return found
            yield Progress(done=0, total=len(spec.tasks) + 1, note=f"encoding {what}: {done} of {len(part)} images")

    found = yield from encoded(pairs, "what is evaluated")

    def probe() -> Generator[Event, None, Classification]:
        learned = yield from encoded(rest, "what the probe learns from")
        judged = found if spec.held_out else (yield from encoded(held_out, "what the probe is judged by"))
        if learned.labels is None or judged.labels is None:
            raise Refused("a linear probe needs a class per image: give class folders, or shards with classes")
        given = (learned.images, learned.labels, judged.images, judged.labels, spec.seed)
        return classification.probe(*given, classes=len(classes) or None)

    return Subject(
        encoded=found,
        classes=classes,
        notes=notes,
        classify=lambda: classified(model, found, classes, templates, reader),
        probe=probe,
    )


def _result(task: str, spec: EvaluateSpec, subject: Subject, run_dir: Path) -> Generator[Event, None, dict[str, Any]]:
    """Write the files of a task, yield them, and return the fields of its row. Errors: Refused if the data do not suit
    it."""
    if task == "retrieval":
        return row_fields(retrieved(subject.encoded, spec.batch_size)) | {"val_batch_size": spec.batch_size}
    if task == "zeroshot":
        if subject.encoded.labels is None or not subject.classes:
            raise Refused("zero-shot needs a class per image: give class folders, or shards with classes")
        found = subject.classify()
    else:
        found = yield from subject.probe()
    names = list(subject.classes) or [str(index) for index in range(len(found.confusion))]
    confusion = f"{task}_confusion.csv"
    _write_csv(
        run_dir / confusion,
        ["true", *names],
        ([name, *row] for name, row in zip(names, found.confusion.tolist(), strict=True)),
    )
    yield Artifact(name=confusion, kind="confusion")
    files = {"confusion_file": confusion}
    if task == "zeroshot":
        predictions = f"{task}_predictions.csv"
        header = ["source", "index", "true", "predicted", "confidence"]
        _write_csv(run_dir / predictions, header, _predictions(subject, found, names))
        yield Artifact(name=predictions, kind="predictions")
        files["predictions_file"] = predictions
    accuracy = {"acc1": found.acc1, "acc5": found.acc5, "mean_per_class_recall": found.mean_per_class_recall}
    return {**accuracy, **files, "classes": len(names)}


def _predictions(subject: Subject, found: Classification, names: Sequence[str]) -> Iterator[list[Any]]:
    assert subject.encoded.labels is not None
    labels, predicted = subject.encoded.labels.tolist(), found.predictions.tolist()
    for index, (true, guess, confidence) in enumerate(zip(labels, predicted, found.confidence.tolist(), strict=True)):
        yield [subject.encoded.pairs.source(index), index, names[true], names[guess], round(confidence, 4)]


def _write_csv(path: Path, header: Sequence[str], lines: Iterator[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(lines)


def _write_embeddings(path: Path, subject: Subject) -> None:
    """Write images (N, D), texts (M, D), owner (M,), labels (N,; -1 without labels), and packed texts: sources (N,),
    captions (M,), classes.
    """
    encoded, pairs = subject.encoded, subject.encoded.pairs
    captions = [caption for index in range(len(pairs)) for caption in pairs.captions(index)]
    none = torch.full((len(pairs),), -1)
    np.savez_compressed(
        path,
        images=encoded.images.numpy(),
        texts=encoded.texts.numpy(),
        owner=encoded.owner.numpy(),
        labels=(none if encoded.labels is None else encoded.labels).numpy(),
        sources=pack_texts([pairs.source(index) for index in range(len(pairs))]),
        captions=pack_texts(captions),
        classes=pack_texts(subject.classes),
    )
