"""Describe the operators that the counter knows: each has a FLOP formula or a reason why it needs none."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from engine.results import Work

aten = torch.ops.aten
Formula = Callable[[tuple[Any, ...], dict[str, Any], Any], int]
"""A formula: (args, kwargs, output) of one call -> FLOPs, or activations."""


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Names have no trailing underscore: in-place overloads count as the plain ones. Views, elementwise operators and
# reductions are recognised by their schema and tags, so they are not listed here.
MOVES = _names("""
    copy _to_copy cat stack repeat constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d roll flip
    pixel_shuffle pixel_unshuffle im2col col2im tril triu masked_fill masked_scatter scatter index_put _index_put_impl
    _unsafe_index_put index_copy lift_fresh_copy slice_scatter select_scatter diagonal_scatter repeat_interleave
    native_channel_shuffle channel_shuffle resize nonzero unfold_copy expand_copy permute_copy
    reflection_pad3d replication_pad1d replication_pad3d index_fill rot90 diag_embed max_unpool2d max_unpool3d complex
    block_diag""")
"""Operators that copy, rearrange or select elements without computing."""
UNTAGGED = _names("""
    hardswish floor_divide prelu _prelu_kernel _assert_async _assert_scalar log_sigmoid_forward rrelu_with_noise polar
    fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams celu elu selu hardsigmoid hardtanh leaky_relu""")
"""Elementwise operators and checks that have no tag, the last six in torch 2.11 only."""
UNMARKED_VIEWS = _names("_unsafe_view unsafe_split unsafe_split_with_sizes lift_fresh as_strided set_")
"""Views whose schema does not mark them as views, or marks them as changing their argument."""
GATHERS = _names("embedding index index_select gather _unsafe_index take masked_select")
"""Operators that read only what they return, not their whole source."""
BAGS = _names("_embedding_bag _embedding_bag_forward_only")
"""Operators that read the rows of a table whose numbers they are given, and return only sums, means or maxima."""
INDEX_WRITES = _names("""
    index_put _index_put_impl index_fill index_copy index_add index_reduce scatter scatter_add scatter_reduce""")
"""Operators that, in place, change only the elements at their indices."""
EMPTY = _names("empty empty_like new_empty empty_strided new_empty_strided")
"""Operators that reserve memory without writing it."""
CREATES = EMPTY | _names("""
    zeros ones full arange linspace logspace eye zeros_like ones_like full_like new_zeros new_ones new_full
    scalar_tensor rand randn randint randperm rand_like randn_like zero fill uniform normal bernoulli exponential
    _efficientzerotensor tril_indices triu_indices _local_scalar_dense""")
"""Operators that fill new or given memory, or read a single value."""
MINOR = _names("""
    native_layer_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
    _native_batch_norm_legit_functional cudnn_batch_norm miopen_batch_norm _batch_norm_with_update native_group_norm
    _fused_rms_norm _weight_norm_interface _softmax _log_softmax _safe_softmax cumsum glu native_dropout
    max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
    adaptive_max_pool2d mkldnn_max_pool2d upsample_nearest1d upsample_nearest2d _upsample_nearest_exact2d
    upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_bicubic2d _upsample_bicubic2d_aa
    upsample_trilinear3d grid_sampler_2d grid_sampler_3d _embedding_bag _embedding_bag_forward_only
    _thnn_fused_lstm_cell _thnn_fused_gru_cell index_add index_reduce scatter_add scatter_reduce cumprod cummax cummin
    logcumsumexp linalg_cross adaptive_max_pool3d affine_grid_generator torchvision::roi_align
    _fused_moving_avg_obs_fq_helper topk sort kthvalue median nanmedian mode searchsorted bucketize multinomial
    histc fractional_max_pool2d fractional_max_pool3d torchvision::roi_pool torchvision::ps_roi_align""")
"""Operators with a few operations per element, or comparisons to sort and search: little beside matrix products. Their
work is not counted."""

PRODUCTS = _names("mm addmm bmm baddbmm _scaled_mm _int_mm _grouped_mm mv addmv dot vdot addbmm _trilinear")
CONVOLUTIONS = _names("""
    convolution _convolution cudnn_convolution miopen_convolution _slow_conv2d_forward convolution_overrideable
    torchvision::deform_conv2d""")
ATTENTION = _names("""
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math_for_mps""")
RECURRENT = _names("mkldnn_rnn_layer _cudnn_rnn miopen_rnn")


def _matrix_vector(args: tuple[Any, ...], *_: Any) -> int:
    """Return the FLOPs of a matrix-vector or dot product: each element is multiplied and added once."""
    return 2 * max(int(argument.numel()) for argument in args if isinstance(argument, torch.Tensor))


def _matrix_product(args: tuple[Any, ...], *_: Any) -> int:
    """Return the FLOPs of the product of the last two arguments, (..., M, K) x (..., K, N)."""
    first, second = args[-2:]
    return 2 * int(first.numel()) * int(second.shape[-1])


def _grouped_mm(args: tuple[Any, ...], *_: Any) -> int:
    """Return the FLOPs of grouped matrix products, (M, K) x (K, N) for each group.

    A factor with two dimensions holds the groups side by side along M or N; if both factors have two, along K. The
    sizes of the groups add up to that dimension. Rows after the last group are counted although they are not computed,
    because meta tensors hold no offsets.
    """
    first, second = args[:2]
    groups = int(first.shape[0]) if first.dim() == second.dim() == 3 else 1
    return 2 * groups * int(prod(first.shape[-2:])) * int(second.shape[-1])


def _bilinear(args: tuple[Any, ...], *_: Any) -> int:
    """Return the FLOPs of nn.Bilinear, x W y for each output: the product of x and W, then that with y.

    args: x (N, in1), W (out, in1, in2), y (N, in2), and the dimensions to expand and sum over, always the same ones.
    """
    x, weight, y = args[:3]
    return 2 * len(x) * (int(weight.numel()) + len(weight) * int(y.shape[-1]))


def _deformable(args: tuple[Any, ...], _kwargs: dict[str, Any], out: Any) -> int:
    """Return the FLOPs of a deformable convolution. Resampling its input between pixels is minor work."""
    return 2 * int(out.numel()) * int(prod(args[1].shape[1:]))


def _attention(args: tuple[Any, ...], *_: Any) -> int:
    """Return the FLOPs of attention's two matrix products. Keys and values may be shared by several heads of queries.

    torch 2.11 has no formula for the operators of CPUs and mps, and none for shared heads.
    """
    query, value = args[0].shape, args[2].shape
    return 2 * int(prod(query[:-1])) * int(value[-2]) * (int(query[-1]) + int(value[-1]))


def _attention_activations(args: tuple[Any, ...], *_: Any) -> int:
    """Return the output elements of attention's two matrix products: scores, then values."""
    query, value = args[0].shape, args[2].shape
    return int(prod(query[:-1])) * (int(value[-2]) + int(value[-1]))


