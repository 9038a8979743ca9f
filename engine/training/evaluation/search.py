"""Text search among the images that an evaluation has encoded."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from engine.models.clip import weights
from engine.models.clip.weights import Made
from engine.results.answers import Hit, Hits
from engine.results.embeddings import Embeddings, read_embeddings
from engine.roots import Roots, expand_home, stat_within
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Search
from engine.training.evaluation.encode import Reader, encode_texts

COMPARED, ALIKE = 8, 0.98
"""Number of captions to encode again, and the minimum cosine with their stored features. A lower one means that it is
another model; half precision alone keeps it above 0.99."""
BATCH = 64
"""Texts per forward pass."""
_kept: dict[str, Made] = {}
"""The model of the last question."""


def answer(question: Search) -> Hits:
    """Return the images of an evaluation whose features have the largest cosines with those of the question's text.

    The text is encoded without a template. Errors: Refused if the embeddings are missing or the model is not the one
    they were made with; errors of building the model.
    """
    embeddings = _embeddings(question.folder, question.file)
    made = kept_model(question.spec, Settings().roots, texts_only=True)
    _check(embeddings, made, question)
    similarities = (embeddings.images @ _encode(made, [question.text])[0]).astype(np.float64)
    nearest = np.argsort(-similarities, kind="stable")[: question.top]
    hits = [
        Hit(
            index=index,
            source=embeddings.sources[index],
            label=embeddings.labels[index],
            similarity=float(similarities[index]),
        )
        for index in nearest.tolist()
    ]
    return Hits(hits=tuple(hits), images=len(embeddings.images))


def _embeddings(folder: Path, file: str) -> Embeddings:
    try:
        return read_embeddings(folder / file, (folder.resolve(),))
    except FileNotFoundError as error:
        raise Refused(f"{file} was not kept with this run: evaluate again to search its images") from error
    except (OSError, ValueError) as error:
        raise Refused(f"{file} cannot be read: {error}") from error


def kept_model(spec: EvaluateSpec, roots: Roots, *, texts_only: bool = False) -> Made:
    """Return the model of a spec in evaluation mode, on the CPU, so that no run's device is used.

    The last model is cached. texts_only: without the image tower. Errors: those of building it.
    """
    cpu_spec = spec.model_copy(update={"device": "cpu", "precision": "fp32"})
    state = stat_within(expand_home(spec.checkpoint), roots) if spec.checkpoint else None
    key = f"{texts_only} {cpu_spec.model_dump_json()} {state and (state.st_mtime_ns, state.st_size, state.st_ino)}"
    if key not in _kept:
        _kept.clear()  # first: two models may not fit into memory
        made = weights.create(cpu_spec, weights=spec.checkpoint, roots=roots)
        if texts_only:
            made.model.visual = nn.Identity()
        made.model.eval()
        _kept[key] = made
    return _kept[key]


def _encode(made: Made, texts: list[str]) -> NDArray[np.float32]:
    features: NDArray[np.float32] = encode_texts(texts, Reader(made, "fp32", "cpu", BATCH)).numpy()
    return features


def _check(found: Embeddings, made: Made, question: Search) -> None:
    """Check that the model encodes the stored captions as before. Errors: Refused if it does not."""
    captions = list(found.captions[:COMPARED])
    features, model_name = _encode(made, captions), question.spec.checkpoint or question.spec.model
    advice = "evaluate again to search its images"
    if features.shape[1] != found.texts.shape[1]:
        sizes = f"{features.shape[1]} numbers for a text, and the embeddings have {found.texts.shape[1]}"
        raise Refused(f"{model_name} is not what was evaluated: it gives {sizes}; {advice}")
    similarity = float((features * found.texts[: len(captions)]).sum(axis=1).min(initial=1.0))
    if not similarity >= ALIKE:
        reason = f"it encodes the captions differently now (cosine {similarity:.2f})"
        raise Refused(f"{model_name} has changed since it was evaluated: {reason}; {advice}")
