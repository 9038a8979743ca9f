"""Write and read the features of an evaluation, a file of arrays.

Texts are stored as JSON in bytes, because an array of fixed-width text gives every text the width of the longest one.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from engine.archives import FREE_BYTES
from engine.roots import Roots, open_within

Points = NDArray[np.float32]
MOST_RATIO = 10
"""Arrays above FREE_BYTES may be at most this many times as large as their file. Features hardly compress."""


def pack_texts(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Return texts as a UTF-8 JSON list in an array of shape (bytes,)."""
    return np.frombuffer(json.dumps(list(texts)).encode(), np.uint8)


def unpack_texts(array: NDArray[Any]) -> tuple[str, ...]:
    """Return the texts of an array made by pack_texts, or of the fixed-width arrays in older files.

    Errors: ValueError for any other array.
    """
    if array.dtype.kind == "U" and array.ndim == 1:
        return tuple(map(str, array))
    try:
        texts = json.loads(array.tobytes().decode()) if array.dtype == np.uint8 else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"texts are a JSON list in UTF-8, and this is none: {error}") from error
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"texts are a JSON list in bytes, and this is an array of {array.dtype} {array.shape}")
    return tuple(texts)


@dataclass(frozen=True)
class Embeddings:
    """Features of an evaluation's images and texts, with the images' sources and class names."""

    images: Points
    """(N, D) normalised features of the images."""
    texts: Points
    """(M, D) features of the texts, one per distinct caption."""
    sources: tuple[str, ...]
    """(N,) source of each image."""
    captions: tuple[str, ...]
    """(M,) distinct captions."""
    labels: tuple[str, ...]
    """(N,) class names; all empty without classes."""
    text_labels: tuple[str, ...]
    """(M,) class of the first image with this caption."""


def write_embeddings(
    path: Path,
    *,
    images: Points,
    texts: Points,
    owner: NDArray[np.int64],
    labels: NDArray[np.int64] | None,
    sources: Sequence[str],
    captions: Sequence[str],
    classes: Sequence[str],
) -> None:
    """Write images (N, D), texts (M, D), owner (M,; index of each text's image), labels (N,; -1 without labels), and
    packed texts: sources (N,), captions (M,), classes. The folder is created if it is missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        images=images,
        texts=texts,
        owner=owner,
        labels=np.full(len(images), -1) if labels is None else labels,
        sources=pack_texts(sources),
        captions=pack_texts(captions),
        classes=pack_texts(classes),
    )


def read_embeddings(path: Path, roots: Roots = None) -> Embeddings:
    """Read an evaluation's embeddings. Errors: OSError; ValueError when the file is damaged or has other content."""
    try:
        with open_within(path, roots) as file, np.load(file, allow_pickle=False) as arrays:
            _refuse_bomb(arrays.zip, os.fstat(file.fileno()).st_size)
            return _embeddings(arrays)
    except OSError:
        raise
    except Exception as error:  # damaged archives and arrays raise errors of many kinds
        raise ValueError(f"{path.name} holds no embeddings: {error}") from error


def _refuse_bomb(archive: ZipFile, packed_bytes: int) -> None:
    """Check that the arrays fit into memory: a file of an imported run may be a bomb. Errors: ValueError."""
    total = sum(info.file_size for info in archive.infolist())
    if total > max(FREE_BYTES, MOST_RATIO * packed_bytes):
        raise ValueError(f"{packed_bytes:,} bytes would unpack to {total:,}, and at most {MOST_RATIO} times are taken")


def _embeddings(arrays: Mapping[str, NDArray[Any]]) -> Embeddings:
    """Return the embeddings that write_embeddings has stored. Errors: of many kinds, for other arrays."""
    images, texts = (arrays[name].astype(np.float32, copy=False) for name in ("images", "texts"))
    sources, captions, classes = (unpack_texts(arrays[name]) for name in ("sources", "captions", "classes"))
    numbers, owner = arrays["labels"].astype(int), arrays["owner"]
    widths_fit = images.ndim == texts.ndim == 2 and images.shape[1] == texts.shape[1]
    lengths_fit = len(images) == len(sources) == len(numbers) and len(texts) == len(captions) == len(owner)
    if not (widths_fit and lengths_fit):
        raise ValueError(f"images {images.shape} and texts {texts.shape} do not fit")
    labels = [_class(number, classes) for number in numbers.tolist()]
    last_first = reversed(list(enumerate(captions)))
    first_places = sorted({caption: place for place, caption in last_first}.values())
    return Embeddings(
        images=images,
        texts=texts[first_places],
        sources=sources,
        captions=tuple(captions[place] for place in first_places),
        labels=tuple(labels),
        text_labels=tuple(labels[int(owner[place])] for place in first_places),
    )


def _class(number: int, classes: Sequence[str]) -> str:
    if number < 0:
        return ""
    return classes[number] if number < len(classes) else f"class {number}"
