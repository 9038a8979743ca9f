"""Memory estimates against sums by hand and against the tensors that autograd saves."""

import gc
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.measure.counting import flops, memory
from engine.measure.counting.live import LiveBytes, state, tensor_bytes

N, WIDTH, HIDDEN, OUT = 32, 64, 256, 10


def mlp(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT)).to(device)


def inference_peak(model: nn.Module, *inputs: torch.Tensor) -> int:
    with torch.no_grad():
        return memory.inference_peak_bytes(model, inputs, flops.count(model, inputs))


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_inference_peak_of_an_mlp(device: str) -> None:
    parameters = WIDTH * HIDDEN + HIDDEN + HIDDEN * OUT + OUT
    # while ReLU runs, its input and its output are alive, beside weights and input
    expected = 4 * (parameters + N * WIDTH + 2 * N * HIDDEN)
    assert inference_peak(mlp(device), torch.ones(N, WIDTH, device=device)) == expected


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_training_peak_of_an_mlp(device: str) -> None:
    """Sum by hand. Weights, AdamW's two moments and the input are held all the time.

    The peak is in backward: at ReLU, the saved hidden activation, its gradients before and after ReLU and the gradients
    of the last layer are held; at the first layer, the gradient of its output and the gradients of both layers.
    """
    first, last = WIDTH * HIDDEN + HIDDEN, HIDDEN * OUT + OUT
    persistent = 3 * (first + last) + N * WIDTH
    found = memory.training_peak_bytes(mlp(device), (torch.ones(N, WIDTH, device=device),))
    at_relu = persistent + last + 3 * N * HIDDEN
    at_first_layer = persistent + last + N * HIDDEN + first
    assert found == pytest.approx(4 * max(at_relu, at_first_layer), rel=0.03)


class WithExtras(nn.Sequential):
    """Return more than one tensor, as CLIP models do: None for a part they lack, and a count without gradient."""

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor | None]:
        return {"out": super().forward(images), "bias": None, "count": torch.tensor(N, device=images.device)}


def test_outputs_without_a_gradient_do_not_enter_the_loss() -> None:
    images = torch.ones(N, WIDTH, device="meta")
    plain = memory.training_peak_bytes(mlp("meta"), (images,))
    assert memory.training_peak_bytes(WithExtras(*mlp("meta")), (images,)) == pytest.approx(plain, abs=64)


