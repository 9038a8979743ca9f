"""Zero-shot and linear-probe classification: accuracies, recall and confusion."""

import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.results import Event
from engine.specs import Refused
from engine.specs.evaluate import STRENGTHS
from engine.words import shortened

TOP = 5
MOST_AT_ONCE = 2**24
"""Compute at most this many similarities of images and classes at once. In float32, they take 67 MB."""
MOST_CONFUSED = 5000
"""Keep no confusion matrix of more classes: with 21,841 classes it takes 3.8 GB, and its file cannot be drawn."""
Array = NDArray[np.float64]
Inputs = NDArray[np.float32]
MakeEvent = Callable[[str], Event]
"""A function that returns the event to yield, from a note."""


@dataclass(frozen=True)
class Classification:
    """Accuracies and confusion of a classification. Accuracies and recall lie between 0 and 1."""

    acc1: float
    acc5: float | None
    """Share of images whose class is among the five most likely; None with at most five classes."""
    mean_per_class_recall: float
    """Mean over the classes that occur in the labels."""
    classes: int
    """C, the number of classes."""
    confusion: NDArray[np.int64] | None
    """(C, C) number of images: true classes in rows, predicted ones in columns; None with more than MOST_CONFUSED."""
    predictions: NDArray[np.int64]
    """(N,) index of the most likely class."""
    confidence: NDArray[np.float32]
    """(N,) probability of the predicted class."""
    c: float | None = None
    """C, the inverse strength of regularisation, of a linear probe."""


def judged(probabilities: Tensor, labels: Tensor) -> Classification:
    """Return the classification with these probabilities (N, C), judged by labels (N,) int64.

    labels are not empty. Errors: Refused if a label is not the index of a class.
    """
    likeliest = probabilities.topk(min(TOP, probabilities.shape[1]), dim=1)
    return _judged(likeliest.indices, likeliest.values[:, 0], labels, probabilities.shape[1])


def _judged(likeliest: Tensor, confidence: Tensor, labels: Tensor, count: int) -> Classification:
    """Judge the most likely classes (N, TOP or fewer), the first with this confidence (N,). count: of classes."""
    labels = labels.to(likeliest.device)
    _check_labels(labels, count)
    hits = likeliest == labels[:, None]
    predictions = likeliest[:, 0]
    of_class = torch.bincount(labels, minlength=count)
    right = torch.bincount(labels[hits[:, 0]], minlength=count)
    recall = right[of_class > 0].double() / of_class[of_class > 0]
    confusion = None
    if count <= MOST_CONFUSED:
        confusion = torch.bincount(labels * count + predictions, minlength=count**2).reshape(count, count).cpu().numpy()
    return Classification(
        acc1=hits[:, 0].double().mean().item(),
        acc5=hits.any(dim=1).double().mean().item() if count > TOP else None,
        mean_per_class_recall=recall.mean().item(),
        classes=count,
        confusion=confusion,
        predictions=predictions.cpu().numpy(),
        confidence=confidence.float().cpu().numpy(),
    )


def _check_labels(labels: Tensor, count: int) -> None:
    if invalid := [str(label) for label in sorted(set(labels.tolist())) if not 0 <= label < count]:
        raise Refused(f"Labels must be 0 to {count - 1}, but these are not: {shortened(invalid)}.")


def average_precisions(image_features: Tensor, targets: Tensor, classifier: Tensor) -> Array:
    """Return the average precision of each class, (C,) float64, by scikit-learn; NaN for a class without images.

    image_features: (N, D), normalised. targets: (N, C) bool, the classes of each image. classifier: (D, C).
    """
    from sklearn.metrics import average_precision_score

    similarities, wanted = _array(image_features.float() @ classifier.to(image_features.device)), targets.cpu().numpy()
    precisions = np.full(wanted.shape[1], np.nan)
    for index in np.flatnonzero(wanted.any(axis=0)):
        precisions[index] = average_precision_score(wanted[:, index], similarities[:, index])
    return precisions


