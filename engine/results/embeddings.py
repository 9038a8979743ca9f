"""What an evaluation has encoded, in a file of arrays. Texts lie in it as JSON in bytes, because fixed-width text is as
wide everywhere as the longest one."""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.roots import Roots, open_within

Points = NDArray[np.float32]


def pack_texts(texts: Sequence[str]) -> NDArray[np.uint8]:
    """(bytes,): a UTF-8 JSON list."""
    return np.frombuffer(json.dumps(list(texts)).encode(), np.uint8)


def unpack_texts(held: NDArray[Any]) -> tuple[str, ...]:
    """Return what pack_texts has packed; the fixed-width text of older files too. Errors: ValueError of anything
    else."""
    if held.dtype.kind == "U" and held.ndim == 1:
        return tuple(map(str, held))
    try:
        found = json.loads(held.tobytes().decode()) if held.dtype == np.uint8 else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"texts are a JSON list in UTF-8, and this is none: {error}") from error
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError(f"texts are a JSON list in bytes, and this is an array of {held.dtype} {held.shape}")
    return tuple(found)


@dataclass(frozen=True)
class Embeddings:
    """Features of an evaluation's images and texts, with their sources and labels."""

    images: Points
    """(N, D), normalised."""
    texts: Points
    """(M, D), one of each different caption."""
    sources: tuple[str, ...]
    """(N,)"""
    captions: tuple[str, ...]
    """(M,)"""
    labels: tuple[str, ...]
    """(N,) names of classes; all empty where there are none."""
    text_labels: tuple[str, ...]
    """(M,) the class of the first image that has the caption."""


def read_embeddings(path: Path, roots: Roots = None) -> Embeddings:
    """Read what an evaluation has encoded. Errors: OSError, ValueError of another file."""
    try:
        with open_within(path, roots) as file, np.load(file, allow_pickle=False) as arrays:
            held = {name: arrays[name] for name in arrays.files}
        images, texts, owner = held["images"], held["texts"], held["owner"]
        sources, captions, classes = (unpack_texts(held[name]) for name in ("sources", "captions", "classes"))
        numbers = held["labels"].astype(int)
    except (KeyError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path.name} holds no embeddings: {error}") from error
    fits = images.ndim == texts.ndim == 2 and images.shape[1] == texts.shape[1]
    fits = fits and len(images) == len(sources) == len(numbers) and len(texts) == len(captions) == len(owner)
    if not fits:
        raise ValueError(f"{path.name} holds no embeddings: images {images.shape} and texts {texts.shape} do not fit")
    labels = [_class(number, classes) for number in numbers.tolist()]
    first = {caption: place for place, caption in reversed(list(enumerate(captions)))}
    kept = sorted(first.values())
    return Embeddings(
        images=images,
        texts=texts[kept],
        sources=sources,
        captions=tuple(captions[place] for place in kept),
        labels=tuple(labels),
        text_labels=tuple(labels[int(owner[place])] for place in kept),
    )


def _class(number: int, classes: Sequence[str]) -> str:
    if number < 0:
        return ""
    return classes[number] if number < len(classes) else f"class {number}"