def test_training_peak_covers_the_tensors_that_autograd_saves() -> None:
    """Sum the tensors that pass through the saved-tensor hooks of autograd."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
    )
    images = torch.ones(8, 3, 32, 32)
    saved: dict[int, int] = {}
    known = {tensor.untyped_storage()._cdata for tensor in [*state(model), images]}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(images)
    activations = sum(saved.values())
    del output
    # two convolutions with biases, gain and bias of the norm; its mean, variance and count of batches
    weights = 4 * (3 * 16 * 9 + 16 + 2 * 16 + 16 * 16 * 9 + 16)
    buffers = 4 * 2 * 16 + 8
    found = memory.training_peak_bytes(model, (images,))
    lower_bound = weights + buffers + 4 * images.numel() + 2 * weights + activations
    # beside what is saved, backward holds the gradient of one layer's output and of its input
    gradient = 4 * 8 * 16 * 32 * 32
    assert lower_bound < found <= lower_bound + weights + 2 * gradient
    assert memory.kept_bytes(model, (images,)) == 4 * images.numel() + activations


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(("activation", "saved_width"), [(nn.ReLU(), 16), (nn.GELU(), 16 + 16)])
def test_kept_bytes_equal_a_sum_by_hand(device: str, activation: nn.Module, saved_width: int) -> None:
    """Training keeps the inputs of both layers and the output. GELU also keeps its own input, ReLU only its output."""
    model = nn.Sequential(nn.Linear(8, 16), activation, nn.Linear(16, 4)).to(device)
    found = [memory.kept_bytes(model, (torch.ones(batch, 8, device=device),)) for batch in (2, 6)]
    assert found == [4 * batch * (8 + saved_width + 4) for batch in (2, 6)]


@pytest.mark.slow
def test_layers_that_training_drops_at_random_count() -> None:
    """Layers that are skipped with a probability of 90 % each. The text towers of nllb-clip have such layers."""
    from transformers import M2M100Config
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

    def kept_and_peak(layers: int) -> list[int]:
        sizes = {"encoder_layers": layers, "d_model": 8, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
        with torch.device("meta"):
            model = M2M100Encoder(M2M100Config(vocab_size=10, encoder_layerdrop=0.9, **sizes))
            inputs = (torch.full((2, 4), 3),)
        return [memory.kept_bytes(model, inputs), memory.training_peak_bytes(model, inputs)]

    one, two, nine = (kept_and_peak(layers) for layers in (1, 2, 9))
    assert [last - first for first, last in zip(one, nine, strict=True)] == [
        8 * (second - first) for first, second in zip(one, two, strict=True)
    ]
    assert one[0] < two[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_training_peak_grows_linearly_with_the_batch(name: str) -> None:
    import timm

    with torch.device("meta"):
        model = timm.create_model(name)
        peaks = [memory.training_peak_bytes(model, (torch.ones(n, 3, 224, 224),)) for n in (8, 16, 24)]
    assert peaks[2] - peaks[1] == pytest.approx(peaks[1] - peaks[0], rel=0.02)
    assert peaks[0] > 4 * sum(4 * weight.numel() for weight in model.parameters())


def test_half_precision_halves_the_memory() -> None:
    full_precision = inference_peak(mlp("meta"), torch.ones(N, WIDTH, device="meta"))
    half_precision = inference_peak(mlp("meta").half(), torch.ones(N, WIDTH, device="meta", dtype=torch.float16))
    assert 2 * half_precision == full_precision


def test_peak_with_autocast_counts_copies_of_weights_and_values_in_half_precision() -> None:
    """Sum by hand. While ReLU runs, its input, its output and a copy of the first layer have 2 bytes per value."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model, images = mlp("meta"), memory.faked(torch.ones(N, WIDTH, device="meta"), mode)
    memory.on_fake_cpu(model, mode)
    first, last = WIDTH * HIDDEN + HIDDEN, HIDDEN * OUT + OUT
    expected = 4 * (first + last + N * WIDTH) + 2 * (first + 2 * N * HIDDEN)
    with mode, torch.autocast("cpu", torch.bfloat16):
        assert inference_peak(model, images) == expected


class WithoutFirst(nn.Module):
    """Leave out the first of several tokens with a mask, as open_clip does for Hugging Face's towers."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens[:, torch.arange(tokens.shape[1]) != 0]


def test_masks_without_values_count_as_true() -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    tokens = memory.faked(torch.ones(2, 5, 3, device="meta"), mode)
    with mode:
        peak = inference_peak(WithoutFirst(), tokens)
    selected = 2 * 5 * 3 * 4
    assert 2 * selected <= peak <= 2 * selected + 3 * 5 * 8, "tokens, what is selected, and the mask with its positions"


class WithoutPadding(nn.Module):
    """Mask tokens only if some are padding, as Hugging Face's towers do."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens if (tokens > 0).all() else tokens * 2


@pytest.mark.parametrize("fake", [False, True])
def test_booleans_without_a_value_count_as_false_with_a_note(fake: bool) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    tokens = torch.ones(2, 5, device="meta")
    with mode if fake else nullcontext(), torch.no_grad():
        found = flops.count(WithoutPadding(), (memory.faked(tokens, mode) if fake else tokens,))
    assert found.notes == (flops.READ_AS_FALSE,)
    assert "mul" in [item.operator for item in found.operators]


def test_live_bytes_drop_when_a_tensor_is_freed() -> None:
    weight = torch.ones(100)
    live = LiveBytes([weight])
    live.see(weight.view(10, 10))
    assert live.now == 0
    first, second = torch.ones(10), torch.ones(20)
    live.see((first, [second, first.view(5, 2)]))
    assert (live.now, live.peak) == (120, 120)
    del first
    gc.collect()
    assert (live.now, live.peak) == (80, 120)


def test_tied_weights_are_counted_once() -> None:
    shared = nn.Linear(8, 8, bias=False)
    assert tensor_bytes(state(nn.Sequential(shared, shared))) == 4 * 64
