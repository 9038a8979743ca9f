"""Find out whether the evaluated images also chose the evaluated weights among the epochs of a training."""

from engine.roots import Roots, expand_home
from engine.specs.clip import same_sources
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.training import checkpoints

CHOSE_THE_EPOCH = (
    "these images chose the best epoch of the training, so the results on them are slightly optimistic: evaluate on "
    "other images for a fair result"
)


def note_on_selection(spec: EvaluateSpec, roots: Roots) -> str:
    """Return CHOSE_THE_EPOCH if the checkpoint is the best of several on the evaluated images; otherwise "".

    spec: of one model and one data set, as from EvaluateSpec.part. A checkpoint whose manifest does not name the metric
    gets no note.
    """
    path = expand_home(spec.checkpoint)
    if path.name != checkpoints.BEST:
        return ""
    about = checkpoints.about(path, roots)
    try:
        training = TrainSpec.model_validate(about["spec"])
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