def _recurrent_weights(args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the weight matrices of a fused recurrent layer. mkldnn passes two, cuDNN a list of weights and biases."""
    weights = args[1] if isinstance(args[1], list | tuple) else args[1:3]
    return [weight for weight in weights if weight.dim() == 2]


def _recurrent(args: tuple[Any, ...], *_: Any) -> int:
    """Return the FLOPs of a recurrent layer: each time step uses all weights once. Packed input has no padded steps."""
    steps = int(prod(args[0].shape[:-1]))
    return 2 * steps * sum(weight.numel() for weight in _recurrent_weights(args))


def _recurrent_activations(args: tuple[Any, ...], *_: Any) -> int:
    """Return the output elements of a recurrent layer's matrix products."""
    return int(prod(args[0].shape[:-1])) * sum(int(weight.shape[0]) for weight in _recurrent_weights(args))


def _elements(_args: tuple[Any, ...], _kwargs: dict[str, Any], out: Any) -> int:
    """Return the number of elements of the output, or of the first of several outputs."""
    return int((out[0] if isinstance(out, tuple | list) else out).numel())


FORMULAS: dict[str, Formula] = {
    "mv": _matrix_vector,
    "addmv": _matrix_vector,
    "dot": _matrix_vector,
    "vdot": _matrix_vector,
    "addbmm": _matrix_product,
    "_int_mm": _matrix_product,
    "_grouped_mm": _grouped_mm,
    "_trilinear": _bilinear,
    "torchvision::deform_conv2d": _deformable,
    **dict.fromkeys(ATTENTION, _attention),
    **dict.fromkeys(RECURRENT, _recurrent),
}
"""Formulas that are missing in torch.utils.flop_counter, at least in torch 2.11, by operator."""
ACTIVATIONS: dict[str, Formula] = {
    **dict.fromkeys(PRODUCTS | CONVOLUTIONS, _elements),
    **dict.fromkeys(ATTENTION, _attention_activations),
    **dict.fromkeys(RECURRENT, _recurrent_activations),
}
"""Formulas for activations in fvcore's sense: output elements of matrix products and convolutions."""


@dataclass(frozen=True)
class Operator:
    """One operator overload with its formulas and its use of memory."""

    kind: str
    flops: Formula | None
    activations: Formula | None
    work: Work
    moves_nothing: bool
    """It is a view: it reads and writes no memory."""
    writes_at_index: bool
    """It changes, in place, only those elements of its first argument that its indices select."""
    overwrites: bool
    """It does not read the values of its first argument: it overwrites them, or makes a tensor of the same shape."""
    allocates: bool
    """It may return new memory, not only a view of an argument or an argument changed in place."""
    decomposes: bool
    """It has no formula, and is counted as the operators that torch decomposes it into."""


@cache
def describe(op: OpOverload) -> Operator:
    """Return the description of an overload. The result is cached."""
    # only torch's own operators are recognised by their short name: another library's `copy` may do anything
    base = (op._overloadpacket.__name__ if op.namespace == "aten" else op._schema.name).removesuffix("_")
    flops = _formula(op, base)
    view = _is_view(op, base)
    work = _work(op, base, view, flops)
    return Operator(
        kind="scaled_dot_product_attention" if base in ATTENTION else base,
        flops=flops,
        activations=ACTIVATIONS.get(base) if flops else None,
        work=work,
        moves_nothing=view,
        writes_at_index=base in INDEX_WRITES and op._schema.arguments[0].is_write,
        overwrites=base in CREATES | {"copy"} and (op._schema.is_mutable or base.startswith("new_") or "_like" in base),
        allocates=not view and any(returned.alias_info is None for returned in op._schema.returns),
        decomposes=work == "unknown" and not base.endswith("_backward") and op._can_decompose(),
    )


def _work(op: OpOverload, base: str, view: bool, flops: Formula | None) -> Work:
    if flops is not None:
        return "counted"
    if view or torch.Tag.pointwise in op.tags or base in MOVES | GATHERS | CREATES | UNTAGGED:
        return "free"
    return "minor" if torch.Tag.reduction in op.tags or base in MINOR else "unknown"


def _is_view(op: OpOverload, base: str) -> bool:
    """Return whether an operator is a view, also in place: `transpose_` changes a shape, but no memory."""
    if op.is_view or base in UNMARKED_VIEWS:
        return True
    plain = getattr(aten, base, None) if op._schema.is_mutable else None
    return plain is not None and any(_tensor_view(getattr(plain, name)) for name in plain.overloads())


def _tensor_view(op: OpOverload) -> bool:
    """Return whether an overload is a view of tensors. Some of `copy`, for TorchScript's lists, claim to be views."""
    return op.is_view and all(isinstance(returned.type, torch.TensorType) for returned in op._schema.returns)


def _formula(op: OpOverload, base: str) -> Formula | None:
    formula = FORMULAS.get(base)
    if formula is None and (registered := flop_registry.get(op._overloadpacket)) is not None:
        formula = lambda args, kwargs, out: int(registered(*args, **kwargs, out_val=out))  # noqa: E731
    if formula is None or base not in PRODUCTS:
        return formula
    # a multiply-add of complex numbers counts as four of real ones
    return lambda args, kwargs, out: formula(args, kwargs, out) * (4 if args[0].is_complex() else 1)


def kind_of(operator: Operator, args: tuple[Any, ...]) -> str:
    """Return the operator's kind. Convolutions are split by their number of groups, because that affects their speed.

    args of a convolution: input (N, C, ...), weight, bias, stride, padding, dilation, transposed, output padding,
    groups.
    """
    if operator.kind in ("convolution", "_convolution"):
        if args[8] == 1:
            return "convolution"
        return "depthwise_convolution" if args[8] == args[0].shape[1] else "grouped_convolution"
    return operator.kind
