"""Counts of fvcore against those of torch: where they agree, and how differences are explained."""

import json
from collections import Counter
from pathlib import Path

import open_clip
import pytest
import torch
from torch import nn
from torchvision.ops import DeformConv2d

from engine.measure.counting import fvcore_counter
from engine.measure.counting.flops import Count, count, unfused
from engine.models import library
from engine.models.built import Built, Wanted
from engine.results import OperatorCount, ProfileRow
from engine.specs import ProfileSpec
from engine.tasks.profile import profile
from tests.support.clip_models import CONFIGS

EXPLAINED_BY_CONVENTION = {"normalisation", "pooling and resampling"}


def profile_with_both_counters(name: str, **options: object) -> ProfileRow:
    row = profile(name, ProfileSpec(models=(name,), counter="both", device="cpu", **options)).row
    assert row.status == "ok", row.error
    return row


@pytest.mark.parametrize(
    "name",
    [
        "timm:resnet18",
        "timm:vit_tiny_patch16_224",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("timm:convnext_atto", "open_clip:ViT-S-32-alt", "open_clip:RN50")
        ),
    ],
)
def test_counters_agree_except_for_normalisation_and_pooling(name: str) -> None:
    row = profile_with_both_counters(name)
    assert row.fvcore_macts == pytest.approx(row.macts)
    assert {difference.operator for difference in row.differences} <= EXPLAINED_BY_CONVENTION
    extra = sum(difference.fvcore_gmacs for difference in row.differences)
    assert row.fvcore_gmacs == pytest.approx((row.gmacs or 0) + extra)
    assert all(difference.explanation for difference in row.differences)


@pytest.mark.slow
def test_model_that_returns_a_dictionary_is_traced(registry: None, tmp_path: Path) -> None:
    (tmp_path / "small_coca.json").write_text(json.dumps(CONFIGS["coca"]))
    open_clip.add_model_config(tmp_path)
    row = profile_with_both_counters("open_clip:small_coca")
    assert row.fvcore_image_macts == pytest.approx(row.image_macts)
    assert {difference.operator for difference in row.differences} == {"normalisation"}


@pytest.mark.parametrize("error", ["operator", "python"])
def test_model_that_catches_the_error_of_a_module_does_not_end_the_process(error: str) -> None:
    name = "python:tests.support.own_models:Catching"
    options = {"counter": "both", "device": "cpu", "model_kwargs": json.dumps({"python": error == "python"})}
    row = profile(name, ProfileSpec(models=(name,), **options)).row
    assert row.error == "RuntimeError: fvcore cannot count a model that catches the error of a module (Broken)"
    assert row.gmacs == pytest.approx(4 * 27 * 222**2 / 1e9)


@pytest.mark.slow
def test_tower_counts_equal_those_of_separate_analyses() -> None:
    """The reference profiler runs one analysis per tower."""
    row = profile_with_both_counters("open_clip:ViT-S-32-alt")
    built = library.build("open_clip:ViT-S-32-alt", Wanted(device="cpu"))
    fvcore = fvcore_counter.load()
    with torch.no_grad(), unfused():
        image = fvcore.FlopCountAnalysis(built.model.visual, built.inputs[0])
        image.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
        text = fvcore.ActivationCountAnalysis(built.model.text, built.inputs[1])
        text.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
        attention = 12 * 6 * 50 * 50 * 2 * 64  # layers, heads, tokens squared, two products over 64 channels per head
        assert round((row.fvcore_image_gmacs or 0) * 1e9) == image.total() + attention
        scores_and_values = 10 * 4 * 77 * (77 + 64)
        assert round((row.fvcore_text_macts or 0) * 1e6) == text.total() + scores_and_values


@pytest.mark.slow
def test_counts_are_per_sample() -> None:
    single, four = (
        profile_with_both_counters("timm:resnet18"),
        profile_with_both_counters("timm:resnet18", batch_size=4),
    )
    assert four.fvcore_gmacs == pytest.approx(single.fvcore_gmacs)
    assert four.fvcore_macts == pytest.approx(single.fvcore_macts)


def test_operators_unknown_to_fvcore_explain_the_difference() -> None:
    built = Built(nn.LSTM(5, 6).eval(), (torch.ones(7, 3, 5),), {"image": ""}, "lstm", (7, 3), (7, 3))
    with torch.no_grad():
        torch_count = count(built.model, built.inputs)
    found = fvcore_counter.columns(built, torch_count, batch_size=1)
    assert found["fvcore_unsupported"]["aten::lstm"] == 1
    (difference,) = found["differences"]
    assert difference.fvcore_gmacs == 0
    assert difference.torch_gmacs == pytest.approx(7 * 3 * 4 * 6 * (5 + 6) / 1e9)  # steps, batch, gates x hidden, in
    assert "aten::lstm (1 call)" in difference.explanation


@pytest.mark.parametrize(
    ("module", "shapes", "operator"),
    [
        (nn.RNN(5, 6), [(7, 3, 5)], "aten::rnn_tanh"),
        (nn.RNN(5, 6, nonlinearity="relu"), [(7, 3, 5)], "aten::rnn_relu"),
        (nn.Bilinear(5, 6, 4), [(3, 5), (3, 6)], "aten::bilinear"),
        (DeformConv2d(3, 4, 3), [(1, 3, 5, 5), (1, 18, 3, 3)], "torchvision::deform_conv2d"),
    ],
)
def test_operator_that_only_torch_counts_explains_the_difference(
    module: nn.Module, shapes: list[tuple[int, ...]], operator: str
) -> None:
    inputs = tuple(map(torch.ones, shapes))
    built = Built(module.eval(), inputs, {"image": ""}, "none", shapes[0], shapes[0])
    with torch.no_grad():
        torch_count = count(module, inputs)
    (difference,) = fvcore_counter.columns(built, torch_count, batch_size=1)["differences"]
    assert difference.explanation == f"fvcore has no formula for {operator} (1 call)"


def test_work_counted_under_another_operator_is_explained() -> None:
    """Torch splits attention into matrix products if its mask needs a gradient, as with learned biases."""
    other_fields = {"calls": 1, "activations": 0, "read_bytes": 0, "written_bytes": 0, "work": "counted"}
    operators = (
        OperatorCount(operator="bmm", flops=2 * 300, **other_fields),
        OperatorCount(operator="convolution", flops=2 * 50, **other_fields),
    )
    torch_count = Count(operators, {}, 0, 0, ())
    macs = Counter({"matmul": 200, "scaled_dot_product_attention": 100, "conv": 50, "batch_norm": 10})
    found = {item.operator: item for item in fvcore_counter.differences(torch_count, macs, Counter(), 1)}
    assert set(found) == {"matrix products", "scaled_dot_product_attention", "normalisation"}
    for group in ("matrix products", "scaled_dot_product_attention"):
        assert "add up to the same" in found[group].explanation
    with_one_more_matmul = fvcore_counter.differences(torch_count, macs | Counter({"matmul": 201}), Counter(), 1)
    assert [item.explanation for item in with_one_more_matmul if item.operator == "matrix products"] == [
        "not explained"
    ]
