"""FLOPs, activations and traffic of layers against formulas by hand, with 2 FLOPs per multiply-add."""

from collections.abc import Callable
from functools import partial
from math import prod

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import flop_registry
from torchvision.ops import DeformConv2d, ps_roi_align, roi_align, roi_pool

from engine.measure.counting.flops import Count, count
from engine.measure.counting.operators import describe

B, S, E, HEADS, FEED = 3, 7, 16, 4, 40
"""Batch size, sequence length, width, number of heads, feed-forward width."""
INPUT, H = 5, 6
"""Input and hidden size of recurrent layers."""
ALL_MODES = pytest.mark.parametrize(
    ("device", "training", "gradients"),
    [
        (device, training, gradients)
        for device in ("meta", "cpu")
        for training in (False, True)
        for gradients in (False, True)
    ],
)


def count_module(module: nn.Module, *inputs: torch.Tensor, training: bool = False, gradients: bool = False) -> Count:
    module.train(training)
    with torch.set_grad_enabled(gradients):
        return count(module, inputs)


def check(found: Count, flops: int, activations: int | None = None) -> None:
    assert found.unknown == {}
    assert found.flops == flops
    if activations is not None:
        assert found.activations == activations
    assert found.modules[""].flops == flops


@ALL_MODES
def test_linear_of_a_batch_and_of_one_vector(device: str, training: bool, gradients: bool) -> None:
    modes = {"training": training, "gradients": gradients}
    for bias in (True, False):
        layer = nn.Linear(E, FEED, bias=bias, device=device)
        check(count_module(layer, torch.ones(B, S, E, device=device), **modes), 2 * B * S * E * FEED, B * S * FEED)
        check(count_module(layer, torch.ones(E, device=device), **modes), 2 * E * FEED, FEED)


