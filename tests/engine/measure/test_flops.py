"""The counter against formulas worked out by hand: 2 FLOPs per multiply-add."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine.measure.flops import Count, count

B, S, E, HEADS, FEED = 3, 7, 16, 4, 40
"""Batch, sequence, width, heads, feed-forward width."""
INPUT, H = 5, 6
"""Input and hidden size of recurrent layers."""
EVERY_WAY = pytest.mark.parametrize(
    ("device", "training", "gradients"),
    [
        (device, training, gradients)
        for device in ("meta", "cpu")
        for training in (False, True)
        for gradients in (False, True)
    ],
)


def counted(module: nn.Module, *inputs: torch.Tensor, training: bool = False, gradients: bool = False) -> Count:
    module.train(training)
    with torch.set_grad_enabled(gradients):
        return count(module, inputs)


def check(found: Count, flops: int, activations: int | None = None) -> None:
    assert found.unknown == {}
    assert found.flops == flops
    if activations is not None:
        assert found.activations == activations
    assert found.modules[""].flops == flops


@EVERY_WAY
def test_linear_and_its_one_vector_case(device: str, training: bool, gradients: bool) -> None:
    how = {"training": training, "gradients": gradients}
    for bias in (True, False):
        layer = nn.Linear(E, FEED, bias=bias, device=device)
        check(counted(layer, torch.ones(B, S, E, device=device), **how), 2 * B * S * E * FEED, B * S * FEED)
        check(counted(layer, torch.ones(E, device=device), **how), 2 * E * FEED, FEED)


@EVERY_WAY
@pytest.mark.parametrize(
    ("groups", "kind"), [(1, "convolution"), (2, "grouped_convolution"), (4, "depthwise_convolution")]
)
def test_convolutions_by_their_groups(device: str, training: bool, gradients: bool, groups: int, kind: str) -> None:
    layer = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=groups, device=device)
    found = counted(layer, torch.ones(B, 4, 11, 9, device=device), training=training, gradients=gradients)
    out = B * 8 * 6 * 5
    check(found, 2 * out * (4 // groups) * 9, out)
    assert [operator.operator for operator in found.operators if operator.flops] == [kind]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_transposed_convolution(device: str) -> None:
    layer = nn.ConvTranspose2d(4, 8, 2, stride=2, device=device)
    check(counted(layer, torch.ones(B, 4, 5, 6, device=device)), 2 * B * 5 * 6 * 4 * 8 * 4, B * 8 * 10 * 12)


class Attention(nn.Module):
    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, key, is_causal=self.causal)


@EVERY_WAY
@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention_is_two_matrix_products(
    device: str, training: bool, gradients: bool, causal: bool
) -> None:
    query = torch.ones(B, HEADS, S, E, device=device, requires_grad=bool(gradients))
    key = torch.ones(B, HEADS, S + 2, E, device=device)
    found = counted(Attention(causal), query, key, training=training, gradients=gradients)
    scores = B * HEADS * S * (S + 2)
    check(found, 2 * 2 * scores * E, scores + B * HEADS * S * E)
    assert "scaled_dot_product_attention" in [operator.operator for operator in found.operators]


def attention_flops() -> int:
    projections = 2 * B * S * E * (3 * E + E)
    return projections + 2 * 2 * B * S * S * E


@EVERY_WAY
@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention(device: str, training: bool, gradients: bool, need_weights: bool) -> None:
    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(E, HEADS, batch_first=True, device=device)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=need_weights)[0]

    found = counted(SelfAttention(), torch.ones(B, S, E, device=device), training=training, gradients=gradients)
    check(found, attention_flops(), B * S * 4 * E + B * HEADS * S * S + B * S * E)


@EVERY_WAY
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_transformer_encoder_layer(device: str, training: bool, gradients: bool, dropout: float) -> None:
    layer = nn.TransformerEncoderLayer(E, HEADS, FEED, dropout=dropout, batch_first=True, device=device)
    found = counted(layer, torch.ones(B, S, E, device=device), training=training, gradients=gradients)
    check(found, attention_flops() + 2 * 2 * B * S * E * FEED)


@EVERY_WAY
@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers(
    device: str, training: bool, gradients: bool, layer: type[nn.RNNBase], gates: int, directions: int
) -> None:
    module = layer(INPUT, H, num_layers=2, bidirectional=directions == 2, batch_first=True, device=device)
    found = counted(module, torch.ones(B, S, INPUT, device=device), training=training, gradients=gradients)
    weights = directions * gates * H * ((INPUT + H) + (directions * H + H))
    check(found, 2 * B * S * weights, 2 * B * S * 2 * directions * gates * H)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@EVERY_WAY
def test_lstm_with_projection(device: str, training: bool, gradients: bool) -> None:
    projected = 3
    module = nn.LSTM(INPUT, H, proj_size=projected, device=device)
    found = counted(module, torch.ones(S, B, INPUT, device=device), training=training, gradients=gradients)
    check(found, 2 * B * S * (4 * H * (INPUT + projected) + H * projected))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_count_real_steps_only(layer: type[nn.RNNBase]) -> None:
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
    """One operator by its name, as a device would call it; on meta it needs no such device."""

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
    """Two bidirectional layers of an LSTM (mode 2), weights and biases in one list, four to a direction."""
    weights = list(nn.LSTM(INPUT, H, num_layers=2, bidirectional=True, device="meta").parameters())
    state = torch.zeros(4, B, H, device="meta")
    x = torch.ones(S, B, INPUT, device="meta")
    with torch.no_grad():
        found = count(
            Operator("_cudnn_rnn"),
            (x, weights, 4, None, state, state, 2, H, 0, 2, False, 0.0, False, True, [], None),
        )
    check(found, 2 * S * B * 2 * 4 * H * ((INPUT + H) + (2 * H + H)), S * B * 2 * 4 * H * 4)


class Unknown(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, x) + torch.fft.rfft(x).abs().sum()


def test_work_without_a_formula_is_listed_never_silently_zero() -> None:
    found = counted(Unknown(), torch.rand(B, S, E))
    assert found.unknown == {"_cdist_forward": 1, "_fft_r2c": 1}
    assert found.uncounted == {"_cdist_forward": 1, "_fft_r2c": 1, "sum": 1}


def test_elementwise_work_and_views_are_free_and_the_rest_is_listed() -> None:
    model = nn.Sequential(nn.Unflatten(1, (4, 4)), nn.BatchNorm1d(4), nn.GELU(), nn.Flatten(), nn.Softmax(-1))
    found = counted(model, torch.ones(B, 16))
    check(found, 0, 0)
    assert found.uncounted == {"native_batch_norm": 1, "_softmax": 1}


def test_modules_hold_what_is_below_them_and_a_shared_one_all_its_calls() -> None:
    shared = nn.Linear(E, E)
    model = nn.Sequential(shared, nn.Sequential(shared, nn.Linear(E, FEED)))
    found = counted(model, torch.ones(B, E))
    once = 2 * B * E * E
    assert (found.modules["0"].flops, found.modules["0"].calls) == (2 * once, 2)
    assert found.modules["1"].flops == once + 2 * B * E * FEED
    assert found.modules["1.1"].activations == B * FEED
    assert found.modules[""].flops == 2 * once + 2 * B * E * FEED


def test_traffic_is_what_operators_read_and_write() -> None:
    found = counted(nn.Linear(E, FEED, bias=False), torch.ones(B, E))
    (product,) = (operator for operator in found.operators if operator.flops)
    assert product.read_bytes == 4 * (B * E + E * FEED)
    assert product.written_bytes == 4 * B * FEED
    table = counted(nn.Embedding(10_000, E), torch.ones(B, dtype=torch.int64))
    assert table.traffic_bytes == 2 * 4 * B * E, "an embedding reads the rows it returns, not its table"


class Assigned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(B, 2 * E, device=x.device)
        whole[:, :E] = x
        return whole.zero_()


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_what_is_overwritten_is_written_and_not_read(device: str) -> None:
    found = {each.operator: each for each in counted(Assigned(), torch.ones(B, E, device=device)).operators}
    assert (found["copy"].read_bytes, found["copy"].written_bytes) == (4 * B * E, 4 * B * E)
    assert (found["zero"].read_bytes, found["zero"].written_bytes) == (0, 4 * B * 2 * E)


def test_inference_mode_is_refused_as_it_would_hide_everything() -> None:
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference mode hides"):
        count(nn.Linear(E, E), (torch.ones(E),))


def test_nothing_is_left_changed_even_when_a_model_fails() -> None:
    attention = F.scaled_dot_product_attention
    torch.backends.mha.set_fastpath_enabled(True)
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        count(nn.Sequential(nn.Linear(E, E)), (torch.ones(B, E + 1),))
    assert torch.backends.mha.get_fastpath_enabled()
    assert F.scaled_dot_product_attention is attention
    check(counted(nn.Linear(E, E), torch.ones(B, E)), 2 * B * E * E)
