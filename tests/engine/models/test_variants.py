"""Models built for each variant: equal weights, the requested data type and memory format, refusals by name."""

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
    with variants.switches(numbers, training=False):
        return variants.runner(Variant.parse(text), built, numbers, "cpu")()


@pytest.mark.parametrize("text", ["eager+channels_last", "eager+fast_norm", "eager+checkpointing", "compile"])
def test_every_variant_starts_from_the_same_weights(text: str) -> None:
    eager, changed = build(VIT).model.state_dict(), build(VIT, text).model.state_dict()
    assert eager.keys() == changed.keys()
    assert all(torch.equal(eager[name], changed[name]) for name in eager)
    assert not torch.equal(
        eager["head.weight"], build(VIT, wanted=replace(CPU, seed=8)).model.state_dict()["head.weight"]
    )


def test_image_inputs_are_standardised_random_bytes() -> None:
    (images,) = build(VIT).inputs
    assert images.shape == (2, 3, 160, 160)
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std().item() == pytest.approx(1, abs=1e-5)
    assert len(images.unique()) == 256
    assert torch.equal(images, build(CONV).inputs[0]), "inputs depend on the seed and not on the model"
    (half,) = build(VIT, wanted=replace(CPU, precision="bfloat16")).inputs
    assert torch.equal(half, images.to(torch.bfloat16))


def test_tokens_are_random_and_none_is_padding() -> None:
    built = build("open_clip:ViT-S-32-alt", wanted=replace(CPU, tower="text"))
    (tokens,) = built.inputs
    assert tokens.shape == (2, 77)
    assert len(tokens.unique()) > 70
    assert tokens.min() >= 3
    assert tokens.max() < 49408


def test_inference_uses_the_test_size_and_training_the_train_size() -> None:
    wanted = Wanted(test_size=True)
    assert library.build("timm:resnetrs50", wanted).image_size == (224, 224)
    assert library.build("timm:resnetrs50", replace(wanted, test_size=False)).image_size == (160, 160)
    assert library.build("timm:resnetrs50", replace(wanted, image_size=(96, 96))).image_size == (96, 96)


@pytest.mark.slow
@pytest.mark.parametrize(("tower", "inputs", "width"), [("image", 1, 256), ("text", 1, 256), ("whole", 2, 256)])
def test_each_tower_of_an_open_clip_model_can_be_built(tower: Any, inputs: int, width: int) -> None:
    built = build("open_clip:ViT-S-32-alt", wanted=replace(CPU, tower=tower))
    assert len(built.inputs) == inputs
    with torch.no_grad():
        found = built.model(*built.inputs)
    first = found[0] if isinstance(found, tuple) else found
    assert first.shape == (2, width)


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("float32", Numbers("float32")),
        ("bfloat16", Numbers("bfloat16")),
        ("amp", Numbers("float32", autocast="bfloat16")),
        ("amp_float16", Numbers("float32", autocast="float16")),
    ],
)
def test_precision_names_map_to_data_types(precision: str, expected: Numbers) -> None:
    assert variants.numbers(precision, "cpu") == expected


@pytest.mark.parametrize("text", ["cudagraphs", "compile:cudagraphs", "compile:reduce-overhead"])
def test_variants_that_need_a_gpu_are_refused_on_a_cpu(text: str) -> None:
    for fields in ({"variants": f"eager,{text}"}, {"precision": "tf32"}, {"variants": "eager+tf32"}):
        refusal = BenchmarkSpec(models="timm:test_vit", **fields).refusal
        assert re.search(r"needs .*: leave it out, or choose another device than cpu", refusal)
        assert not BenchmarkSpec(models="timm:test_vit", device="cuda:0", **fields).refusal
    with pytest.raises(Refused, match="needs CUDA graphs"):
        build(VIT, text)
    with pytest.raises(Refused, match="tf32 needs an NVIDIA GPU"):
        variants.numbers("tf32", "cpu")


def test_every_installed_backend_is_accepted_and_others_are_refused() -> None:
    installed = [name for name in torch._dynamo.list_backends(()) if not name.endswith("TESTING_ONLY")]
    assert "inductor" in installed
    assert not [name for name in installed if Variant.parse(f"compile:{name}").backend_refusal]
    assert "'mine' is neither a mode" in BenchmarkSpec(models=VIT, variants="compile:mine").refusal
    assert not BenchmarkSpec(models="python:net:build", variants="compile:mine").refusal  # net may add a backend


def test_mode_is_refused_for_a_backend_of_torch_that_ignores_it() -> None:
    refusal = BenchmarkSpec(models=VIT, variants="eager,compile:aot_eager:max-autotune").refusal
    assert refusal == (
        "compile:aot_eager:max-autotune: of torch's backends, only inductor takes a mode: leave max-autotune out"
    )
    for accepted in ("compile:inductor:max-autotune", "compile:max-autotune", "compile:aot_eager:default"):
        assert not BenchmarkSpec(models=VIT, variants=accepted).refusal


