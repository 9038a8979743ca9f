"""What a classifier has got right, and what it took for what."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.specs import Refused

TOP = 5


@dataclass(frozen=True)
class Classification:
    """Shares lie between 0 and 1."""

    acc1: float
    acc5: float | None
    """The share whose class is among the five likeliest; None of fewer than five classes."""
    mean_per_class_recall: float
    """Of the classes that occur."""
    confusion: NDArray[np.int64]
    """(C, C) how often: true classes in rows, predicted ones in columns."""
    predictions: NDArray[np.int64]
    """(N,)"""
    confidence: NDArray[np.float32]
    """(N,) the probability given to the prediction."""


def judged(probabilities: Tensor, labels: Tensor) -> Classification:
    """probabilities: (N, C). labels: (N,) int64. Errors: Refused of labels that are no class."""
    count = probabilities.shape[1]
    labels = labels.to(probabilities.device)
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= count:
        raise Refused(f"labels of {count} classes are 0 to {count - 1}, not {sorted(set(labels.tolist()))}")
    likeliest = probabilities.topk(min(TOP, count), dim=1).indices
    right = likeliest == labels[:, None]
    predictions = likeliest[:, 0]
    confusion = torch.bincount(labels * count + predictions, minlength=count**2).reshape(count, count)
    occur = confusion.sum(dim=1) > 0
    recall = confusion.diagonal()[occur] / confusion.sum(dim=1)[occur]
    return Classification(
        acc1=right[:, 0].double().mean().item(),
        acc5=right.any(dim=1).double().mean().item() if count >= TOP else None,
        mean_per_class_recall=recall.double().mean().item(),
        confusion=confusion.cpu().numpy(),
        predictions=predictions.cpu().numpy(),
        confidence=probabilities.gather(1, likeliest[:, :1])[:, 0].float().cpu().numpy(),
    )
