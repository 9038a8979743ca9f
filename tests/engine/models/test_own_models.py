"""User modules and options of timm models: counts against hand formulas."""

from pathlib import Path
from typing import Any

import pytest

from engine import names
from engine.models import library
from engine.models.built import Wanted
from engine.names import ModelNotFound
from engine.results import ProfileRow
from engine.specs import ModelName, ProfileSpec, Refused
from engine.tasks.profile import profile, run

USER_MODELS = "python:tests.support.own_models:"


def count(model: str, **fields: Any) -> ProfileRow:
    return profile(model, ProfileSpec(models=model, **fields)).row


@pytest.mark.parametrize("channels", [1, 4])
def test_channels_change_only_the_first_convolution(channels: int) -> None:
    plain, row = count("timm:resnet18"), count("timm:resnet18", in_chans=channels)
    weights = 7 * 7 * 64 * (channels - 3)
    assert row.status == "ok"
    assert row.in_chans == channels
    assert row.mparams == pytest.approx((plain.mparams or 0) + weights / 1e6, abs=1e-9)
    assert row.gmacs == pytest.approx((plain.gmacs or 0) + 112 * 112 * weights / 1e9, abs=1e-12)
    assert row.macts == plain.macts


def test_classes_change_only_the_head() -> None:
    plain, row, headless = (count("timm:resnet18", num_classes=classes) for classes in (None, 10, 0))
    assert (row.num_classes, headless.num_classes, plain.num_classes) == (10, 0, None)
    assert row.mparams == pytest.approx((plain.mparams or 0) - 990 * (512 + 1) / 1e6, abs=1e-9)
    assert row.gmacs == pytest.approx((plain.gmacs or 0) - 990 * 512 / 1e9, abs=1e-12)
    assert headless.gmacs == pytest.approx((plain.gmacs or 0) - 1000 * 512 / 1e9, abs=1e-12)


def test_keywords_reach_the_constructor() -> None:
    plain = count("timm:vit_tiny_patch16_224")
    row = count("timm:vit_tiny_patch16_224", model_kwargs="depth=2")
    dim, tokens = 192, 197
    weights = 4 * dim * dim + 2 * 4 * dim * dim
    per_block = weights + (3 + 1 + 4 + 1) * dim + 4 * dim  # biases of four products, scale and shift of two norms
    assert row.model_kwargs == '{"depth": 2}'
    assert (plain.mparams or 0) - (row.mparams or 0) == pytest.approx(10 * per_block / 1e6, abs=1e-9)
    macs = tokens * weights + 2 * tokens * tokens * dim
    assert (plain.gmacs or 0) - (row.gmacs or 0) == pytest.approx(10 * macs / 1e9, abs=1e-12)


def test_options_apply_at_other_image_sizes() -> None:
    row = count("timm:resnet18", image_size="96", in_chans=1, num_classes=2)
    smaller = count("timm:resnet18", image_size="96")
    macs = 48 * 48 * 7 * 7 * 64 * 2 + 512 * 998
    assert (smaller.gmacs or 0) - (row.gmacs or 0) == pytest.approx(macs / 1e9, abs=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_kwargs": "foo=1"}, r"timm:resnet18 cannot be built with foo=1: TypeError: .*keyword argument 'foo'"),
        ({"model_kwargs": "foo=1", "image_size": "96"}, "timm:resnet18 cannot be built with foo=1: TypeError"),
        ({"model_kwargs": "act_layer=nothing"}, "timm:resnet18 cannot be built with act_layer='nothing'"),
        (
            {"model_kwargs": "pretrained=true"},
            "the keyword pretrained is not taken, because models are built with random",
        ),
        ({"model_kwargs": "pretrained_cfg=x"}, "the keyword pretrained_cfg is not taken"),
        ({"model_kwargs": "checkpoint_path=/etc/passwd"}, "the keyword checkpoint_path is not taken"),
        ({"model_kwargs": "num_classes=2"}, "num_classes has a field of its own: set num_classes instead"),
        ({"model_kwargs": "img_size=64"}, "img_size has a field of its own: set image_size instead"),
    ],
)
def test_invalid_keyword_gives_an_error_row(fields: dict[str, Any], message: str) -> None:
    row = count("timm:resnet18", **fields)
    assert (row.status, row.gmacs) == ("error", None)
    with pytest.raises(Refused, match=message):
        raise Refused(row.error)


