"""Linear probe: how well a linear classifier, trained on a model's image features, does.

As in CLIP's paper (Radford et al. 2021, appendix A.3): logistic regression by L-BFGS, its regularisation chosen on a
part of the training side held out for it, then fitted to the whole side. The paper sweeps 96 strengths; here are five.
"""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import Tensor

from engine.specs import Refused
from engine.training.classification import Classification, judged

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Inverse regularisation, C: large, because normalised features are small numbers."""
CHOOSING = 0.2
"""The share of the training side that strengths are compared on."""
ITERATIONS = 1000
Array = NDArray[np.float64]


def probe(
    train_features: Tensor,
    train_labels: Tensor,
    features: Tensor,
    labels: Tensor,
    seed: int,
    *,
    classes: int | None = None,
) -> Classification:
    """Fit on (N, D) features with labels (N,), judge on (M, D) with labels (M,).

    classes: how many there are; told by the largest label when left out. A class that is never trained on is never
    predicted. Errors: Refused of labels that are no class, or of a training side with one class only.
    """
    count = classes or int(max(train_labels.max(), labels.max())) + 1
    known, wanted = _array(train_features), train_labels.cpu().numpy()
    if len(np.unique(wanted)) < 2:
        raise Refused("a linear probe needs two classes at least in the features it is trained on")
    model = _fitted(known, wanted, strength(known, wanted, seed))
    probabilities = torch.zeros(len(features), count, dtype=torch.float64)
    probabilities[:, torch.from_numpy(model.classes_)] = torch.from_numpy(model.predict_proba(_array(features)))
    return judged(probabilities, labels.cpu())


def strength(features: Array, labels: NDArray[np.int64], seed: int) -> float:
    """Return the best of STRENGTHS on a held-out part, stratified where classes are large enough; of equals the
    smallest."""
    least = np.unique(labels, return_counts=True)[1].min()
    enough = least >= 2 and CHOOSING * len(labels) >= len(np.unique(labels))
    fit, choose, fit_labels, choose_labels = train_test_split(
        features, labels, test_size=CHOOSING, random_state=seed, stratify=labels if enough else None
    )
    if len(np.unique(fit_labels)) < 2:
        return 1.0
    scores = [_fitted(fit, fit_labels, each).score(choose, choose_labels) for each in STRENGTHS]
    return STRENGTHS[int(np.argmax(scores))]


def _fitted(features: Array, labels: NDArray[np.int64], strength: float) -> LogisticRegression:
    with warnings.catch_warnings():
        # what so many iterations have not settled, more would change little
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, max_iter=ITERATIONS).fit(features, labels)


def _array(features: Tensor) -> Array:
    return features.detach().cpu().double().numpy()
