"""Zero-shot classification: images by the names of classes alone, in prompts."""

from collections.abc import Callable, Sequence
from functools import partial

import open_clip
import torch
from torch import Tensor, nn

from engine.training.classification import Classification, judged

SCALE = 100.0
"""What cosines are multiplied by before the softmax, as open_clip does; it moves confidences, not predictions."""


def classifier(
    model: nn.Module,
    tokenize: Callable[[list[str]], Tensor],
    classes: Sequence[str],
    templates: Sequence[str],
    *,
    device: str,
    batch_size: int,
) -> Tensor:
    """Return a direction for each class, (D, C) float32: its prompts' features averaged, then normalised.

    templates: prompts with {} for the name. model: in evaluation mode. batch_size: prompts per forward pass, at least
    those of one class.
    """
    # open_clip would call str.format, which fails on other braces
    prompts = [partial(template.replace, "{}") for template in templates]
    weights: Tensor = open_clip.build_zero_shot_classifier(
        model,
        tokenize,
        classes,
        prompts,
        num_classes_per_batch=max(1, batch_size // len(templates)),
        device=device,
    )
    return weights.float()


def results(image_features: Tensor, labels: Tensor, classifier: Tensor) -> Classification:
    """image_features: (N, D), normalised. labels: (N,) int64. classifier: (D, C). Errors: those of judged."""
    logits = SCALE * image_features.float() @ classifier.to(image_features.device).float()
    # in float32 the unlikely classes would all be 0, and which of them is among the first five left to chance
    return judged(torch.softmax(logits.double(), dim=1), labels)
