"""Evaluate CLIP: the task of an EvaluateSpec."""

import csv
import logging
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine import datasets
from engine.datasets import Pairs
from engine.measure import environment
from engine.models.built import out_of_memory
from engine.models.clip import weights
from engine.results import Artifact, Event, Progress
from engine.results.checkpoints import manifest_path
from engine.results.clip import EvaluateRow
from engine.results.embeddings import write_embeddings
from engine.roots import expand_home, file_within
from engine.settings import Settings
from engine.specs import Refused, error_message
from engine.specs.base import json_object
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import EMBEDDINGS
from engine.training import checkpoints, precision
from engine.training.evaluation import classification, feature_cache
from engine.training.evaluation.classification import Classification
from engine.training.evaluation.encode import (
    Encoded,
    Reader,
    assemble,
    check_finite,
    directions,
    features,
    retrieved,
    subset,
)
from engine.training.evaluation.selection import check_held_out, note_on_selection, note_on_training
from engine.training.setup import NO_CLASSES, named, opener, readable
from engine.training.validation import metric_fields
from engine.words import plural

log = logging.getLogger("engine.training")

FEATURES = "features"
"""Folder in the runs folder with the features that later evaluations reuse."""
PROBE_DATA = "the probe's data"


def run(spec: EvaluateSpec, run_dir: Path) -> Iterator[Event]:
    """Yield the environment, then for each model on each data set the embeddings and a row per task with its files.

    With several models or data sets, an error of one becomes the status of its rows.
    Errors: Refused; errors of building a model that is evaluated on one data set alone.
    """
    # torch's default on CUDA: float32 convolutions in TF32, which keeps only 11 bits of each factor
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    machine = environment.current(spec.device, spec.seed)
    yield machine
    if spec.threads:
        torch.set_num_threads(spec.threads)
    precision.check(spec.precision, spec.device)
    parts, subject = spec.parts, ("", "")
    reader: Reader | None = None
    for number, part in enumerate(parts):
        common: dict[str, Any] = {
            "library": "open_clip",
            **{name: getattr(part, name) for name in ("model", "checkpoint", "data", "device", "precision")},
            "device_name": machine.device_name,
        }
        tasks: list[str] = list(part.tasks)
        progress = Progress(done=number * (len(tasks) + 1), total=len(parts) * (len(tasks) + 1))
        try:
            if reader is None or subject != (part.model, part.checkpoint):
                reader = None  # frees its memory: two models may not fit
                reader = yield from _load(part)
                subject = part.model, part.checkpoint
            prefix = f"{number + 1}_" if number else ""
            for event in Part(part, reader, run_dir, prefix, progress, machine.device_name).events(common):
                yield event
                if isinstance(event, EvaluateRow):
                    tasks.remove(event.task)
        except Exception as error:
            if len(parts) == 1:
                raise
            status = "out_of_memory" if out_of_memory(error) else "error"
            text = error_message(error)
            log.warning("%s on %s failed: %s", part.model, part.data, text, exc_info=not isinstance(error, Refused))
            for task in tasks:
                yield EvaluateRow.model_validate(common | {"task": task, "status": status, "error": text})
    yield Progress(done=progress.total, total=progress.total)


def _load(spec: EvaluateSpec) -> Generator[Event, None, Reader]:
    """Return a model on its device, ready to encode. Errors: those of fetching, checking and building it."""
    roots, checkpoint = Settings().roots, expand_home(spec.checkpoint)
    torch.manual_seed(spec.seed)
    if spec.checkpoint and file_within(manifest_path(checkpoint), roots):
        checkpoints.verify(checkpoint, roots)
    yield from weights.fetch(spec, spec.checkpoint, roots)
    made = weights.create(spec, weights=spec.checkpoint, roots=roots)
    made.model.to(spec.device).eval()
    return Reader(made, spec.precision, spec.device, spec.batch_size, spec.workers)


