"""Encode held-out pairs in one pass, then compute all metrics from the features."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import open_clip
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_convert

from engine import datasets
from engine.datasets import Pairs, Unreadable
from engine.models.clip.weights import Made, Transform
from engine.process import exit_with_parent, fork_context
from engine.results import Event
from engine.specs import Refused
from engine.specs.evaluate import RECALLS
from engine.specs.fields.clip import TrainPrecision
from engine.training import precision
from engine.training.evaluation import retrieval
from engine.training.objectives import caption_loss
from engine.words import shortened

Loaded = tuple[Tensor, list[int]]
"""Images (B, 3, H, W), and the indices of their pairs."""
MakeEvent = Callable[[int], Event]
"""Returns the event to yield when this number of images is done."""


@dataclass(frozen=True)
class Reader:
    """A model, and how its inputs are prepared: its transform and tokenizer, the device, precision and batch size."""

    made: Made
    precision: TrainPrecision
    device: str
    batch_size: int
    workers: int = 0

    @property
    def model(self) -> Any:
        """Return the model itself."""
        return self.made.model

    def images(self, images: Tensor) -> Tensor:
        """Return images on the device, in half precision if the model's weights are."""
        dtype = open_clip.get_input_dtype(self.precision)
        return images.to(device=self.device, dtype=dtype, non_blocking=True)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for a forward pass."""
        return precision.autocast(self.precision, self.device)

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Run forward passes without dropout, also in the middle of a training."""
        was_training = self.model.training
        self.model.eval()
        try:
            with self.autocast():
                yield
        finally:
            self.model.train(was_training)


@dataclass(frozen=True)
class Encoded:
    """Pairs with their features: normalised, on the CPU in float32."""

    pairs: Pairs
    """The encoded pairs: all requested ones whose images could be read."""
    notes: tuple[str, ...]
    """Messages about the pairs that were left out."""
    images: Tensor
    """(N, D)"""
    texts: Tensor
    """(M, D), one row per caption."""
    owner: Tensor
    """(M,) int64: the index of each caption's image."""
    labels: Tensor | None
    """(N,) int64; None if a pair has no label."""
    targets: Tensor | None
    """(N, C) bool: the classes of each image; None if images have only one class."""
    scale: float
    """Factor that multiplies cosines in the loss."""


@dataclass(frozen=True)
class Features:
    """The output of a model for pairs, as the feature cache stores it: normalised, on the CPU in float32."""

    images: Tensor
    """(N, D), one row per image that could be read."""
    read: Tensor
    """(N,) int64: the indices of the pairs of these images."""
    texts: Tensor
    """(K, D), one row per distinct caption, in the order of first occurrence; (0,) without captions."""
    scale: float
    """Factor that multiplies cosines in the loss."""


class _Images(Dataset[Loaded]):
    def __init__(self, pairs: Pairs, transform: Transform) -> None:
        self._pairs, self._transform = pairs, transform

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitems__(self, indices: Sequence[int]) -> Loaded:
        """Return a batch at once, as DataLoader asks for it."""
        tensors = {}
        for index in indices:
            with suppress(Unreadable):
                tensors[index] = self._transform(self._pairs.image(index))
        return (torch.stack([*tensors.values()]) if tensors else torch.empty(0)), [*tensors]


def encode(pairs: Pairs, reader: Reader, event: MakeEvent, *, captions: bool = True) -> Generator[Event, None, Encoded]:
    """Return the features of all images and captions. Yield an event after each batch, so that the caller can stop.

    captions: if False, only images are encoded, for classification.
    An image that cannot be read is left out, with its captions. Errors: DataProblem if no image can be read.
    """
    return assemble(pairs, (yield from features(pairs, reader, event, captions=captions)))


def features(
    pairs: Pairs, reader: Reader, event: MakeEvent, *, captions: bool = True
) -> Generator[Event, None, Features]:
    """Return the features of the distinct captions and of the images that can be read. Yield as `encode` does."""
    distinct = list(dict.fromkeys(_captions(pairs)[0])) if captions else []
    encoded: list[Tensor] = [torch.empty(0)] * (not captions)
    for start in range(0, len(distinct), reader.batch_size):
        encoded.append(encode_texts(distinct[start : start + reader.batch_size], reader))
        yield event(0)
    images: list[Tensor] = []
    read: list[int] = []
    for batch, indices in _load_batches(pairs, reader):
        images.append(encode_images(batch, reader))
        read += indices
        yield event(len(read))
    return Features(
        images=torch.cat(images) if images else torch.empty(0),
        read=torch.tensor(read, dtype=torch.long),
        texts=torch.cat(encoded),
        scale=float(reader.model.logit_scale.detach().exp()),
    )


def assemble(pairs: Pairs, found: Features) -> Encoded:
    """Return pairs with their features. found: their `features`. Errors: DataProblem if no image could be read."""
    row_of = {text: index for index, text in enumerate(dict.fromkeys(_captions(pairs)[0]))}
    pairs, notes = datasets.readable(pairs, found.read.tolist())
    texts, owner = _captions(pairs) if len(found.texts) else ([], [])
    labels = [pairs.label(index) for index in range(len(pairs))]
    return Encoded(
        pairs=pairs,
        notes=notes,
        images=found.images,
        texts=found.texts[torch.tensor([row_of[text] for text in texts], dtype=torch.long)],
        owner=torch.tensor(owner, dtype=torch.long),
        labels=None if any(label is None for label in labels) else torch.tensor(labels),
        targets=_targets(pairs),
        scale=found.scale,
    )


