"""Count the bytes that one operator call reads and writes, without caches or fusion."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from engine.measure.counting.operators import BAGS, EMPTY, GATHERS, Operator

INDEX_PUTS = ("index_put", "_index_put_impl")
ADDING = ("index_add", "index_reduce", "scatter_add", "scatter_reduce")
"""Writes at indices that read what they change."""


def moved_bytes(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[int, int]:
    """Return the bytes that a call reads and those that it writes. args, kwargs: as the operator's schema has them.

    A change in place of masked elements (`masked_fill_`) counts as one of all: on meta the mask has no values.
    """
    if operator.writes_at_index:
        return _index_write(operator, args, kwargs)
    written = 0 if operator.kind in EMPTY else _bytes(out)
    if operator.kind in GATHERS:
        return written, written
    if operator.kind in BAGS:
        table, numbers = args[:2]
        return int(numbers.numel()) * _bytes(table) // max(1, len(table)) + _bytes(args[1:]), written
    sources = args[1:] if operator.overwrites else args
    return _bytes(sources) + _bytes(tuple(kwargs.values())), written


def stored_elements(tensor: torch.Tensor) -> int:
    """Return how many elements in memory a tensor has. Those that `expand` repeats (stride 0) count once.

    Windows that overlap (`unfold`) have at most the elements from the first to the last one.
    """
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_contiguous():
        return tensor.numel()
    dimensions = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    span = 1 + sum((size - 1) * stride for size, stride in dimensions)
    return int(min(prod(size for size, _ in dimensions), span))


def _bytes(value: Any) -> int:
    """Return the bytes of all tensors in an argument, including those in lists and tuples."""
    tensors = (item for item in tree_iter(value) if isinstance(item, torch.Tensor))
    return sum(stored_elements(tensor) * tensor.element_size() for tensor in tensors)


def _index_write(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes that a write in place at indices reads and writes. It leaves all other elements alone.

    args: the changed tensor; then indices, values and accumulate for `index_put_`, else a dimension, an index and, for
    most operators, a source.
    """
    if operator.kind in INDEX_PUTS:
        changed, index, source = args[:3]
        touched, adds = _selected(changed.shape, index), args[3:4] == (True,)
    else:
        changed, dim, index = args[:3]
        source, adds = (*args[3:], None)[0], operator.kind in ADDING or "reduce" in kwargs
        touched = int(index.numel())
        if operator.kind.startswith("index") and changed.dim():
            touched *= changed.numel() // max(1, changed.shape[dim])
    written = min(touched, stored_elements(changed)) * changed.element_size()
    read = _bytes(index) + written * adds
    if isinstance(source, torch.Tensor):  # of a larger source, scatter reads as many elements as it writes
        read += min(touched, stored_elements(source)) * source.element_size()
    return read, written


def _selected(shape: Sequence[int], indices: Sequence[torch.Tensor | None]) -> int:
    """Return how many elements of a tensor of this shape are selected, as `tensor[indices]` does.

    A mask covers as many dimensions as it has. It counts as if all of it were true: on meta its values are unknown.
    """
    points: Sequence[int] = ()
    masks, others, dim = [], 1, 0
    for index in indices:
        if index is None:
            others *= shape[dim]
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):
            masks.append(index.numel())
            dim += index.dim()
        else:
            points = torch.broadcast_shapes(points, index.shape)  # type: ignore[no-untyped-call]
            dim += 1
    number = prod(points)
    return (min(masks) if masks and number == 1 else number) * others * prod(shape[dim:])