def results(image_features: Tensor, labels: Tensor, classifier: Tensor) -> Classification:
    """Return the zero-shot classification of images.

    image_features: (N, D), normalised. labels: (N,) int64. classifier: (D, C), the directions of the classes times the
    model's logit scale, which changes confidences, not predictions. Errors: those of `judged`.
    """
    classifier, count = classifier.to(image_features.device).float(), classifier.shape[1]
    likeliest, confidence = [], []
    for features in torch.split(image_features.float(), max(1, MOST_AT_ONCE // count)):
        logits = features @ classifier
        # of logits, because in float32 the probabilities of all unlikely classes would be 0, and their order arbitrary
        best = logits.topk(min(TOP, count), dim=1)
        likeliest.append(best.indices)
        confidence.append(torch.softmax(logits, dim=1).amax(dim=1))
    return _judged(torch.cat(likeliest), torch.cat(confidence), labels, count)


CHOOSING = 0.2
"""Share of the training pairs that is held out to choose the strength."""
ITERATIONS = 1000
"""Most iterations of a fit. More would change little."""


def probe(
    train_features: Tensor,
    train_labels: Tensor,
    features: Tensor,
    labels: Tensor,
    seed: int,
    event: MakeEvent,
    *,
    strengths: Sequence[float] = STRENGTHS,
    classes: int | None = None,
) -> Generator[Event, None, Classification]:
    """Fit a linear probe on features (N, D) with labels (N,), and judge it on features (M, D) with labels (M,).

    strengths: values of C; the one that `strength` returns is used. classes: number of classes; the largest label plus
    1 if left out. A class without training pairs is never predicted. Yields `event(note)` before each fit.
    Errors: Refused if a label is not the index of a class, or if the training pairs have only one class.
    """
    count = classes or int(max(train_labels.max(), labels.max())) + 1
    _check_labels(train_labels, count)
    # in float32, as CLIP's features are: a fit takes half the time of one in float64
    inputs, wanted = train_features.detach().cpu().float().numpy(), train_labels.cpu().numpy()
    if len(np.unique(wanted)) < 2:
        raise Refused("a linear probe needs at least two classes in its training data")
    chosen = yield from strength(inputs, wanted, seed, event, strengths)
    yield event(f"fitting the linear probe to all its data (C = {chosen:g})")
    model = _fit(inputs, wanted, chosen)
    probabilities = torch.zeros(len(features), count, dtype=torch.float64)
    probabilities[:, torch.from_numpy(model.classes_)] = torch.from_numpy(model.predict_proba(_array(features)))
    return replace(judged(probabilities, labels.cpu()), c=chosen)


def few_shot(labels: Tensor, shots: int, seed: int, names: Sequence[str] = ()) -> Tensor:
    """Return the indices of `shots` pairs of each class, drawn with the seed, ascending. labels: (N,) int64.

    names: class names, for the error. Errors: Refused if a class has fewer pairs.
    """
    numbers, counts = torch.unique(labels, return_counts=True)
    if (counts < shots).any():
        counted = zip(numbers.tolist(), counts.tolist(), strict=True)
        few = [f"{names[n] if n < len(names) else f'class {n}'} ({count})" for n, count in counted if count < shots]
        raise Refused(
            f"{shots} shots need {shots} training images per class; these classes have fewer: {shortened(few)}"
        )
    order = torch.from_numpy(np.random.RandomState(seed).permutation(len(labels)))  # the same on every machine
    by_class = torch.split(order[labels[order].argsort(stable=True)], counts.tolist())
    return torch.cat([indices[:shots] for indices in by_class]).sort().values


def renumbered(labels: Tensor, classes: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Convert labels from indices of `classes` to indices of `wanted`. Errors: Refused if `wanted` lacks a class."""
    if not classes or not wanted or classes == wanted:
        return labels
    places = {name: index for index, name in reversed([*enumerate(wanted)])}  # the first of equal names
    if unknown := [name for name in classes if name not in places]:
        raise Refused(f"the probe's data have classes that the evaluated data lack: {shortened(unknown)}")
    return torch.tensor([places[name] for name in classes])[labels]


def strength(
    features: Inputs, labels: NDArray[np.int64], seed: int, event: MakeEvent, strengths: Sequence[float] = STRENGTHS
) -> Generator[Event, None, float]:
    """Return the strength with the best accuracy on a held-out part, the smallest one if several are equal.

    The part is stratified if each class has enough pairs. If the rest has only one class, strengths cannot be compared,
    and the middle one is returned. Yields `event(note)` before each fit.
    """
    if len(strengths) == 1:
        return strengths[0]
    smallest_class = np.unique(labels, return_counts=True)[1].min()
    can_stratify = smallest_class >= 2 and CHOOSING * len(labels) >= len(np.unique(labels))
    from sklearn.model_selection import train_test_split

    fit, choose, fit_labels, choose_labels = train_test_split(
        features, labels, test_size=CHOOSING, random_state=seed, stratify=labels if can_stratify else None
    )
    if len(np.unique(fit_labels)) < 2:
        return strengths[len(strengths) // 2]
    scores = []
    for number, value in enumerate(strengths, 1):
        yield event(f"choosing C of the linear probe: fit {number} of {len(strengths)} (C = {value:g})")
        scores.append(_fit(fit, fit_labels, value).score(choose, choose_labels))
    return strengths[int(np.argmax(scores))]


def _fit(features: Inputs, labels: NDArray[np.int64], strength: float) -> Any:
    """Return a scikit-learn LogisticRegression. It is imported here, because the warm process must not load it."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    # gradients shrink with the number of classes: with scikit-learn's 1e-4, a fit of 1,000 classes would end untrained
    tolerance = 1e-3 / max(10, len(np.unique(labels)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # after ITERATIONS
        return LogisticRegression(C=strength, max_iter=ITERATIONS, tol=tolerance).fit(features, labels)


def _array(features: Tensor) -> Array:
    return features.detach().cpu().double().numpy()