@pytest.mark.parametrize("fields", [{"num_classes": 10}, {"in_chans": 4}, {"model_kwargs": "depth=2"}])
@pytest.mark.parametrize("model", ["torchvision:resnet18", "open_clip:ViT-B-32"])
def test_other_libraries_take_no_options(model: str, fields: dict[str, Any]) -> None:
    (option,) = fields
    spec = ProfileSpec(models=(model,), **fields)
    with pytest.raises(Refused, match=f"^{model} does not take {option}: only timm's models do"):
        names.select(spec, {ModelName(model): ""})


def test_user_module_is_counted_with_the_given_size_and_keywords() -> None:
    row = count(f"{USER_MODELS}tiny", image_size="8x12", model_kwargs="width=16 channels=4", in_chans=4)
    assert (row.status, row.library, row.model) == ("ok", "python", "tests.support.own_models:tiny")
    assert (row.image_size, row.in_chans, row.model_kwargs) == ("8x12", 4, '{"channels": 4, "width": 16}')
    assert row.gmacs == pytest.approx((8 * 12 * 9 * 4 * 16 + 16 * 10) / 1e9)
    assert row.mparams == pytest.approx((9 * 4 * 16 + 16 * 10 + 10) / 1e6)


def test_user_module_gets_3_channels_and_224_pixels_by_default(tmp_path: Path) -> None:
    (row,) = (
        event for event in run(ProfileSpec(models=f"{USER_MODELS}tiny"), tmp_path) if isinstance(event, ProfileRow)
    )
    assert (row.image_size, row.family) == ("224", "own module")
    assert row.gmacs == pytest.approx((224 * 224 * 9 * 3 * 8 + 8 * 10) / 1e9)


def test_factory_may_be_an_attribute_of_a_class() -> None:
    assert count(f"{USER_MODELS}Parts.linear", image_size="4").mparams == pytest.approx((48 * 2 + 2) / 1e6)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "python:no_such_package.models:tiny",
            ModelNotFound,
            "no Python module 'no_such_package' in the current folder",
        ),
        (f"{USER_MODELS}huge", ModelNotFound, "the module 'tests.support.own_models' has no 'huge'"),
        (f"{USER_MODELS}NOT_A_FACTORY", ModelNotFound, "is a int, not a function or class"),
        (f"{USER_MODELS}no_module", ModelNotFound, "returns str, not a torch.nn.Module"),
        (
            f"{USER_MODELS}of_values",
            Refused,
            "cannot be built on meta, where tensors have no values .*: choose the device cpu",
        ),
    ],
)
def test_invalid_user_modules_are_refused_with_the_reason(name: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        library.build(name, Wanted())


def test_user_module_takes_only_the_keywords_of_its_factory() -> None:
    with pytest.raises(Refused, match=r"does not take {'depth': 2}: .*unexpected keyword"):
        library.build(f"{USER_MODELS}tiny", Wanted(model_kwargs={"depth": 2}))
    spec = ProfileSpec(models=(f"{USER_MODELS}tiny",), num_classes=2)
    with pytest.raises(Refused, match="does not take num_classes: give it in model_kwargs"):
        names.select(spec, {}, allow_code=True)


def test_user_module_that_needs_values_is_built_on_the_cpu() -> None:
    assert library.build(f"{USER_MODELS}of_values", Wanted(device="cpu")).model.in_features == 3


@pytest.mark.parametrize("built_on", ["", "device=cpu"])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_shared_weights_of_a_user_module_are_counted_once(device: str, built_on: str) -> None:
    row = count(f"{USER_MODELS}tied", image_size="8", device=device, model_kwargs=built_on, training=True)
    weights = 9 * 3 * 3
    assert (row.mparams, row.trainable_mparams, row.weights_mb) == (weights / 1e6, weights / 1e6, 4 * weights / 1e6)
    assert row.gmacs == pytest.approx(2 * 8 * 8 * weights / 1e9)
    # the backward pass of the second convolution: images, its input and output, gradients of both and of the weights
    assert row.training_peak_mb == pytest.approx(4 * (4 * weights + 5 * 3 * 8 * 8) / 1e6, rel=0.01)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is")
def test_user_module_in_torchscript_with_shared_weights_is_built() -> None:
    built = library.build(f"{USER_MODELS}scripted", Wanted(device="cpu", image_size=(8, 8)))
    assert built.model(*built.inputs).shape == (1, 3, 8, 8)
