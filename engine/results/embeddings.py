"""Texts in a file of arrays: as JSON in bytes, because fixed-width text is as wide everywhere as the longest one."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack_texts(texts: Sequence[str]) -> NDArray[np.uint8]:
    """(bytes,): a UTF-8 JSON list."""
    return np.frombuffer(json.dumps(list(texts)).encode(), np.uint8)


def unpack_texts(held: NDArray[Any]) -> tuple[str, ...]:
    """What pack_texts has packed; the fixed-width text of older files too. Errors: ValueError of anything else."""
    if held.dtype.kind == "U" and held.ndim == 1:
        return tuple(map(str, held))
    try:
        found = json.loads(held.tobytes().decode()) if held.dtype == np.uint8 else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"texts are a JSON list in UTF-8, and this is none: {error}") from error
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError(f"texts are a JSON list in bytes, and this is an array of {held.dtype} {held.shape}")
    return tuple(found)