class Part:
    """The evaluation of one model on one data set."""

    def __init__(
        self, spec: EvaluateSpec, reader: Reader, run_dir: Path, prefix: str, progress: Progress, device_name: str
    ) -> None:
        """prefix: the beginning of all file names. progress: the run's progress when this part begins."""
        self.spec, self.reader, self.prefix, self.progress = spec, reader, prefix, progress
        self._run_dir, self._device_name, self._settings = run_dir, device_name, Settings()
        self._notes: list[str] = []
        """Notes of the coming rows: of all tasks, then also of the current one."""
        self._rest: Pairs
        """The pairs that a training did not hold out."""
        self._encoded: Encoded
        self._classes: tuple[str, ...]
        self._templates: tuple[str, ...]

    def events(self, common: dict[str, Any]) -> Iterator[Event]:
        """Yield the embeddings, then a row per task with its files. Errors: Refused."""
        started = time.perf_counter()
        yield from self._encode()
        file = f"{self.prefix}{EMBEDDINGS}"
        encoded, pairs = self._encoded, self._encoded.pairs
        write_embeddings(
            self._run_dir / file,
            images=encoded.images.numpy(),
            texts=encoded.texts.numpy(),
            owner=encoded.owner.numpy(),
            labels=None if encoded.labels is None else encoded.labels.numpy(),
            sources=[pairs.source(index) for index in range(len(pairs))],
            captions=[caption for index in range(len(pairs)) for caption in pairs.captions(index)],
            classes=self._classes,
        )
        yield Artifact(name=file, kind="embeddings")
        common = common | {"images": len(pairs), "captions": len(encoded.texts), "embeddings_file": file}
        shared = self._notes
        for task in self.spec.tasks:
            self._notes = [*shared]
            self.progress = self.progress.model_copy(update={"done": self.progress.done + 1, "note": task})
            yield self.progress
            try:
                found = yield from self._result(task)
            except Refused as refused:
                found = {"status": "error", "error": str(refused)}
            seconds, started = time.perf_counter() - started, time.perf_counter()
            yield EvaluateRow.model_validate(common | {"task": task, "seconds": seconds, "notes": self._notes} | found)

    def _encode(self) -> Iterator[Event]:
        """Open the data, and encode the evaluated pairs."""
        spec, roots, made = self.spec, self._settings.roots, self.reader.made
        opened: Pairs = opener(spec, roots)(spec.data, samples=spec.samples)
        rest = evaluated = opened
        self._notes += opened.notes
        if spec.held_out:  # the split is that of the training only if both leave out the same unreadable images
            usable, unreadable = readable(opened, self._run_dir, f"{self.prefix}data", spec.checkpoint, roots)
            rest, evaluated = datasets.split(usable, spec.val_fraction, spec.seed)
            check_held_out(spec, evaluated, roots)
            self._notes += unreadable
        # after the split: a training splits by the names as they are in the data
        self._rest, evaluated = (
            datasets.with_classes_split(part, spec.csv_class_separator) for part in (rest, evaluated)
        )
        self._notes += [note for note in evaluated.notes if note not in opened.notes]
        self._classes, self._templates = named(spec, evaluated)
        self._notes += made.notes
        self._notes += [note for note in (note_on_training(spec, roots), note_on_selection(spec, roots)) if note]
        if opened.label(0) is not None and (warning := datasets.note_on_ids(self._classes)):
            self._notes.append(warning)
        self._encoded = yield from self._features(evaluated, "the evaluated data")

    def _features(self, part: Pairs, what: str, *, captions: bool = True) -> Generator[Event, None, Encoded]:
        """Encode pairs, or read the features that an earlier evaluation stored. what: names the pairs, for notes."""
        made, folder, name, known = self.reader.made, self._settings.runs_dir / FEATURES, "", None
        if self.spec.reuse_features:
            built = (made.name, made.config, repr(made.preprocess_val))
            computed = (self.spec.precision, self.spec.device, self._device_name, captions)
            name = feature_cache.key(made.model, part, (built, computed), self._settings.roots)
            known = feature_cache.load(folder, name)
        if known:
            found, date = known
            self._notes.append(f"the features of {what} were computed earlier ({date}) and are reused")
        else:

            def progress(done: int) -> Progress:
                note = f"encoding {what}: {done:,} of {plural(len(part), 'image')}"
                return self.progress.model_copy(update={"note": note})

            found = yield from features(part, self.reader, progress, captions=captions)
            try:
                if name:
                    feature_cache.save(folder, name, found, spare_bytes=self._settings.min_free_gb * 1e9)
            except OSError as error:
                self._notes.append(f"the features could not be kept for reuse: {error.strerror}")
        result = assemble(part, found)
        self._notes += result.notes
        return result

    def _classifier(self) -> torch.Tensor:
        """Return the direction of each class, from its prompts, times the logit scale, as the model's loss uses it.

        Errors: Refused if a direction is not finite.
        """
        by_class = json_object(self.spec.class_prompts)
        found = self._encoded.scale * directions(self._classes, self._templates, self.reader, by_class)
        check_finite(found.T, "classes")
        return found

    def _result(self, task: str) -> Generator[Event, None, dict[str, Any]]:
        """Write the files of a task, yield them, and return the fields of its row. Errors: Refused."""
        spec, encoded = self.spec, self._encoded
        check_finite(encoded.images, "images")
        if task == "retrieval":
            check_finite(encoded.texts, "captions")
            fields = metric_fields(retrieved(encoded, spec.batch_size, spec.recall_k))
            recalls = {name: fields.pop(name) for name in list(fields) if name not in EvaluateRow.model_fields}
            distinct = datasets.count_distinct(encoded.pairs)
            batch = min(spec.batch_size, len(encoded.pairs))
            return fields | {"val_batch_size": batch, "recalls": recalls, "distinct_captions": distinct}
        more: dict[str, Any] = {}
        if task == "zeroshot":
            if encoded.targets is not None and self._classes:
                return (yield from self._average_precision(encoded.targets))
            if encoded.labels is None or not self._classes:
                raise Refused(f"zero-shot needs a class per image: {NO_CLASSES}")
            if len(self._classes) == 1:
                raise Refused(f"zero-shot needs at least two classes, and all images are of {self._classes[0]!r}")
            found = classification.results(encoded.images, encoded.labels, self._classifier())
        else:
            found, more = yield from self._probe()
        counts = Counter(self._classes)  # ImageNet has two classes named sunglasses
        names = [name if counts[name] == 1 else f"{name} ({index})" for index, name in enumerate(self._classes)]
        names, files = names or [str(index) for index in range(found.classes)], dict[str, str]()
        if found.confusion is None:
            self._notes.append(f"no confusion matrix, because it would have {found.classes:,} classes")
        else:
            lines = ([name, *row.tolist()] for name, row in zip(names, found.confusion, strict=True))
            files["confusion_file"] = self._write_csv(f"{task}_confusion", ["true", *names], lines)
            yield Artifact(name=files["confusion_file"], kind="confusion")
        if task == "zeroshot":
            header = ["source", "index", "true", "predicted", "confidence"]
            predictions = self._write_csv(f"{task}_predictions", header, self._predictions(found, names))
            yield Artifact(name=predictions, kind="predictions")
            files["predictions_file"] = predictions
        accuracy = {"acc1": found.acc1, "acc5": found.acc5, "mean_per_class_recall": found.mean_per_class_recall}
        return {**accuracy, **files, "classes": len(names), **more}

    def _probe(self) -> Generator[Event, None, tuple[Classification, dict[str, Any]]]:
        """Fit the probe, and return its classification with the fields of its row.

        Its training data are probe_data, if given; else the pairs that a training did not hold out. Without both, the
        evaluated pairs are split into training and test data. Errors: Refused.
        """
        spec, encoded = self.spec, self._encoded
        if encoded.targets is not None:
            raise Refused("a linear probe needs one class per image, and these images have several")
        if spec.probe_data:
            pairs = opener(spec, self._settings.roots)(spec.probe_data)
            self._notes += pairs.notes
            train, test = (yield from self._features(pairs, PROBE_DATA, captions=False)), encoded
        elif spec.held_out:
            train, test = (yield from self._features(self._rest, PROBE_DATA, captions=False)), encoded
        else:
            held = datasets.choose_held_out(encoded.pairs, spec.val_fraction, spec.seed)
            train, test = (subset(encoded, np.flatnonzero(part).tolist()) for part in (~held, held))
        if train.labels is None or test.labels is None:
            data = spec.data if test.labels is None else spec.probe_data or spec.data
            raise Refused(f"a linear probe needs a class per image, which {data} lacks: {NO_CLASSES}")
        labels = classification.renumbered(train.labels, train.pairs.classes, test.pairs.classes)
        images = train.images
        check_finite(images, "images to train on")
        if spec.shots:
            chosen = classification.few_shot(labels, spec.shots, spec.seed, self._classes)
            images, labels = images[chosen], labels[chosen]
        if test is not encoded:
            self._notes.append(
                f"the probe was trained on {len(images):,} images and tested on {plural(len(test.pairs), 'other')}: "
                "give probe data to test it on all"
            )

        def progress(note: str) -> Progress:
            return self.progress.model_copy(update={"note": note})

        probed = yield from classification.probe(
            *(images, labels, test.images, test.labels, spec.seed, progress),
            strengths=spec.probe_c,
            classes=len(self._classes) or None,
        )
        fields = {"images": len(test.pairs), "captions": None, "probe_images": len(images), "probe_c": probed.c}
        return probed, fields

    def _average_precision(self, targets: torch.Tensor) -> Generator[Event, None, dict[str, Any]]:
        """Write and yield the average precision of each class, and return the fields of the row. Errors: Refused."""
        precisions = classification.average_precisions(self._encoded.images, targets, self._classifier())
        counts = targets.sum(dim=0).tolist()
        lines = zip(self._classes, counts, precisions.round(6).tolist(), strict=True)
        file = self._write_csv("zeroshot_average_precision", ["class", "images", "average_precision"], lines)
        yield Artifact(name=file, kind="average_precision")
        absent = counts.count(0)
        if absent == len(counts):
            raise Refused("no image has a class")
        if absent:
            self._notes.append(f"the mean leaves out {absent:,} of {len(counts):,} classes, for lack of images")
        mean = float(np.nanmean(precisions))
        return {"mean_average_precision": mean, "average_precision_file": file, "classes": len(counts)}

    def _predictions(self, found: Classification, names: Sequence[str]) -> Iterator[list[Any]]:
        assert self._encoded.labels is not None
        labels, predicted, confidences = self._encoded.labels.tolist(), found.predictions.tolist(), found.confidence
        for index, (true, guess, confidence) in enumerate(zip(labels, predicted, confidences.tolist(), strict=True)):
            yield [self._encoded.pairs.source(index), index, names[true], names[guess], round(confidence, 4)]

    def _write_csv(self, name: str, header: Sequence[str], lines: Iterator[Sequence[Any]]) -> str:
        """Write a table, and return the name of its file."""
        file = f"{self.prefix}{name}.csv"
        with (self._run_dir / file).open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(header)
            writer.writerows(lines)
        return file
