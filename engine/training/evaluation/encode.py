"""One pass of a model over held-out pairs: features first, then all that is told from them."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from engine import datasets
from engine.datasets import Pairs, Unreadable
from engine.training.batches import Tokenize, Transform
from engine.training.evaluation import classification, retrieval
from engine.training.evaluation.classification import Classification
from engine.training.objectives import caption_loss

Ticks = Generator[int, None, "Encoded"]
Loaded = tuple[Tensor, list[int]]
"""(B, 3, H, W), and the indices of the pairs they are the images of."""


@dataclass(frozen=True)
class Reader:
    """How a model is fed: what makes tensors of images and texts, and where they are computed in what precision."""

    transform: Transform
    tokenize: Tokenize
    device: str
    autocast: Callable[[], AbstractContextManager[Any]]
    dtype: torch.dtype | None = None
    """Of images, where the model's weights are in half precision."""
    batch_size: int = 64
    workers: int = 0

    def images(self, images: Tensor) -> Tensor:
        """On the device, in its data type."""
        return images.to(device=self.device, dtype=self.dtype, non_blocking=True)


@dataclass(frozen=True)
class Encoded:
    """Normalised features, on the CPU in float32."""

    pairs: Pairs
    """What they are of: all that were asked for whose images could be read."""
    notes: tuple[str, ...]
    """What to tell of the others."""
    images: Tensor
    """(N, D)"""
    texts: Tensor
    """(M, D), one of each caption."""
    owner: Tensor
    """(M,) int64: which image a caption belongs to."""
    labels: Tensor | None
    """(N,) int64, where the pairs have labels."""
    scale: float
    """What cosines are multiplied by before the loss."""


class _Images(Dataset[Loaded]):
    def __init__(self, pairs: Pairs, transform: Transform) -> None:
        self._pairs, self._transform = pairs, transform

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> Loaded:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> Loaded:
        """Return a batch at once, as DataLoader asks for it."""
        found = {}
        for index in indices:
            with suppress(Unreadable):
                found[index] = self._transform(self._pairs.image(index))
        return (torch.stack([*found.values()]) if found else torch.empty(0)), [*found]


def encode(model: nn.Module, pairs: Pairs, reader: Reader) -> Ticks:
    """Features of all images and captions. Yields the number of images done after each batch, to be stopped by.

    An image that cannot be read is left out, with its captions. Errors: DataProblem where none can.
    """
    was_training = model.training
    model.eval()
    try:
        distinct = list(dict.fromkeys(_captions(pairs)[0]))
        encoded: list[Tensor] = []
        for start in range(0, len(distinct), reader.batch_size):
            encoded.append(encode_texts(model, distinct[start : start + reader.batch_size], reader))
            yield 0
        images: list[Tensor] = []
        read: list[int] = []
        for batch, indices in _loaded(pairs, reader):
            images.append(encode_images(model, batch, reader))
            read += indices
            yield len(read)
    finally:
        model.train(was_training)
    pairs, notes = datasets.readable(pairs, read)
    texts, owner = _captions(pairs)
    place, features = {text: index for index, text in enumerate(distinct)}, torch.cat(encoded)
    labels = [pairs.label(index) for index in range(len(pairs))]
    return Encoded(
        pairs=pairs,
        notes=notes,
        images=torch.cat(images),
        texts=features[torch.tensor([place[text] for text in texts])],
        owner=torch.tensor(owner),
        labels=None if any(label is None for label in labels) else torch.tensor(labels),
        scale=float(model.logit_scale.detach().exp()),  # type: ignore[operator]
    )


@torch.no_grad()
def encode_images(model: nn.Module, images: Tensor, reader: Reader) -> Tensor:
    """(N, 3, H, W) to (N, D), normalised, on the CPU in float32."""
    with reader.autocast():
        found: Tensor = model.encode_image(reader.images(images), normalize=True)  # type: ignore[operator]
    return found.float().cpu()


@torch.no_grad()
def encode_texts(model: nn.Module, texts: Sequence[str], reader: Reader) -> Tensor:
    """(len(texts), D), normalised, on the CPU in float32."""
    found = []
    for start in range(0, len(texts), reader.batch_size):
        tokens = reader.tokenize(list(texts[start : start + reader.batch_size])).to(reader.device)
        with reader.autocast():
            found.append(model.encode_text(tokens, normalize=True).float().cpu())  # type: ignore[operator]
    return torch.cat(found)


def generative_loss(model: nn.Module, pairs: Pairs, reader: Reader) -> Generator[int, None, float]:
    """Yield the loss of each image's first caption by a model that writes captions (CoCa): the mean over their tokens.

    Padding is left out, as in training; open_clip's validation counts it in, and for every hundredth batch alone.
    Yields the number of images done after each batch, to be stopped by.
    """
    was_training = model.training
    model.eval()
    total, tokens, done = 0.0, 0, 0
    try:
        for images, some in _loaded(pairs, reader):
            texts = reader.tokenize([pairs.captions(index)[0] for index in some]).to(reader.device)
            with torch.no_grad(), reader.autocast():
                outputs = model(reader.images(images), texts)
            loss, counted = caption_loss(outputs["logits"], outputs["labels"], model.pad_id)  # type: ignore[arg-type]
            total, tokens, done = total + loss, tokens + counted, done + len(images)
            yield done
    finally:
        model.train(was_training)
    return total / max(1, tokens)


def _loaded(pairs: Pairs, reader: Reader) -> Iterator[Loaded]:
    """Batches of those that can be read."""
    context = "spawn" if reader.workers else None  # a fork of a process whose operators run in parallel hangs
    loader = DataLoader(
        _Images(pairs, reader.transform),
        batch_size=reader.batch_size,
        num_workers=reader.workers,
        multiprocessing_context=context,
        generator=torch.Generator(),  # leaves the one that training draws from alone
        collate_fn=_as_it_is,
    )
    yield from (batch for batch in loader if batch[1])


def _as_it_is(batch: Any) -> Any:
    return batch


def _captions(pairs: Pairs) -> tuple[list[str], list[int]]:
    texts, owner = [], []
    for index in range(len(pairs)):
        for caption in pairs.captions(index):
            texts.append(caption)
            owner.append(index)
    return texts, owner


def retrieved(encoded: Encoded, batch_size: int) -> dict[str, float]:
    """Return the reference's retrieval metrics and its validation loss."""
    found = retrieval.metrics(encoded.images, encoded.texts, encoded.owner)
    first = torch.unique_consecutive(encoded.owner, return_counts=True)[1].cumsum(0).roll(1)
    first[0] = 0
    loss = retrieval.clip_loss(encoded.images, encoded.texts[first], encoded.scale, batch_size)
    return found | {"clip_val_loss": loss}


def classified(
    model: nn.Module, encoded: Encoded, classes: Sequence[str], templates: Sequence[str], reader: Reader
) -> Classification:
    """Zero-shot classification of images with labels by the names of classes in prompts."""
    assert encoded.labels is not None, "without labels nothing can be right"
    with reader.autocast():
        weights = classification.classifier(
            model, reader.tokenize, classes, templates, device=reader.device, batch_size=reader.batch_size
        )
    return classification.results(encoded.images, encoded.labels, weights.float().cpu())