def test_tf32_needs_an_nvidia_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 4))
    monkeypatch.setattr(torch.version, "hip", None)
    assert variants.numbers("tf32", "cuda:0") == Numbers("float32", tf32=True)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with pytest.raises(Refused, match="no NVIDIA_TF32_OVERRIDE=0: cuda:0 has no TF32"):
        variants.numbers("tf32", "cuda:0")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    monkeypatch.setattr(torch.version, "hip", "6.4")  # AMD's GPUs have the same device name and capability
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
def test_modifiers_without_effect_are_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        build(name, text)


@pytest.mark.slow
def test_reparameterised_model_is_smaller_with_equal_outputs() -> None:
    wanted = replace(CPU, image_size=(64, 64))
    plain, merged = build("timm:repvgg_a0", wanted=wanted), build("timm:repvgg_a0", "eager+reparameterized", wanted)
    assert len(list(merged.model.parameters())) < len(list(plain.model.parameters()))
    with torch.no_grad():
        torch.testing.assert_close(merged.model(*merged.inputs), plain.model(*plain.inputs), rtol=1e-3, atol=1e-4)
    with pytest.raises(Refused, match="is for inference"):
        build("timm:repvgg_a0", "eager+reparameterized", wanted, training=True)


def test_channels_last_applies_to_weights_and_images() -> None:
    built = build(CONV, "eager+channels_last")
    assert built.inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert not built.inputs[0].is_contiguous()
    assert built.model.stem.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert build(CONV).inputs[0].is_contiguous()


def test_switch_of_fast_norm_is_restored() -> None:
    from timm.layers import is_fast_norm

    assert not is_fast_norm()
    assert any(getattr(module, "_fast_norm", False) for module in build(VIT, "eager+fast_norm").model.modules())
    assert not is_fast_norm()


def test_model_is_in_training_mode_only_for_training() -> None:
    assert not build(VIT).model.training
    assert build(VIT, training=True).model.training


@pytest.mark.slow
@pytest.mark.parametrize("text", CAPTURED)
def test_captured_model_has_the_outputs_of_eager(text: str) -> None:
    torch.testing.assert_close(output(VIT, text), output(VIT, "eager"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", ["eager", *CAPTURED])
def test_autocast_is_active_in_every_execution(text: str) -> None:
    found = output(VIT, text, Numbers("float32", autocast="bfloat16"))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), output(VIT, "eager"), rtol=0.1, atol=0.05)


def test_capturing_a_training_step_keeps_the_statistics_of_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's capture is replaced by its warm-up, the only part that a CPU can run."""

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


def switch_states() -> tuple[bool, ...]:
    return (
        torch.is_grad_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch._inductor.config.deterministic,
    )


def test_switches_are_set_and_restored() -> None:
    before = switch_states()
    with variants.switches(Numbers("float32", tf32=True), training=True, cudnn_benchmark=True, deterministic=True):
        assert switch_states() == (True,) * 6
        with variants.switches(Numbers("float32"), training=False):
            assert switch_states() == (False,) * 6
        assert switch_states() == (True,) * 6
    assert switch_states() == before


def test_switches_without_determinism_do_not_import_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.config", None)  # importing it fails
    with variants.switches(Numbers("float32"), training=False):
        assert not torch.are_deterministic_algorithms_enabled()


def test_loss_is_the_scaled_mean_of_the_outputs() -> None:
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


def test_sgd_step_equals_the_hand_formula() -> None:
    """With y = w x and loss = y, w falls by rate times x; the gradient is cleared afterwards."""
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(2.0)
    run = lambda: model(torch.tensor([[3.0]]))  # noqa: E731
    phases = steps.training_phases(
        lambda: steps.loss(ModelName("timm:x"), run()), steps.optimizer("sgd", model, rate=0.5)
    )
    assert list(phases) == ["forward", "backward", "optimizer"]
    for phase in phases.values():
        phase()
    assert model.weight.item() == 0.5
    assert model.weight.grad is None


def test_first_adamw_step_moves_by_the_learning_rate() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    start = model.weight.item()
    run = lambda: model(torch.tensor([[3.0]]))  # noqa: E731
    for phase in steps.training_phases(
        lambda: steps.loss(ModelName("timm:x"), run()), steps.optimizer("adamw", model, rate=0.125)
    ).values():
        phase()
    assert model.weight.item() == pytest.approx(start - 0.125, abs=0.01)


def test_inference_has_one_phase() -> None:
    model = torch.nn.Linear(1, 1)
    assert list(steps.phases(ModelName("timm:x"), model, lambda: None, training=False, kind="sgd")) == ["forward"]


def test_out_of_memory_errors_are_recognised() -> None:
    assert out_of_memory(RuntimeError("std::bad_alloc"))
    assert out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."))
    assert not out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not out_of_memory(
        RuntimeError("Unable to find an engine to execute this computation in Quantized Add Cudnn")
    )


@pytest.mark.slow
def test_variants_of_a_model_do_not_share_the_recompilation_limit() -> None:
    """torch runs a function in eager without notice when its code was compiled more than 8 times."""
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
