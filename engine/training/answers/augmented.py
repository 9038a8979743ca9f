"""Augment some images as a training does. Answers `Augment` questions."""

from base64 import b64encode
from io import BytesIO

import numpy as np
import torch
from torchvision.transforms.functional import to_pil_image

from engine.models.clip import weights
from engine.results.answers import Augmented
from engine.settings import Settings
from engine.specs.questions import Augment
from engine.training.batches import Drawn
from engine.training.setup import opener

IMAGES, EPOCHS = 2, 4
"""Number of images, and of augmented versions of each."""


def answer(question: Augment) -> Augmented:
    """Return IMAGES images, each as augmented in the first EPOCHS epochs. Errors: DataProblem; those of `sketch`."""
    spec, roots = question.spec, Settings().roots
    pairs = opener(spec, roots)(spec.data, samples=spec.samples)
    model, _ = weights.sketch(spec, weights=spec.pretrained, batch_size=1, roots=roots)
    preprocess = weights.preprocessing(model, spec)
    transform = weights.train_transform(preprocess, spec)
    drawn = Drawn(pairs, transform, lambda texts: torch.zeros(len(texts), 1), spec.seed)
    mean, std = (torch.tensor(preprocess[name])[:, None, None] for name in ("mean", "std"))
    contents = []
    for index in np.linspace(0, len(pairs) - 1, IMAGES).astype(int).tolist():
        for epoch in range(EPOCHS):
            file = BytesIO()
            to_pil_image((drawn[epoch, index][0] * std + mean).clamp(0, 1)).save(file, "PNG")
            contents.append(b64encode(file.getvalue()).decode())
    return Augmented(images=tuple(contents))
