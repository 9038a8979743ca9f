"""Models as variants make them: the same weights, the asked type and format, what cannot be done refused by name."""

import re
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.models import library, steps, variants
from engine.models.built import Built, Wanted, out_of_memory
from engine.models.variants import Numbers
from engine.specs import BenchmarkSpec, ModelName, Refused, Variant

CPU = Wanted(device="cpu", batch_size=2, test_size=True, seed=7)
VIT, CONV = "timm:test_vit", "timm:test_byobnet"
CAPTURED = ("trace", *(pytest.param(text, marks=pytest.mark.slow) for text in ("export", "compile:aot_eager")))


def build(name: str, text: str = "eager", wanted: Wanted = CPU, training: bool = False) -> Built:
    return variants.build(name, wanted, Variant.parse(text), training=training)


def output(name: str, text: str, found: Numbers | None = None) -> Any:
    numbers = found or Numbers("float32")
    built = build(name, text, replace(CPU, precision=numbers.weights))
    with variants.switches(numbers, training=False, cudnn_benchmark=False, deterministic=False):
        return variants.runner(Variant.parse(text), built, numbers, "cpu")()


@pytest.mark.parametrize("text", ["eager+channels_last", "eager+fast_norm", "eager+checkpointing", "compile"])
def test_every_variant_starts_from_the_same_weights(text: str) -> None:
    one, other = build(VIT).model.state_dict(), build(VIT, text).model.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(
        one["head.weight"], build(VIT, wanted=replace(CPU, seed=8)).model.state_dict()["head.weight"]
    )


def test_inputs_are_random_bytes_standardised_by_themselves() -> None:
    (images,) = build(VIT).inputs
    assert images.shape == (2, 3, 160, 160)
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std().item() == pytest.approx(1, abs=1e-5)
    assert len(images.unique()) == 256
    assert torch.equal(images, build(CONV).inputs[0]), "of a seed, whatever the model"
    (half,) = build(VIT, wanted=replace(CPU, precision="bfloat16")).inputs
    assert torch.equal(half, images.to(torch.bfloat16))


def test_tokens_are_random_and_none_is_padding() -> None:
    built = build("open_clip:ViT-S-32-alt", wanted=replace(CPU, tower="text"))
    (tokens,) = built.inputs
    assert tokens.shape == (2, 77)
    assert len(tokens.unique()) > 70
    assert tokens.min() >= 3
    assert tokens.max() < 49408


def test_inference_is_at_the_test_size_and_training_at_the_train_size() -> None:
    wanted = Wanted(test_size=True)
    assert library.build("timm:resnetrs50", wanted).image_size == (224, 224)
    assert library.build("timm:resnetrs50", replace(wanted, test_size=False)).image_size == (160, 160)
    assert library.build("timm:resnetrs50", replace(wanted, image_size=(96, 96))).image_size == (96, 96)


@pytest.mark.slow
@pytest.mark.parametrize(("tower", "inputs", "width"), [("image", 1, 256), ("text", 1, 256), ("whole", 2, 256)])
def test_towers_of_an_open_clip_model(tower: Any, inputs: int, width: int) -> None:
    built = build("open_clip:ViT-S-32-alt", wanted=replace(CPU, tower=tower))
    assert len(built.inputs) == inputs
    with torch.no_grad():
        found = built.model(*built.inputs)
    first = found[0] if isinstance(found, tuple) else found
    assert first.shape == (2, width)


def test_an_image_model_has_no_text_tower() -> None:
    with pytest.raises(Refused, match="timm:test_vit has no text tower"):
        build(VIT, wanted=replace(CPU, tower="text"))


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("float32", Numbers("float32")),
        ("bfloat16", Numbers("bfloat16")),
        ("amp", Numbers("float32", autocast="bfloat16")),
        ("amp_float16", Numbers("float32", autocast="float16")),
    ],
)
def test_what_a_precision_means(precision: str, expected: Numbers) -> None:
    assert variants.numbers(precision, "cpu") == expected


