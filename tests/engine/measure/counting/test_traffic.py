"""Bytes that operators read and write, against formulas by hand: expanded tensors and writes at indices."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from engine.measure.counting.flops import count
from engine.measure.counting.traffic import stored_elements
from tests.engine.measure.counting.test_flops import Apply

B, C, H, W = 2, 3, 5, 7
ON_BOTH = pytest.mark.parametrize("device", ["meta", "cpu"])


def traffic(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> dict[str, tuple[int, int]]:
    """Return the bytes read and written by operator."""
    with torch.no_grad():
        found = count(Apply(function), args)
    return {item.operator: (item.read_bytes, item.written_bytes) for item in found.operators}


@ON_BOTH
@pytest.mark.parametrize("repeat", ["expand", "expand_as", "broadcast"])
def test_expanded_gate_is_read_once(device: str, repeat: str) -> None:
    """ECA multiplies a feature map (B, C, H, W) by a gate (B, C, 1, 1): with or without `expand_as`, it is the same."""
    image, gate = torch.ones(B, C, H, W, device=device), torch.ones(B, C, 1, 1, device=device)
    gated = {
        "expand": lambda image, gate: image * gate.expand(-1, -1, H, W),
        "expand_as": lambda image, gate: image * gate.expand_as(image),
        "broadcast": lambda image, gate: image * gate,
    }[repeat]
    pixels = 4 * B * C * H * W
    assert traffic(gated, image, gate) == {"mul": (pixels + 4 * B * C, pixels)}


@ON_BOTH
@pytest.mark.parametrize("split", [torch.unsafe_split, torch.unsafe_chunk, torch.unsafe_split_with_sizes])
def test_gates_of_a_cell_are_split_without_a_copy(device: str, split: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    """torch splits the gates of its own GRU cell so. The schema does not mark it as a view, but it is one."""
    x = torch.ones(4, 6, device=device)
    sizes = [2, 2, 2] if split is torch.unsafe_split_with_sizes else 2
    parts = split(x, sizes, dim=1)
    assert {part.untyped_storage()._cdata for part in parts} == {x.untyped_storage()._cdata}
    assert traffic(lambda x: split(x, sizes, dim=1)[0], x) == {}


@ON_BOTH
@pytest.mark.parametrize("copy", [torch.Tensor.contiguous, torch.clone, lambda x: x.reshape(-1)])
def test_copy_of_an_expanded_tensor_reads_few_and_writes_all(
    device: str, copy: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    row = torch.ones(W, device=device)
    found = traffic(lambda row: copy(row.expand(H, W)) + 1, row)
    assert found == {"clone": (4 * W, 4 * H * W), "add": (4 * H * W, 4 * H * W)}
    filled = traffic(lambda row: torch.empty(H, W, device=device).copy_(row.expand(H, W)), row)
    assert filled == {"empty": (0, 0), "copy": (4 * W, 4 * H * W)}


@ON_BOTH
def test_expanded_mask_and_keys_of_attention_are_read_once(device: str) -> None:
    query, shared = torch.ones(B, 4, H, 8, device=device), torch.ones(1, 1, H, 8, device=device)
    mask = torch.zeros(H, H, device=device)

    def attend(query: torch.Tensor, shared: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        key = shared.expand(B, 4, H, 8)
        return F.scaled_dot_product_attention(query, key, key, mask.expand(B, 4, H, H))

    read, written = traffic(attend, query, shared, mask)["scaled_dot_product_attention"]
    out, sums = B * 4 * H * 8, B * 4 * H
    assert (read, written) == (4 * (out + 2 * H * 8 + H * H), 4 * (out + sums))


@ON_BOTH
def test_change_in_place_of_part_of_a_tensor_moves_that_part(device: str) -> None:
    x = torch.ones(H, W, device=device)
    assert traffic(lambda x: x[1:3].add_(1), x) == {"add": (4 * 2 * W, 4 * 2 * W)}
    assert traffic(lambda x: x[:, 0].zero_(), x) == {"zero": (0, 4 * H)}

    def assign(x: torch.Tensor) -> torch.Tensor:
        x[1:3] = x[0]
        return x

    assert traffic(assign, x) == {"copy": (4 * W, 4 * 2 * W)}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize(
    ("view", "stored"),
    [
        (lambda x: x, H * W),
        (lambda x: x.T, H * W),
        (lambda x: x[:, :2], 2 * H),
        (lambda x: x[:, None].expand(H, 9, W), H * W),
        (lambda x: x[:1].expand(H, W), W),
        (lambda x: x[0, 0].expand(H, W), 1),
        (lambda x: x[:1, :1].expand(H, -1), 1),
        (lambda x: x.unfold(1, 3, 1), H * W),
        (lambda x: x[0].unfold(0, 3, 2), W),
        (lambda x: x.as_strided((4, 4), (1, 1)), 7),
        (lambda x: x[:0], 0),
        (lambda x: x[:0].T.expand(9, W, 0), 0),
        (lambda x: x.to_sparse(), H * W),
        (lambda x: torch.nested.nested_tensor([x, x[:2]]), (H + 2) * W),
    ],
)
def test_stored_elements(view: Callable[[torch.Tensor], torch.Tensor], stored: int) -> None:
    assert stored_elements(view(torch.ones(H, W))) == stored


def places(*numbers: int, device: str) -> torch.Tensor:
    return torch.tensor(numbers, device="cpu").to(device)


INDEX = 8
"""Bytes of an index."""


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta", "ignore:The reduce argument of torch.scatter")
@ON_BOTH
@pytest.mark.parametrize(
    ("name", "write", "read", "written"),
    [
        ("index_fill", lambda x, i, s: x.index_fill_(1, i, 2.0), 2 * INDEX, 4 * 2 * H),
        ("index_fill", lambda x, i, s: x.index_fill_(0, i, s[0, 0]), 2 * INDEX + 4, 4 * 2 * W),
        ("index_copy", lambda x, i, s: x.index_copy_(0, i, s[:2]), 2 * INDEX + 4 * 2 * W, 4 * 2 * W),
        ("index_add", lambda x, i, s: x.index_add_(0, i, s[:2]), 2 * INDEX + 4 * 4 * W, 4 * 2 * W),
        ("index_add", lambda x, i, s: x.index_add_(0, i, s[:1].expand(2, W)), 2 * INDEX + 4 * 3 * W, 4 * 2 * W),
        ("index_reduce", lambda x, i, s: x.index_reduce_(0, i, s[:2], "amax"), 2 * INDEX + 4 * 4 * W, 4 * 2 * W),
        ("index_put", lambda x, i, s: x.index_put_((i,), s[0]), 2 * INDEX + 4 * W, 4 * 2 * W),
        ("index_put", lambda x, i, s: x.index_put_((i,), s[0], True), 2 * INDEX + 4 * 3 * W, 4 * 2 * W),
        ("index_put", lambda x, i, s: x.index_put_((i, i), s[0, 0]), 4 * INDEX + 4, 4 * 2),
        ("index_put", lambda x, i, s: x.index_put_((i[:, None], i), s[0, 0]), 4 * INDEX + 4, 4 * 4),
        (
            "index_put",
            lambda x, i, s: torch.ops.aten.index_put_(x[:, :, None], [i, None, i[:1] * 0], s[0, 0]),
            3 * INDEX + 4,
            4 * 2 * W,
        ),
        ("index_put", lambda x, i, s: x.index_put_((s[:, 0] > 0,), s[0]), H + 4 * W, 4 * H * W),
        ("index_put", lambda x, i, s: x.index_put_((s[:, 0] > 0, i[:1]), s[0, 0]), H + INDEX + 4, 4 * H),
        ("index_put", lambda x, i, s: x.index_put_((s[:, 0].cumsum(0) < 3, i), s[0, 0]), H + 2 * INDEX + 4, 4 * 2),
        ("scatter", lambda x, i, s: x.scatter_(0, i[:, None], 1.0), 2 * INDEX, 4 * 2),
        ("scatter", lambda x, i, s: x.scatter_(0, i[:, None], s), 2 * INDEX + 4 * 2, 4 * 2),
        ("scatter", lambda x, i, s: x.scatter_(0, i[:, None].expand(2, W), s), 2 * INDEX + 4 * 2 * W, 4 * 2 * W),
        ("scatter", lambda x, i, s: x.scatter_(0, i[:, None], s, reduce="add"), 2 * INDEX + 4 * 4, 4 * 2),
        ("scatter_add", lambda x, i, s: x.scatter_add_(0, i[:, None], s), 2 * INDEX + 4 * 4, 4 * 2),
        ("scatter_reduce", lambda x, i, s: x.scatter_reduce_(0, i[:, None], s, "sum"), 2 * INDEX + 4 * 4, 4 * 2),
        ("scatter_add", lambda x, i, s: x[0, 0].scatter_add_(0, i[0], s[0, 0]), INDEX + 4 * 2, 4),
        ("index_fill", lambda x, i, s: x[0, 0].index_fill_(0, i[0], 1.0), INDEX, 4),
    ],
)
def test_write_at_indices_moves_what_it_touches(
    device: str, name: str, write: Callable[..., torch.Tensor], read: int, written: int
) -> None:
    """x, s: (H, W) float32; i: two row numbers. Operators that add read what they change."""
    x, source = torch.zeros(H, W, device=device), torch.ones(H, W, device=device)
    assert traffic(write, x, places(0, 0, device=device), source)[name] == (read, written)


@ON_BOTH
def test_repeated_indices_touch_at_most_the_whole_tensor(device: str) -> None:
    bins, numbers = torch.zeros(3, device=device), torch.zeros(100, dtype=torch.int64, device=device)
    ones = torch.ones((), device=device)
    found = traffic(lambda bins, numbers, ones: bins.scatter_add_(0, numbers, ones.expand(100)), bins, numbers, ones)
    assert found["scatter_add"] == (100 * INDEX + 4 + 4 * 3, 4 * 3)


@ON_BOTH
def test_write_at_indices_into_a_new_tensor_copies_the_rest(device: str) -> None:
    x, rows = torch.zeros(H, W, device=device), places(0, 1, device=device)
    size = 4 * H * W
    assert traffic(lambda x, rows: x.index_fill(0, rows, 1.0), x, rows) == {"index_fill": (size + 2 * INDEX, size)}
    one = torch.ones((), device=device)
    found = traffic(lambda x, rows, one: x.index_put((rows,), one), x, rows, one)
    assert found["index_put"] == (size + 2 * INDEX + 4, size)