@ALL_MODES
@pytest.mark.parametrize(
    ("groups", "kind"), [(1, "convolution"), (2, "grouped_convolution"), (4, "depthwise_convolution")]
)
def test_convolutions_by_their_groups(device: str, training: bool, gradients: bool, groups: int, kind: str) -> None:
    layer = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=groups, device=device)
    found = count_module(layer, torch.ones(B, 4, 11, 9, device=device), training=training, gradients=gradients)
    out = B * 8 * 6 * 5
    check(found, 2 * out * (4 // groups) * 9, out)
    assert [operator.operator for operator in found.operators if operator.flops] == [kind]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_transposed_convolution(device: str) -> None:
    layer = nn.ConvTranspose2d(4, 8, 2, stride=2, device=device)
    check(count_module(layer, torch.ones(B, 4, 5, 6, device=device)), 2 * B * 5 * 6 * 4 * 8 * 4, B * 8 * 10 * 12)


class Attention(nn.Module):
    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, key, is_causal=self.causal)


FUSED_ATTENTION = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_cudnn_attention")


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("name", FUSED_ATTENTION)
def test_attention_is_counted_where_torch_has_no_formula(
    monkeypatch: pytest.MonkeyPatch, name: str, shared: int
) -> None:
    """torch 2.11 has no formula for CPUs and none for keys that several heads share."""
    operator = getattr(torch.ops.aten, name)
    monkeypatch.delitem(flop_registry, operator, raising=False)
    description = describe.__wrapped__(operator.default)  # type: ignore[attr-defined]
    query, key = torch.ones(B, HEADS, S, E), torch.ones(B, HEADS // shared, S + 2, E)
    assert description.work == "counted"
    assert description.flops((query, key, key), {}, (query, None)) == 2 * 2 * B * HEADS * S * (S + 2) * E


@pytest.mark.parametrize("name", ["celu", "elu", "selu", "hardsigmoid", "hardtanh", "leaky_relu"])
def test_in_place_activation_without_a_torch_tag_is_free(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """torch 2.11 gives these operators no tag, so a MobileNetV2 with relu6 was counted as incomplete."""
    operator = getattr(torch.ops.aten, f"{name}_").default
    monkeypatch.setattr(type(operator), "tags", property(lambda _: []))
    assert describe.__wrapped__(operator).work == "free"  # type: ignore[attr-defined]


@ALL_MODES
@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention_is_two_matrix_products(
    device: str, training: bool, gradients: bool, causal: bool
) -> None:
    query = torch.ones(B, HEADS, S, E, device=device, requires_grad=bool(gradients))
    key = torch.ones(B, HEADS, S + 2, E, device=device)
    found = count_module(Attention(causal), query, key, training=training, gradients=gradients)
    scores = B * HEADS * S * (S + 2)
    check(found, 2 * 2 * scores * E, scores + B * HEADS * S * E)
    assert "scaled_dot_product_attention" in [operator.operator for operator in found.operators]


class Apply(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shared", [1, 2, HEADS])
def test_attention_with_grouped_queries_is_fused(device: str, masked: bool, shared: int) -> None:
    """Keys and values are read once for all heads that share them, and scores are not stored."""
    query = torch.ones(B, HEADS, S, E, device=device)
    key = torch.ones(B, shared, 50, E, device=device)
    mask = torch.zeros(B, 1, S, 50, device=device) if masked else None

    def attend(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, key, attn_mask=mask, enable_gqa=True)

    found = count_module(Apply(attend), query, key)
    scores = B * HEADS * S * 50
    check(found, 2 * 2 * scores * E, scores + B * HEADS * S * E)
    out, sums = B * HEADS * S * E, B * HEADS * S
    read = 2 * B * shared * 50 * E + out + (B * S * 50 if masked else 0)
    assert found.traffic_bytes == 4 * (read + out + sums)
    assert found.peak_bytes == 4 * (out + sums)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("mask", [(), (S, 50), (B, S, 50)])
def test_attention_without_a_dimension_of_heads_is_fused(device: str, mask: tuple[int, ...]) -> None:
    query, key = torch.ones(B, S, E, device=device), torch.ones(B, 50, E, device=device)
    attention_mask = torch.zeros(mask, device=device) if mask else None

    def attend(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, key, attn_mask=attention_mask)

    found = count_module(Apply(attend), query, key)
    check(found, 2 * 2 * B * S * 50 * E, B * S * (50 + E))
    out, sums = B * S * E, B * S
    assert found.traffic_bytes == 4 * (2 * B * 50 * E + 2 * out + sums + (prod(mask) if mask else 0))
    assert found.peak_bytes == 4 * (out + sums)


@pytest.mark.parametrize(
    ("query", "key", "products"),
    [((B, S, E), (B, B, 9, E), B * B), ((B, HEADS, S, E), (HEADS, 9, E), B * HEADS), ((S, E), (9, E), 1)],
)
def test_attention_of_other_shapes_counts_equally_on_meta_and_cpu(
    query: tuple[int, ...], key: tuple[int, ...], products: int
) -> None:
    results = []
    for device in ("meta", "cpu"):
        found = count_module(Attention(), torch.ones(query, device=device), torch.ones(key, device=device))
        results.append((found.flops, found.traffic_bytes, found.peak_bytes))
    assert results[0] == results[1]
    assert results[0][0] == products * 2 * 2 * S * 9 * E


def test_attention_to_wider_values_is_not_fused_on_meta_either() -> None:
    results = []
    for device in ("meta", "cpu"):
        query, key, value = (
            torch.ones(shape, device=device) for shape in ((B, 1, S, E), (B, 1, 9, E), (B, 1, 9, FEED))
        )
        # called by its name, because the counter replaces the function
        found = count_module(Apply(lambda *tensors: F.scaled_dot_product_attention(*tensors)), query, key, value)
        assert found.flops == B * 2 * S * 9 * (E + FEED)
        results.append((found.traffic_bytes, found.peak_bytes, {item.operator for item in found.operators}))
    assert results[0] == results[1]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_complex_multiply_add_counts_as_four_real_ones(device: str) -> None:
    matrix = torch.ones(B, S, dtype=torch.complex64, device=device)
    other = torch.ones(S, FEED, dtype=torch.complex64, device=device)
    vector = torch.ones(S, dtype=torch.complex64, device=device)
    check(count_module(Apply(torch.mm), matrix, other), 4 * 2 * B * S * FEED, B * FEED)
    check(count_module(Apply(torch.bmm), matrix[None], other[None]), 4 * 2 * B * S * FEED, B * FEED)
    check(count_module(Apply(torch.mv), matrix, vector), 4 * 2 * B * S, B)
    check(count_module(Apply(torch.dot), vector, vector), 4 * 2 * S, 1)
    layer = nn.Linear(S, FEED, dtype=torch.complex64, device=device)
    check(count_module(layer, matrix), 4 * 2 * B * S * FEED, B * FEED)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_products_of_vectors_and_sums_of_products(device: str) -> None:
    matrix, vector = torch.ones(B, S, device=device), torch.ones(S, device=device)
    check(count_module(Apply(torch.addmv), torch.ones(B, device=device), matrix, vector), 2 * B * S, B)
    check(count_module(Apply(torch.vdot), vector, vector), 2 * S, 1)
    factors = (torch.ones(shape, device=device) for shape in ((B, FEED), (3, B, S), (3, S, FEED)))
    check(count_module(Apply(torch.addbmm), *factors), 3 * 2 * B * S * FEED, B * FEED)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("leading", [(B,), (B, S)])
def test_bilinear(device: str, leading: tuple[int, ...]) -> None:
    """Each output feature is x W y: the product of x and W, then the product with y."""
    layer = nn.Bilinear(E, 5, FEED, device=device)
    found = count_module(layer, torch.ones(*leading, E, device=device), torch.ones(*leading, 5, device=device))
    check(found, 2 * prod(leading) * FEED * (E * 5 + 5), prod(leading) * FEED)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_integer_matrix_product(device: str) -> None:
    first = torch.ones(32, 16, dtype=torch.int8, device=device)
    check(count_module(Apply(torch._int_mm), first, first[:16].T.contiguous().T), 2 * 32 * 16 * 16, 32 * 16)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(
    ("first", "second", "flops", "out"),
    [
        ((3, 16, 32), (3, 32, 8), 3 * 2 * 16 * 32 * 8, 3 * 16 * 8),
        ((48, 32), (3, 32, 8), 2 * 48 * 32 * 8, 48 * 8),
        ((3, 16, 32), (32, 48), 3 * 2 * 16 * 32 * 16, 16 * 48),
        ((16, 48), (48, 8), 3 * 2 * 16 * 16 * 8, 3 * 16 * 8),
    ],
    ids=["no sides", "rows", "columns", "inner"],
)
def test_grouped_matrix_products(
    device: str, first: tuple[int, ...], second: tuple[int, ...], flops: int, out: int
) -> None:
    """Three groups of 16 rows or columns. The groups lie along a dimension of the 2-d factors."""
    group_ends = torch.tensor([16, 32, 48], dtype=torch.int32, device=device)
    offsets = None if len(first) == len(second) == 3 else group_ends
    factors = (torch.ones(shape, dtype=torch.bfloat16, device=device) for shape in (first, second))
    check(count_module(Apply(partial(torch._grouped_mm, offs=offsets)), *factors), flops, out)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("modulated", [False, True])
def test_deformable_convolution(device: str, groups: int, modulated: bool) -> None:
    layer = DeformConv2d(4, 6, 3, groups=groups)
    masks = [torch.ones(B, 9, 7, 5, device=device)] if modulated else []
    found = count_module(
        layer.to(device), torch.ones(B, 4, 9, 7, device=device), torch.zeros(B, 18, 7, 5, device=device), *masks
    )
    out = B * 6 * 7 * 5
    check(found, 2 * out * (4 // groups) * 9, out)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_volume_interpolation_and_embedding_bags_have_no_flops(device: str) -> None:
    volume = torch.ones(1, 2, 3, 4, 5, device=device)
    upsampled = count_module(nn.Upsample(scale_factor=2, mode="trilinear"), volume)
    sampled = count_module(
        Apply(partial(F.grid_sample, align_corners=False)), volume, torch.zeros(1, 3, 4, 5, 3, device=device)
    )
    bags = count_module(nn.EmbeddingBag(10, E, device=device), torch.ones(B, S, dtype=torch.int64, device=device))
    for found, name in ((upsampled, "upsample_trilinear3d"), (sampled, "grid_sampler_3d"), (bags, "_embedding_bag")):
        check(found, 0, 0)
        assert found.uncounted == {name: 1}


def attention_flops() -> int:
    projections = 2 * B * S * E * (3 * E + E)
    return projections + 2 * 2 * B * S * S * E


@ALL_MODES
@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention(device: str, training: bool, gradients: bool, need_weights: bool) -> None:
    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(E, HEADS, batch_first=True, device=device)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=need_weights)[0]

    found = count_module(SelfAttention(), torch.ones(B, S, E, device=device), training=training, gradients=gradients)
    check(found, attention_flops(), B * S * 4 * E + B * HEADS * S * S + B * S * E)


@ALL_MODES
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_transformer_encoder_layer(device: str, training: bool, gradients: bool, dropout: float) -> None:
    layer = nn.TransformerEncoderLayer(E, HEADS, FEED, dropout=dropout, batch_first=True, device=device)
    found = count_module(layer, torch.ones(B, S, E, device=device), training=training, gradients=gradients)
    check(found, attention_flops() + 2 * 2 * B * S * E * FEED)


@ALL_MODES
@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers(
    device: str, training: bool, gradients: bool, layer: type[nn.RNNBase], gates: int, directions: int
) -> None:
    module = layer(INPUT, H, num_layers=2, bidirectional=directions == 2, batch_first=True, device=device)
    found = count_module(module, torch.ones(B, S, INPUT, device=device), training=training, gradients=gradients)
    weights = directions * gates * H * ((INPUT + H) + (directions * H + H))
    check(found, 2 * B * S * weights, 2 * B * S * 2 * directions * gates * H)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@ALL_MODES
def test_lstm_with_projection(device: str, training: bool, gradients: bool) -> None:
    projection_size = 3
    module = nn.LSTM(INPUT, H, proj_size=projection_size, device=device)
    found = count_module(module, torch.ones(S, B, INPUT, device=device), training=training, gradients=gradients)
    check(found, 2 * B * S * (4 * H * (INPUT + projection_size) + H * projection_size))


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_lstm_on_meta_counts_as_the_fused_layer_of_a_cpu(directions: int, bias: bool) -> None:
    """Split into time steps, an LSTM would have several times the traffic: each step would read all weights."""
    found = {}
    for device in ("meta", "cpu"):
        layers = {"num_layers": 2, "bidirectional": directions == 2, "bias": bias, "batch_first": True}
        module = nn.LSTM(INPUT, H, device=device, **layers)
        found[device] = count_module(module, torch.ones(B, S, INPUT, device=device))
    meta, cpu = found.values()
    assert {item.operator: item.calls for item in meta.operators if item.flops} == {"mkldnn_rnn_layer": 2 * directions}
    assert meta.operators == cpu.operators
    assert meta.peak_bytes == cpu.peak_bytes


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("fields", [{"proj_size": 3}, {}])
def test_lstm_with_projection_or_gradients_is_not_fused(
    fields: dict[str, int],
) -> None:
    module = nn.LSTM(INPUT, H, device="meta", **fields)
    found = count_module(module, torch.ones(S, B, INPUT, device="meta"), gradients=not fields)
    assert "mkldnn_rnn_layer" not in [item.operator for item in found.operators]


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_count_without_padding(layer: type[nn.RNNBase]) -> None:
    lengths = [7, 4, 2]
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(7, 3, INPUT), torch.tensor(lengths))
    module = layer(INPUT, H)
    with torch.no_grad():
        found = count(module, (packed,))
    check(found, 2 * sum(lengths) * (module.weight_ih_l0.numel() + module.weight_hh_l0.numel()))


FUSED_ON_CUDA = {
    "_scaled_dot_product_efficient_attention": (None, False),
    "_scaled_dot_product_flash_attention": (),
    "_scaled_dot_product_cudnn_attention": (None, False),
    "_scaled_dot_product_fused_attention_overrideable": (),
}


class Operator(nn.Module):
    """Call one aten operator by its name. On meta, operators of accelerators need no accelerator."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, *args: object) -> torch.Tensor:
        return getattr(torch.ops.aten, self.name)(*args)[0]


@pytest.mark.parametrize("name", FUSED_ON_CUDA)
def test_attention_operators_of_accelerators(name: str) -> None:
    query = torch.ones(B, HEADS, S, E, device="meta", dtype=torch.float16)
    with torch.no_grad():
        found = count(Operator(name), (query, query, query, *FUSED_ON_CUDA[name]))
    check(found, 2 * 2 * B * HEADS * S * S * E, B * HEADS * S * (S + E))


def test_cudnn_recurrent_operator() -> None:
    """Two bidirectional layers of an LSTM (mode 2). Weights and biases are one list, four tensors per direction."""
    weights = list(nn.LSTM(INPUT, H, num_layers=2, bidirectional=True, device="meta").parameters())
    state = torch.zeros(4, B, H, device="meta")
    x = torch.ones(S, B, INPUT, device="meta")
    with torch.no_grad():
        found = count(
            Operator("_cudnn_rnn"),
            (x, weights, 4, None, state, state, 2, H, 0, 2, False, 0.0, False, True, [], None),
        )
    check(found, 2 * S * B * 2 * 4 * H * ((INPUT + H) + (2 * H + H)), S * B * 2 * 4 * H * 4)


def first_row(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int64, device=x.device)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(
    ("name", "work", "function"),
    [
        ("index_fill", "free", lambda x: x.index_fill(0, first_row(x), 0.0)),
        ("index", "free", lambda x: x[first_row(x)]),
        ("index_select", "free", lambda x: x.index_select(0, first_row(x))),
        ("gather", "free", lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.int64))),
        ("embedding", "free", lambda x: F.embedding(first_row(x), x[0, 0, 0])),
        ("replication_pad1d", "free", lambda x: F.pad(x[0, 0], (1, 1), mode="replicate")),
        ("replication_pad3d", "free", lambda x: F.pad(x, (1,) * 6, mode="replicate")),
        ("reflection_pad3d", "free", lambda x: F.pad(x, (1,) * 6, mode="reflect")),
        ("rot90", "free", torch.rot90),
        ("diag_embed", "free", torch.diag_embed),
        ("max_unpool2d", "free", lambda x: F.max_unpool2d(*F.max_pool2d(x[0], 2, return_indices=True), 2)),
        ("log_sigmoid_forward", "free", F.logsigmoid),
        ("exponential", "free", lambda x: F.gumbel_softmax(x).sum()),
        ("complex", "free", lambda x: torch.complex(x, x)),
        ("block_diag", "free", lambda x: torch.block_diag(x[0, 0, 0], x[0, 0, 1])),
        ("index_add", "minor", lambda x: x.index_add(0, first_row(x), x[:1])),
        ("scatter_add", "minor", lambda x: x.scatter_add(0, torch.zeros_like(x, dtype=torch.int64), x)),
        ("scatter_reduce", "minor", lambda x: x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.int64), x, "amax")),
        ("cumprod", "minor", lambda x: x.cumprod(-1)),
        ("cummax", "minor", lambda x: x.cummax(-1)[0]),
        ("logcumsumexp", "minor", lambda x: x.logcumsumexp(-1)),
        ("adaptive_max_pool3d", "minor", lambda x: F.adaptive_max_pool3d(x, 2)),
        ("affine_grid_generator", "minor", lambda x: F.affine_grid(x[0, 0, :2, :2, :3], [2, 1, 4, 4], False)),
        ("torchvision::roi_align", "minor", lambda x: roi_align(x[0], [x[0, 0, 0, :1, :4]], 2)),
        ("torchvision::roi_pool", "minor", lambda x: roi_pool(x[0], [x[0, 0, 0, :1, :4]] * 2, 2)),
        (
            "torchvision::ps_roi_align",
            "minor",
            lambda x: ps_roi_align(x[0].repeat(1, 2, 1, 1), [x[0, 0, 0, :1, :4]] * 2, 2),
        ),
        ("fractional_max_pool2d", "minor", lambda x: F.fractional_max_pool2d(x[0], 2, output_size=2)),
        ("fractional_max_pool3d", "minor", lambda x: F.fractional_max_pool3d(x, 2, output_size=2)),
        ("topk", "minor", lambda x: x.topk(2).indices),
        ("sort", "minor", torch.argsort),
        ("kthvalue", "minor", lambda x: x.kthvalue(2).values),
        ("median", "minor", lambda x: x.median(dim=-1).values),
        ("nanmedian", "minor", torch.nanmedian),
        ("mode", "minor", lambda x: x.mode().values),
        ("searchsorted", "minor", lambda x: torch.searchsorted(x[0, 0, 0, 0], x)),
        ("bucketize", "minor", lambda x: torch.bucketize(x, x[0, 0, 0, 0])),
        ("multinomial", "minor", lambda x: x[0, 0, 0].multinomial(2)),
        ("histc", "minor", lambda x: x.histc(4)),
    ],
)
def test_bounded_work_does_not_make_a_count_incomplete(
    device: str, name: str, work: str, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    found = count_module(Apply(function), torch.rand(2, 2, 4, 4, 4, device=device))
    assert {item.operator: item.work for item in found.operators}[name] == work
    assert found.unknown == {}


class Experts(nn.Module):
    """A mixture of experts: a router picks 2 of 3 experts for each token, and all experts are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(E, 3)
        self.experts = nn.ModuleList(nn.Linear(E, 5) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).topk(2)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (outputs.gather(-1, chosen[..., None, :].expand(-1, -1, 5, -1)) * weights[..., None, :]).sum(dim=-1)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_count_of_a_mixture_of_experts_is_complete(device: str) -> None:
    found = count_module(Experts().to(device), torch.rand(B, S, E, device=device))
    check(found, 2 * B * S * E * (3 + 3 * 5), B * S * (3 + 3 * 5))  # also that no work is unknown


class Unknown(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, x) + torch.fft.rfft(x).abs().sum()


def test_operators_without_a_formula_are_listed() -> None:
    found = count_module(Unknown(), torch.rand(B, S, E))
    assert found.unknown == {"_cdist_forward": 1, "_fft_r2c": 1}
    assert found.uncounted == {"_cdist_forward": 1, "_fft_r2c": 1, "sum": 1}


def test_elementwise_work_and_views_are_free() -> None:
    model = nn.Sequential(nn.Unflatten(1, (4, 4)), nn.BatchNorm1d(4), nn.GELU(), nn.Flatten(), nn.Softmax(-1))
    found = count_module(model, torch.ones(B, 16))
    check(found, 0, 0)
    assert found.uncounted == {"native_batch_norm": 1, "_softmax": 1}


def test_module_counts_include_submodules_and_all_calls() -> None:
    shared = nn.Linear(E, E)
    model = nn.Sequential(shared, nn.Sequential(shared, nn.Linear(E, FEED)))
    found = count_module(model, torch.ones(B, E))
    flops_of_one_call = 2 * B * E * E
    assert (found.modules["0"].flops, found.modules["0"].calls) == (2 * flops_of_one_call, 2)
    assert found.modules["1"].flops == flops_of_one_call + 2 * B * E * FEED
    assert found.modules["1.1"].activations == B * FEED
    assert found.modules[""].flops == 2 * flops_of_one_call + 2 * B * E * FEED


class Outputs(dict[str, torch.Tensor]):
    """Outputs by name, as some research code returns them."""


class Named(nn.Module):
    def forward(self, x: torch.Tensor) -> Outputs:
        return Outputs(total=x.sum(), features=x)


def test_output_of_a_module_is_its_first_tensor_with_a_shape() -> None:
    assert count_module(Named(), torch.ones(B, E)).modules[""].output == (B, E)


def test_traffic_is_what_operators_read_and_write() -> None:
    found = count_module(nn.Linear(E, FEED, bias=False), torch.ones(B, E))
    (product,) = (operator for operator in found.operators if operator.flops)
    assert product.read_bytes == 4 * (B * E + E * FEED)
    assert product.written_bytes == 4 * B * FEED
    table = count_module(nn.Embedding(10_000, E), torch.ones(B, dtype=torch.int64))
    assert table.traffic_bytes == 2 * 4 * B * E, "an embedding reads the rows it returns, not its table"


class AssignAndZero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both_halves = torch.empty(B, 2 * E, device=x.device)
        both_halves[:, :E] = x
        return both_halves.zero_()


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_overwritten_tensors_are_written_and_not_read(device: str) -> None:
    found = {item.operator: item for item in count_module(AssignAndZero(), torch.ones(B, E, device=device)).operators}
    assert (found["copy"].read_bytes, found["copy"].written_bytes) == (4 * B * E, 4 * B * E)
    assert (found["zero"].read_bytes, found["zero"].written_bytes) == (0, 4 * B * 2 * E)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_new_tensors_are_not_read_from_the_one_they_resemble(device: str) -> None:
    x = torch.ones(B, E, device=device)
    made = count_module(Apply(lambda x: torch.zeros_like(x) + x.new_ones(B, E)), x)
    found = {item.operator: (item.read_bytes, item.written_bytes) for item in made.operators}
    size = 4 * B * E
    assert found == {"zeros_like": (0, size), "new_ones": (0, size), "add": (2 * size, size)}
    assert count_module(Apply(torch.bernoulli), x).traffic_bytes == 2 * size, "it reads the probabilities"


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("reserve", [torch.empty_like, lambda x: x.new_empty(B, E), lambda x: torch.empty_like(x.mT)])
def test_reserved_memory_is_neither_read_nor_written(
    device: str, reserve: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    found = count_module(Apply(reserve), torch.ones(B, E, device=device))
    assert (found.traffic_bytes, found.peak_bytes) == (0, 4 * B * E)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_embedding_bag_reads_the_rows_of_its_bags(device: str, mode: str) -> None:
    table = nn.EmbeddingBag(10_000, E, mode=mode, device=device)
    numbers, offsets = torch.ones(B * S, dtype=torch.int64, device=device), S * torch.arange(B, device=device)
    found = count_module(table, numbers, offsets)
    (bags,) = (item for item in found.operators if item.operator == "_embedding_bag")
    assert bags.read_bytes == 4 * B * S * E + 8 * B * S + 8 * B


def test_inference_mode_is_refused() -> None:
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference mode hides"):
        count(nn.Linear(E, E), (torch.ones(E),))


def test_inputs_that_are_no_tuple_are_refused() -> None:
    with pytest.raises(TypeError, match=r"write \(images,\)"):
        count(nn.Linear(E, E), torch.ones(1, E))  # type: ignore[arg-type]  # else its only row would be the argument


def test_count_restores_torch_even_if_a_model_fails() -> None:
    attention, lstm = F.scaled_dot_product_attention, torch._VF.lstm
    torch.backends.mha.set_fastpath_enabled(True)
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        count(nn.Sequential(nn.Linear(E, E)), (torch.ones(B, E + 1),))
    assert torch.backends.mha.get_fastpath_enabled()
    assert F.scaled_dot_product_attention is attention
    assert torch._VF.lstm is lstm
    check(count_module(nn.Linear(E, E), torch.ones(B, E)), 2 * B * E * E)