@pytest.mark.parametrize("text", ["cudagraphs", "compile:cudagraphs", "compile:reduce-overhead"])
def test_what_a_cpu_cannot_do_is_refused(text: str) -> None:
    for fields in ({"variants": f"eager,{text}"}, {"precision": "tf32"}, {"variants": "eager+tf32"}):
        refusal = BenchmarkSpec(models="timm:test_vit", **fields).device_refusal
        assert re.search(r"needs .*: leave it out, or choose another device than cpu", refusal)
        assert not BenchmarkSpec(models="timm:test_vit", device="cuda:0", **fields).device_refusal
    with pytest.raises(Refused, match="needs CUDA graphs"):
        build(VIT, text)
    with pytest.raises(Refused, match="tf32 needs an NVIDIA GPU"):
        variants.numbers("tf32", "cpu")


def test_tf32_is_nvidias_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 4))
    monkeypatch.setattr(torch.version, "hip", None)
    assert variants.numbers("tf32", "cuda:0") == Numbers("float32", tf32=True)
    monkeypatch.setattr(torch.version, "hip", "6.4")  # AMD's cards go by the same name and number
    with pytest.raises(Refused, match="tf32 needs an NVIDIA GPU"):
        variants.numbers("tf32", "cuda:0")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (VIT, "eager+reparameterized", "has nothing to reparameterise"),
        ("torchvision:resnet18", "eager+fast_norm", "has no norm layer with a fast form"),
        ("torchvision:resnet18", "eager+checkpointing", "has no gradient checkpointing"),
    ],
)
def test_what_would_change_nothing_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        build(name, text)


@pytest.mark.slow
def test_a_reparameterised_model_is_smaller_and_computes_the_same() -> None:
    wanted = replace(CPU, image_size=(64, 64))
    plain, merged = build("timm:repvgg_a0", wanted=wanted), build("timm:repvgg_a0", "eager+reparameterized", wanted)
    assert len(list(merged.model.parameters())) < len(list(plain.model.parameters()))
    with torch.no_grad():
        torch.testing.assert_close(merged.model(*merged.inputs), plain.model(*plain.inputs), rtol=1e-3, atol=1e-4)
    with pytest.raises(Refused, match="is for inference"):
        build("timm:repvgg_a0", "eager+reparameterized", wanted, training=True)


def test_channels_last_is_of_weights_and_images() -> None:
    built = build(CONV, "eager+channels_last")
    assert built.inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert not built.inputs[0].is_contiguous()
    assert built.model.stem.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert build(CONV).inputs[0].is_contiguous()


def test_the_switch_of_fast_norm_is_left_as_it_was() -> None:
    from timm.layers import is_fast_norm

    assert not is_fast_norm()
    assert any(getattr(module, "_fast_norm", False) for module in build(VIT, "eager+fast_norm").model.modules())
    assert not is_fast_norm()


def test_modes() -> None:
    assert not build(VIT).model.training
    assert build(VIT, training=True).model.training


@pytest.mark.slow
@pytest.mark.parametrize("text", CAPTURED)
def test_what_is_captured_computes_what_eager_does(text: str) -> None:
    torch.testing.assert_close(output(VIT, text), output(VIT, "eager"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", ["eager", *CAPTURED])
def test_autocast_is_in_effect_in_every_way_to_run(text: str) -> None:
    found = output(VIT, text, Numbers("float32", autocast="bfloat16"))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), output(VIT, "eager"), rtol=0.1, atol=0.05)


def test_capturing_a_training_step_leaves_the_statistics_of_norm_layers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's capture faked by its warm-up, which is all that a CPU can do of it."""

    def warmed_up(model: Any, inputs: tuple[Any, ...], **_: object) -> Any:
        for _ in range(3):
            model(*inputs)
        return model

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", warmed_up)
    built = build("timm:test_resnet", training=True)
    before = {name: buffer.clone() for name, buffer in built.model.named_buffers()}
    variants.runner(Variant.parse("cudagraphs"), built, Numbers("float32"), "cpu")
    assert before
    assert all(torch.equal(before[name], buffer) for name, buffer in built.model.named_buffers())


