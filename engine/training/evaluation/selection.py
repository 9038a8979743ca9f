"""Compare the evaluated images with those of the training: did they choose its best epoch, did it hold them out?"""

from collections.abc import Iterator
from typing import Any

from engine import datasets
from engine.datasets import Pairs
from engine.results.checkpoints import BEST, read_manifest
from engine.roots import Roots, expand_home
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields.clip import same_sources, split_sources
from engine.specs.train import TrainSpec

CHOSE_THE_EPOCH = (
    "these images chose the best epoch of the training, so the results on them are slightly optimistic: evaluate on "
    "other images for a fair result"
)
TRAINED_ON = (
    "the model was trained on these images or a part of them, so the results do not hold for new images: evaluate on "
    "held-out or other images for a fair result"
)


def note_on_training(spec: EvaluateSpec, roots: Roots) -> str:
    """Return TRAINED_ON if a training of the weights used the evaluated data and they are not held out; otherwise "".

    spec: as in `note_on_selection`. A checkpoint without a manifest gets no note.
    """
    if spec.held_out:
        return ""
    evaluated = split_sources(spec.data)
    for _, _, training in _trainings(spec.checkpoint, roots):
        shared = any(same_sources(one, other) for one in evaluated for other in split_sources(training.data))
        trained_on_part = spec.json_split == "train" and training.json_split == "auto"
        if shared and (trained_on_part or spec.json_split in ("auto", training.json_split)):
            return TRAINED_ON
    return ""


def note_on_selection(spec: EvaluateSpec, roots: Roots) -> str:
    """Return CHOSE_THE_EPOCH if the checkpoint is the best of several on the evaluated images; otherwise "".

    spec: of one model and one data set, as from EvaluateSpec.part. A checkpoint whose manifest does not name the metric
    gets no note.
    """
    if expand_home(spec.checkpoint).name != BEST:
        return ""
    try:
        about, training = _manifest(spec.checkpoint, roots)
        metric, epochs = str(about["best_metric"]), int(about["epochs"])
    except (KeyError, TypeError, ValueError):
        return ""
    zeroshot = metric.startswith("zeroshot")
    every = training.zeroshot_frequency if zeroshot else training.val_frequency
    several = epochs > every or training.val_every_steps
    if metric == "train_loss" or not several or spec.json_split != training.json_split:
        return ""
    data = (training.zeroshot_data if zeroshot else "") or training.val_data
    held_out = spec.held_out and same_sources(spec.data, training.data)
    return CHOSE_THE_EPOCH if (same_sources(spec.data, data) if data else held_out) else ""


def check_held_out(spec: EvaluateSpec, evaluated: Pairs, roots: Roots) -> None:
    """Check that the evaluated pairs are those that the trainings of the weights held out.

    spec: as in `note_on_selection`. A checkpoint of an older version does not say which pairs these were.
    Errors: Refused if the data have changed since.
    """
    for checkpoint, about, training in _trainings(spec.checkpoint, roots):
        try:
            held_out = about["pairs"]["val"]["images"] if same_sources(training.data, spec.data) else None
        except (KeyError, TypeError):
            return
        if held_out not in (None, datasets.fingerprint(evaluated)["images"]):
            raise Refused(
                f"{spec.data} has changed since {checkpoint} was trained on it, so the pairs that the training held "
                "out are not known. Restore the data, or give --no-held-out to evaluate on all pairs"
            )


def _trainings(checkpoint: str, roots: Roots) -> Iterator[tuple[str, dict[str, Any], TrainSpec]]:
    """Yield the checkpoint, manifest and request of each training that made the weights, the latest first.

    Ends at a checkpoint without a readable manifest.
    """
    known = set[str]()
    while checkpoint and checkpoint not in known:
        known.add(checkpoint)
        try:
            about, training = _manifest(checkpoint, roots)
        except (KeyError, TypeError, ValueError):
            return
        yield checkpoint, about, training
        checkpoint = training.pretrained


def _manifest(checkpoint: str, roots: Roots) -> tuple[dict[str, Any], TrainSpec]:
    """Return the manifest of a checkpoint and the request of its training. Errors: KeyError, ValueError."""
    about = read_manifest(expand_home(checkpoint), roots)
    return about, TrainSpec.model_validate(about["spec"])
