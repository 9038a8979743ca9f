"""Memory estimates against what can be added up by hand, and against autograd's own saved tensors."""

import gc

import pytest
import torch
from torch import nn

from engine.measure import flops, memory
from engine.measure.live import LiveBytes, state, tensor_bytes

N, WIDTH, HIDDEN, OUT = 32, 64, 256, 10


def mlp(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT)).to(device)


def inference_peak(model: nn.Module, *inputs: torch.Tensor) -> int:
    with torch.no_grad():
        return memory.inference_peak_bytes(model, inputs, flops.count(model, inputs))


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_inference_peak_of_a_small_network(device: str) -> None:
    parameters = WIDTH * HIDDEN + HIDDEN + HIDDEN * OUT + OUT
    # while ReLU runs, its input and its output are alive, beside weights and input
    expected = 4 * (parameters + N * WIDTH + 2 * N * HIDDEN)
    assert inference_peak(mlp(device), torch.ones(N, WIDTH, device=device)) == expected


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_training_peak_of_a_small_network(device: str) -> None:
    """At most: weights, input, AdamW's two moments, then in backward the saved hidden activation, its gradient
    before and after ReLU, and the last layer's gradients (the first layer's come once ReLU's input is gone)."""
    first, last = WIDTH * HIDDEN + HIDDEN, HIDDEN * OUT + OUT
    held = 3 * (first + last) + N * WIDTH
    found = memory.training_peak_bytes(mlp(device), (torch.ones(N, WIDTH, device=device),))
    at_relu = held + last + 3 * N * HIDDEN
    at_first_layer = held + last + N * HIDDEN + first
    assert found == pytest.approx(4 * max(at_relu, at_first_layer), rel=0.03)


def test_training_peak_of_a_convolutional_network_is_at_least_what_autograd_saves() -> None:
    """An independent sum: the hooks through which autograd itself stores tensors."""
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
        kept = model(images)
    activations = sum(saved.values())
    del kept
    # two convolutions with biases, gain and bias of the norm; its mean, variance and count of batches
    weights = 4 * (3 * 16 * 9 + 16 + 2 * 16 + 16 * 16 * 9 + 16)
    buffers = 4 * 2 * 16 + 8
    found = memory.training_peak_bytes(model, (images,))
    least = weights + buffers + 4 * images.numel() + 2 * weights + activations
    # beside what is saved, backward holds the gradient of one layer's output and of its input
    gradient = 4 * 8 * 16 * 32 * 32
    assert least < found <= least + weights + 2 * gradient
    assert memory.kept_bytes(model, (images,)) == 4 * images.numel() + activations


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(("activation", "kept"), [(nn.ReLU(), 16), (nn.GELU(), 16 + 16)])
def test_what_training_keeps_by_hand(device: str, activation: nn.Module, kept: int) -> None:
    """The input of both layers, the output, and of GELU also its own input; a ReLU keeps its output alone."""
    model = nn.Sequential(nn.Linear(8, 16), activation, nn.Linear(16, 4)).to(device)
    found = [memory.kept_bytes(model, (torch.ones(batch, 8, device=device),)) for batch in (2, 6)]
    assert found == [4 * batch * (8 + kept + 4) for batch in (2, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_estimates_grow_with_the_batch_by_the_activations_alone(name: str) -> None:
    import timm

    with torch.device("meta"):
        model = timm.create_model(name)
        peaks = [memory.training_peak_bytes(model, (torch.ones(n, 3, 224, 224),)) for n in (8, 16, 24)]
    assert peaks[2] - peaks[1] == pytest.approx(peaks[1] - peaks[0], rel=0.02)
    assert peaks[0] > 4 * sum(4 * weight.numel() for weight in model.parameters())


def test_half_precision_halves_the_memory() -> None:
    whole = inference_peak(mlp("meta"), torch.ones(N, WIDTH, device="meta"))
    half = inference_peak(mlp("meta").half(), torch.ones(N, WIDTH, device="meta", dtype=torch.float16))
    assert 2 * half == whole


def test_live_bytes_follows_tensors_to_their_end() -> None:
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


def test_tied_weights_are_held_once() -> None:
    shared = nn.Linear(8, 8, bias=False)
    assert tensor_bytes(state(nn.Sequential(shared, shared))) == 4 * 64
