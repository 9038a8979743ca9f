"""Decide whether two variants compute the same results, by the rule of PyTorch's dynamo benchmark."""

import math
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

from engine import suite
from engine.specs import ModelName

SAME_DIRECTION = 0.99
"""Results count as equal from this cosine similarity on. Used without a reference in float64, or on request."""
HALF = (torch.float16, torch.bfloat16)
FEW, LARGE_TOLERANCE = 1000, 2e-2
"""With fewer elements than FEW, or a tolerance of LARGE_TOLERANCE or more, noise dominates the root mean square error:
the result's error may then be three times eager's, otherwise twice."""


def tolerance(name: ModelName, *, training: bool, frozen: bool = False) -> float:
    """Return the tolerance for a model's results. frozen: inductor folds the weights into constants."""
    if training:
        if suite.is_in(name, {suite.LEVIT}):
            return 8e-2
        return 4e-2 if suite.is_in(name, suite.HIGHER_TOLERANCE) else 1e-2
    return 8e-2 if frozen and suite.is_in(name, suite.HIGHER_WHEN_FROZEN) else 1e-3


def same(eager: Any, result: Any, reference: Any | None, tol: float, *, cosine: bool = False) -> bool:
    """Return whether every tensor of `result` equals eager's within `tol`, or is about as near to the reference.

    reference: the same results computed in float64. None if that was not possible: cosine similarity is compared then.
    cosine: compare cosine similarity in any case, instead of the distances to the reference.
    """
    _, shape = tree_flatten(eager)
    leaves, result_shape = tree_flatten(result)
    if result_shape != shape:
        return False
    wanted = tree_leaves(eager)
    exact = [None] * len(wanted) if reference is None else tree_leaves(reference)
    return len(exact) == len(wanted) and all(
        _same(one, other, true, tol, cosine=cosine or reference is None)
        for one, other, true in zip(wanted, leaves, exact, strict=True)
    )


def identical(one: Any, other: Any) -> bool:
    """Return whether two results are equal bit by bit. NaN equals NaN."""
    ones, others = tree_leaves(one), tree_leaves(other)
    return len(ones) == len(others) and all(_equal(a, b) for a, b in zip(ones, others, strict=True))


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True) if one.is_floating_point() else one.equal(other)


def _same(eager: Any, result: Any, reference: Any, tol: float, *, cosine: bool) -> bool:
    if not isinstance(eager, torch.Tensor) or not eager.is_floating_point():
        return _equal(eager, result)
    if eager.dtype != result.dtype or eager.shape != result.shape:
        return False
    # in half precision eager may overflow to NaN, so NaN is accepted where eager has it
    if torch.allclose(eager, result, rtol=tol, atol=tol, equal_nan=eager.dtype in HALF):
        return True
    if cosine:
        one, other = (tensor.flatten().to(torch.float32) for tensor in (eager, result))
        return torch.nn.functional.cosine_similarity(one, other, dim=0, eps=1e-6).item() >= SAME_DIRECTION
    pointwise = eager.ndim == 4 and eager.shape[-2:] == (1, 1)  # such as the weights of 1x1 convolutions
    loose = eager.dtype in HALF or reference.numel() < FEW or pointwise or tol >= LARGE_TOLERANCE
    return rmse(reference, result) <= (3 if loose else 2) * rmse(reference, eager) + tol / 10


def rmse(reference: torch.Tensor, result: torch.Tensor) -> float:
    """Return the root mean squared error of `result`, computed in float64."""
    return float((reference.double() - result.double()).square().mean().sqrt())


def relative(reference: Any, result: Any) -> float:
    """Return norm(result - reference) / norm(reference) in float64, with all tensors taken as one vector."""
    pairs = zip(tree_leaves(reference), tree_leaves(result), strict=True)
    # on the CPU, because not every accelerator has float64
    tensors = [(one.cpu().double(), other.cpu().double()) for one, other in pairs if isinstance(one, torch.Tensor)]
    difference = math.hypot(*(float((one - other).norm()) for one, other in tensors))
    size = math.hypot(*(float(one.norm()) for one, _ in tensors))
    return difference / size if size else (0.0 if not difference else math.inf)


def deviation(reference: Any, result: Any) -> dict[str, float]:
    """Return how far `result` is from `reference`, as fields of a row.

    They are statistics of abs(result - reference) / (1 + abs(reference)) over all elements of all tensors.

    Errors: ValueError when there are no floating point tensors, when shapes differ, or when a value is not finite.
    """
    parts = []
    for one, other in zip(tree_leaves(reference), tree_leaves(result), strict=True):
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            if one.shape != other.shape:
                raise ValueError(f"a result has the shape {tuple(other.shape)} where {tuple(one.shape)} is right")
            exact, found = one.cpu().double(), other.cpu().double()  # on the CPU, as in `relative`
            parts.append(((found - exact).abs() / (1 + exact.abs())).flatten())
    if not parts:
        raise ValueError("the results hold no floating point tensors to compare")
    values = torch.cat(parts)
    if not values.isfinite().all():
        raise ValueError("the results hold values that are no finite numbers")
    spread = float(values.std()) if values.numel() > 1 else 0.0
    return {"max_deviation": float(values.max()), "mean_deviation": float(values.mean()), "std_deviation": spread}
