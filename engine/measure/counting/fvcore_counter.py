"""Count a model's cost a second time with fvcore, which traces the model and applies its own formulas.

fvcore counts a multiply-add as one FLOP, so its numbers are MACs here. It cannot trace models on meta.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_leaves

from engine.measure.counting.flops import Count, unfused
from engine.measure.counting.operators import FORMULAS, PRODUCTS, RECURRENT
from engine.models.built import Built
from engine.results import Difference
from engine.words import plural

ATTENTION = "scaled_dot_product_attention"
GROUPS: dict[str, frozenset[str]] = {
    "convolution": frozenset({"conv", "convolution", "depthwise_convolution", "grouped_convolution"}),
    "matrix products": PRODUCTS | {"linear", "matmul", "einsum"},
    ATTENTION: frozenset({ATTENTION}),
    "normalisation": frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm"}),
    "pooling and resampling": frozenset(
        {"adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d", "grid_sampler"}
    ),
    "recurrent layers": RECURRENT,
}
"""Groups of operators, by name. Each holds the names that either counter uses for such operators."""
EXPLANATIONS = {
    "normalisation": "fvcore counts 1 to 5 operations per element; ours counts multiply-adds of products only",
    "pooling and resampling": "fvcore counts 1 to 4 operations per element; ours counts multiply-adds of products only",
}
NOT_EXPLAINED = "not explained"
PRODUCT_MAKERS = {
    *FORMULAS,
    *("baddbmm", "bilinear", "inner", "lstm", "gru", "rnn_tanh", "rnn_relu", "_native_multi_head_attention"),
}
"""Operators with matrix products for which fvcore has no formula. Those of the second line occur only in traces."""


def columns(built: Built, counted: Count | None, batch_size: int) -> dict[str, Any]:
    """Return the fvcore columns of a row, per sample.

    With `counted`, the dispatch counter's result, the columns also hold the differences between both counters.
    Errors: RuntimeError when torch.jit cannot trace the model.
    """
    fvcore = load()
    with torch.no_grad(), unfused(), _traceable(built.model):
        macs = fvcore.FlopCountAnalysis(built.model, built.inputs)
        activations = fvcore.ActivationCountAnalysis(built.model, built.inputs)
        macs.set_op_handle(f"aten::{ATTENTION}", _attention_macs)
        activations.set_op_handle(f"aten::{ATTENTION}", _attention_activations)
        for analysis in (macs, activations):
            analysis.tracer_warnings("none").unsupported_ops_warnings(False).uncalled_modules_warnings(False)
            analysis.total()
    parts = {"": "", **{f"{tower}_": path for tower, path in built.towers.items()}}
    values: dict[str, Any] = {"fvcore_unsupported": dict(macs.unsupported_ops().most_common())}
    for part, path in parts.items():
        values[f"fvcore_{part}gmacs"] = macs.total(path) / batch_size / 1e9
        values[f"fvcore_{part}macts"] = activations.total(path) / batch_size / 1e6
    if counted is not None:
        values["differences"] = differences(counted, macs.by_operator(), macs.unsupported_ops(), batch_size)
    return values


def differences(
    counted: Count, fvcore_macs: Counter[str], unsupported: Counter[str], batch_size: int
) -> tuple[Difference, ...]:
    """Return the groups of operators for which the counters disagree, each with GMACs per sample and an explanation."""
    ours: Counter[str] = Counter()
    for operator in counted.operators:
        if operator.flops:
            ours[_group(operator.operator)] += operator.flops // 2
    theirs: Counter[str] = Counter()
    for name, macs in fvcore_macs.items():
        theirs[_group(name)] += int(macs)
    explanations = {
        group: _explanation(group, unsupported if ours[group] > theirs[group] else Counter())
        for group in sorted(ours | theirs)
        if ours[group] != theirs[group]
    }
    open_groups = [group for group, explanation in explanations.items() if explanation == NOT_EXPLAINED]
    if open_groups and sum(ours[group] for group in open_groups) == sum(theirs[group] for group in open_groups):
        same = (
            f"the counters list the same work under different operators: {' and '.join(open_groups)} add up to the same"
        )
        explanations |= dict.fromkeys(open_groups, same)
    return tuple(
        Difference(
            operator=group,
            torch_gmacs=ours[group] / batch_size / 1e9,
            fvcore_gmacs=theirs[group] / batch_size / 1e9,
            explanation=explanation,
        )
        for group, explanation in explanations.items()
    )


def _group(operator: str) -> str:
    return next((group for group, members in GROUPS.items() if operator in members), operator)


def _explanation(group: str, unsupported: Counter[str]) -> str:
    if group in EXPLANATIONS:
        return EXPLANATIONS[group]
    missing = [
        f"{name} ({plural(calls, 'call')})"
        for name, calls in unsupported.items()
        if name.removeprefix("aten::") in PRODUCT_MAKERS
    ]
    return f"fvcore has no formula for {', '.join(missing)}" if missing else NOT_EXPLAINED


def _shape(value: Any) -> list[int]:
    sizes: list[int] = value.type().sizes()
    return sizes


def _attention_macs(inputs: list[Any], _outputs: list[Any]) -> int:
    """Return the MACs of scores and values. inputs: traced query (..., L, E), key (..., S, E), value (..., S, V)."""
    query, value = _shape(inputs[0]), _shape(inputs[2])
    return prod(query[:-1]) * value[-2] * (query[-1] + value[-1])


def _attention_activations(inputs: list[Any], _outputs: list[Any]) -> int:
    query, value = _shape(inputs[0]), _shape(inputs[2])
    return prod(query[:-1]) * (value[-2] + value[-1])


def load() -> Any:
    """Return fvcore.nn, imported only when needed. Importing it warns, because its losses use TorchScript."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is (deprecated|not supported)")
        return import_module("fvcore.nn")


@contextmanager
def _traceable(model: torch.nn.Module) -> Iterator[None]:
    """Make the model return a tuple. torch.jit cannot trace a model that returns a dictionary, such as CoCa.

    While it is traced, a model that catches the error of one of its modules raises RuntimeError. The end of the trace
    would end the process with SIGSEGV, because fvcore does not close that module's scope.
    """
    failed: list[str] = []

    def note_error(module: torch.nn.Module, _args: Any, out: Any) -> None:
        if out is None and sys.exc_info()[0]:  # the hook is called while the error is handled
            failed.append(type(module).__name__)

    def flatten(_module: torch.nn.Module, _args: Any, out: Any) -> Any:
        if failed:
            raise RuntimeError(f"fvcore cannot count a model that catches the error of a module ({failed[0]})")
        return tuple(leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))

    with model.register_forward_hook(flatten), register_module_forward_hook(note_error, always_call=True):
        yield