def switched() -> tuple[bool, ...]:
    return (
        torch.is_grad_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch._inductor.config.deterministic,
    )


def test_switches_are_set_and_set_back() -> None:
    before = switched()
    with variants.switches(Numbers("float32", tf32=True), training=True, cudnn_benchmark=True, deterministic=True):
        assert switched() == (True,) * 6
        with variants.switches(Numbers("float32"), training=False, cudnn_benchmark=False, deterministic=False):
            assert switched() == (False,) * 6
        assert switched() == (True,) * 6
    assert switched() == before


def test_switches_without_determinism_do_not_import_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.config", None)  # importing it fails
    with variants.switches(Numbers("float32"), training=False, cudnn_benchmark=False, deterministic=False):
        assert not torch.are_deterministic_algorithms_enabled()


def test_the_loss_is_the_sum_over_the_number() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 6.0]], requires_grad=True)
    other = torch.tensor([[5.0]], requires_grad=True)
    assert steps.loss(ModelName("timm:resnet18"), values).item() == 3
    assert steps.loss(ModelName("timm:resnet18"), (values, other)).item() == 3
    assert steps.loss(ModelName("timm:mobilevit_s"), values).item() == pytest.approx(0.003)
    scale = torch.tensor(100.0, requires_grad=True)
    for name in ("open_clip:ViT-B-32", "config:mine"):
        assert steps.loss(ModelName(name), (values, other, scale)).item() == 8
    with pytest.raises(ValueError, match="no output that a gradient can start from"):
        steps.loss(ModelName("timm:resnet18"), values.detach())


def test_a_step_of_sgd_by_hand() -> None:
    """y = w x, loss = y: w falls by rate x, and the gradient is gone afterwards."""
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(2.0)
    run = lambda: model(torch.tensor([[3.0]]))  # noqa: E731
    step = steps.Step(lambda: steps.loss(ModelName("timm:x"), run()), steps.optimizer("sgd", model, rate=0.5))
    assert list(step.phases) == ["forward", "backward", "optimizer"]
    for phase in step.phases.values():
        phase()
    assert model.weight.item() == 0.5
    assert model.weight.grad is None


def test_adamw_moves_by_its_rate_at_first() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    start = model.weight.item()
    run = lambda: model(torch.tensor([[3.0]]))  # noqa: E731
    for phase in steps.Step(
        lambda: steps.loss(ModelName("timm:x"), run()), steps.optimizer("adamw", model, rate=0.125)
    ).phases.values():
        phase()
    assert model.weight.item() == pytest.approx(start - 0.125, abs=0.01)


def test_inference_is_one_phase() -> None:
    model = torch.nn.Linear(1, 1)
    assert list(steps.phases(ModelName("timm:x"), model, lambda: None, training=False, kind="sgd")) == ["forward"]


def test_what_counts_as_out_of_memory() -> None:
    assert out_of_memory(RuntimeError("std::bad_alloc"))
    assert out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."))
    assert not out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not out_of_memory(
        RuntimeError("Unable to find an engine to execute this computation in Quantized Add Cudnn")
    )


@pytest.mark.slow
def test_variants_of_one_model_do_not_share_the_limit_on_recompilations() -> None:
    """Torch runs a function in eager, unasked, when its code was compiled more than 8 times."""
    import torch._dynamo
    from torch._dynamo.testing import CompileCounter

    class Square(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return values * values

    torch._dynamo.reset()
    for size in range(1, 13):
        counter = CompileCounter()
        run = variants.compiled(Square(), backend=counter, dynamic=False)
        torch.testing.assert_close(run(torch.full((size + 1,), 3.0)), torch.full((size + 1,), 9.0))
        assert counter.frame_count == 1, size
    torch._dynamo.reset()