def _targets(pairs: Pairs) -> Tensor | None:
    """Return the classes of each image (N, C) bool; None if images have only one class."""
    if not pairs.several or None in pairs.several:
        return None
    targets = torch.zeros(len(pairs), len(pairs.classes), dtype=torch.bool)
    for index, several in enumerate(pairs.several):
        targets[index, list(several or ())] = True
    return targets


def check_finite(features: Tensor, what: str) -> None:
    """Refuse features (N, D) with NaN or infinity, which cannot be ranked. what: their subject, such as `images`."""
    if broken := len(features) - int(features.isfinite().all(dim=1).sum()):
        raise Refused(
            f"the features of {broken:,} of {len(features):,} {what} are not finite (NaN or infinite): the model's "
            "weights are broken, or its precision is too low for them"
        )


def subset(found: Encoded, indices: Sequence[int]) -> Encoded:
    """Return the encoded pairs at these indices, without their texts."""
    labels = None if found.labels is None else found.labels[indices]
    no_texts = found.texts[:0], found.owner[:0]
    return Encoded(found.pairs.at(indices), (), found.images[indices], *no_texts, labels, None, found.scale)


@torch.no_grad()
def encode_images(images: Tensor, reader: Reader) -> Tensor:
    """Return the features (N, D) of images (N, 3, H, W), normalised, on the CPU in float32."""
    with reader.inference():
        features: Tensor = reader.model.encode_image(reader.images(images), normalize=True)
    return features.float().cpu()


@torch.no_grad()
def encode_texts(texts: Sequence[str], reader: Reader) -> Tensor:
    """Return the features (len(texts), D) of texts, normalised, on the CPU in float32."""
    features = []
    for start in range(0, len(texts), reader.batch_size):
        tokens = reader.made.tokenizer(list(texts[start : start + reader.batch_size])).to(reader.device)
        with reader.inference():
            features.append(reader.model.encode_text(tokens, normalize=True).float().cpu())
    return torch.cat(features)


def generative_loss(pairs: Pairs, reader: Reader, event: MakeEvent) -> Generator[Event, None, float]:
    """Return the loss of each image's first caption in a CoCa model: the mean over all tokens.

    Padding is left out, as in training; open_clip's validation includes it, and uses only every hundredth batch.
    Yields an event after each batch, so that the caller can stop.
    """
    total, tokens, done = 0.0, 0, 0
    for images, indices in _load_batches(pairs, reader):
        texts = reader.made.tokenizer([pairs.captions(index)[0] for index in indices]).to(reader.device)
        with torch.no_grad(), reader.inference():
            outputs = reader.model(reader.images(images), texts)
        loss, counted = caption_loss(outputs["logits"], outputs["labels"], reader.model.pad_id)
        total, tokens, done = total + loss, tokens + counted, done + len(images)
        yield event(done)
    return total / max(1, tokens)


def _load_batches(pairs: Pairs, reader: Reader) -> Iterator[Loaded]:
    """Yield batches of the images that can be read."""
    loader = DataLoader(
        _Images(pairs.to_load(reader.workers), reader.made.preprocess_val),
        batch_size=reader.batch_size,
        num_workers=reader.workers,
        multiprocessing_context=fork_context(__name__) if reader.workers else None,
        worker_init_fn=exit_with_parent,
        generator=torch.Generator(),  # not the global one, which a training uses
        collate_fn=default_convert,
    )
    yield from (batch for batch in loader if batch[1])


def _captions(pairs: Pairs) -> tuple[list[str], list[int]]:
    """Return all captions, and the index of the image of each."""
    captions = [(caption, index) for index in range(len(pairs)) for caption in pairs.captions(index)]
    return [caption for caption, _ in captions], [index for _, index in captions]


def retrieved(encoded: Encoded, batch_size: int, recalls: Sequence[int] = RECALLS) -> dict[str, float]:
    """Return the retrieval metrics and the held-out loss, under open_clip's names. recalls: ranks of recall."""
    found = retrieval.metrics(encoded.images, encoded.texts, encoded.owner, recalls=recalls)
    first = torch.unique_consecutive(encoded.owner, return_counts=True)[1].cumsum(0).roll(1)
    first[0] = 0
    loss = retrieval.clip_loss(encoded.images, encoded.texts[first], encoded.scale, batch_size)
    return found | {"clip_val_loss": loss}


def directions(
    classes: Sequence[str],
    templates: Sequence[str],
    reader: Reader,
    class_prompts: Mapping[str, Sequence[str]] | None = None,
) -> Tensor:
    """Return the zero-shot classifier, (D, C) float32 on the CPU: the normalised mean of the features of each class's
    prompts.

    templates: prompts with {} for the class name. class_prompts: the prompts of each class, which replace those of
    templates. Errors: Refused if a class has none.
    """
    if missing := [name for name in classes if class_prompts and name not in class_prompts]:
        raise Refused(f"no prompts for {len(missing)} of {len(classes)} classes: {shortened(tuple(missing))}")
    prompts = [
        class_prompts[name] if class_prompts else [template.replace("{}", name) for template in templates]
        for name in classes
    ]
    classes_per_batch = max(1, reader.batch_size // max(map(len, prompts)))
    means: list[Tensor] = []
    for start in range(0, len(prompts), classes_per_batch):
        batch = prompts[start : start + classes_per_batch]
        features = encode_texts([text for of_class in batch for text in of_class], reader)
        means += [part.mean(dim=0) for part in torch.split(features, [len(of_class) for of_class in batch])]
    return nn.functional.normalize(torch.stack(means, dim=1), dim=0)
