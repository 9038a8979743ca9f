"""Building models: offline, without output, at other sizes, and with errors that name the reason."""

import logging
import socket

import open_clip
import pytest
import timm
import torch

from engine.models import library
from engine.models.built import Built, Wanted
from engine.models.clip.open_clip_models import HF_CONFIGS
from engine.specs import Refused

TEXT_TOWERS = {
    # docs/model_profile.csv of mlfoundations/open_clip at 3b37473: mparams, text_mparams
    "roberta-ViT-B-32": (212.72, 124.87),
    "coca_roberta-ViT-B-32": (420.37, 124.45),
    "xlm-roberta-base-ViT-B-32": (366.12, 278.27),
    "xlm-roberta-large-ViT-H-14": (1193.01, 560.94),
    "mt5-base-ViT-B-32": (365.71, 277.86),
    "mt5-xl-ViT-H-14": (2306.75, 1674.68),
    "nllb-clip-base": (501.89, 414.04),
    "nllb-clip-large": (1399.22, 767.14),
}


def build(name: str, **options: object) -> Built:
    return library.build(name, Wanted(**options))


def build_and_run(name: str, **options: object) -> Built:
    built = build(name, **options)
    with torch.no_grad():
        library.run(name, built)
    return built


def millions(module: torch.nn.Module) -> float:
    return round(sum(parameter.numel() for parameter in module.parameters()) / 1e6, 2)


def test_families_lists_every_installed_model() -> None:
    families = library.families()
    assert {name for name in families if name.startswith("open_clip:")} == {
        f"open_clip:{name}" for name in open_clip.list_models()
    }
    timm_names = {name for name in families if name.startswith("timm:")}
    assert {name for name in timm_names if "." not in name} == {f"timm:{name}" for name in timm.list_models()}
    assert families["timm:tiny_vit_21m_224.in1k"] == "tiny_vit"
    assert "timm:tiny_vit_21m_224.dist_in22k" not in families  # its classifier is that of tiny_vit_21m_224
    assert "timm:resnet50.a1_in1k" not in families
    assert families["timm:vit_base_patch16_224"] == "vision_transformer"
    assert families["torchvision:resnet18"] == "resnet"
    assert families["open_clip:ViT-B-32"] == "clip_vit"
    assert families["open_clip:RN50"] == "clip_resnet"
    assert families["open_clip:coca_roberta-ViT-B-32"] == "coca"
    assert families["open_clip:convnext_base"] == "clip_convnext"
    assert families["open_clip:ViT-B-16-SigLIP"] == "siglip"
    assert families["open_clip:mt5-xl-ViT-H-14"] == "clip_mt5"


def test_tag_with_another_classifier_is_a_separate_model() -> None:
    without, tagged = build("timm:tiny_vit_5m_224").model, build("timm:tiny_vit_5m_224.in1k").model
    assert (without.num_classes, tagged.num_classes) == (21841, 1000)
    assert millions(tagged) == 5.39  # as timm publishes it


@pytest.mark.parametrize(("name", "mparams"), TEXT_TOWERS.items())
def test_hugging_face_text_towers_build_offline(
    name: str, mparams: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*args: object) -> None:
        raise AssertionError(f"a connection was opened: {args}")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    built = build(f"open_clip:{name}")
    assert (millions(built.model), millions(built.model.text)) == mparams
    assert built.context_length == (76 if name.startswith("coca") else 77)


def test_hf_configs_match_the_hugging_face_towers_of_open_clip() -> None:
    named = {open_clip.get_model_config(name)["text_cfg"].get("hf_model_name") for name in open_clip.list_models()} - {
        None
    }
    assert named == {path.parent.name.replace("--", "/") for path in HF_CONFIGS.glob("*/config.json")}


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("open_clip:ViT-B-32", (768, 512, 512)),
        ("open_clip:RN50", (64, 512, 1024)),
        # the reference profiler reports 768 for both, a default of its dataclass
        ("open_clip:EVA02-L-14", (1024, 768, 768)),
        ("open_clip:xlm-roberta-large-ViT-H-14", (1280, 1024, 1024)),
        ("open_clip:mt5-base-ViT-B-32", (768, 768, 512)),
        ("open_clip:nllb-clip-base", (768, 1024, 512)),
        ("timm:resnet50", (2048, None, None)),
        ("timm:vit_tiny_patch16_224", (192, None, None)),
        ("torchvision:resnet18", (512, None, None)),
    ],
)
def test_widths_are_those_of_the_model(name: str, widths: tuple[int | None, ...]) -> None:
    built = build(name)
    assert (built.image_width, built.text_width, built.embed_dim) == widths


@pytest.mark.parametrize(
    "name", ["open_clip:ViT-B-32", "timm:vit_tiny_patch16_224", "timm:swin_tiny_patch4_window7_224"]
)
def test_models_that_allow_it_run_at_other_image_sizes(name: str) -> None:
    built = build_and_run(name, image_size=(256, 320), batch_size=2)
    assert built.inputs[0].shape == (2, 3, 256, 320)
    assert (built.image_size, built.native_size) == ((256, 320), (224, 224))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18", "open_clip:convnext_base"])
def test_convolutional_networks_take_any_size(name: str) -> None:
    assert build_and_run(name, image_size=(160, 96)).inputs[0].shape == (1, 3, 160, 96)


FAILS_AT_SIZE = r"fails at images of .* pixels .*; its own size is 224"


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("timm:levit_128s", (100, 100), FAILS_AT_SIZE),
        ("open_clip:RN50", (224, 320), FAILS_AT_SIZE),
        ("timm:vit_tiny_patch16_224", (8, 8), r"Image size 8 does not divide by the patch size 16\. Use 16\."),
        ("timm:vit_tiny_patch16_224", (225, 320), r"Image size 225x320 .* patch size 16\. Use 224x320 or 240x320\."),
        ("timm:nest_tiny", (100, 100), FAILS_AT_SIZE),
        ("open_clip:ViT-B-32", (8, 8), r"Image size 8 does not divide by the patch size 32\. Use 32\."),
    ],
)
def test_impossible_size_is_refused_with_a_possible_one(name: str, size: tuple[int, int], message: str) -> None:
    with pytest.raises(Refused, match=message):
        build_and_run(name, image_size=size)


def test_memory_error_is_not_reported_as_a_wrong_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*_args: object, **_options: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(RuntimeError, match="can't allocate memory") as raised:
        build("timm:vit_tiny_patch16_224", image_size=(256, 256))
    assert not isinstance(raised.value, Refused)


@pytest.mark.slow
def test_context_length_can_be_shortened_but_not_extended_too_far() -> None:
    assert build("open_clip:ViT-B-32").inputs[1].shape == (1, 77)
    shorter = build_and_run("open_clip:ViT-B-32", context_length=32)
    assert shorter.inputs[1].shape == (1, 32)
    assert shorter.model.text.positional_embedding.shape == (32, 512)
    assert build_and_run("open_clip:coca_ViT-B-32", context_length=20).context_length == 20
    with pytest.raises(Refused, match="texts of 600 tokens: roberta-base has 512 positions"):
        build("open_clip:roberta-ViT-B-32", context_length=600)


@pytest.mark.parametrize(("precision", "dtype"), [("float16", torch.float16), ("float64", torch.float64)])
def test_precision_applies_to_weights_and_inputs(precision: str, dtype: torch.dtype) -> None:
    built = build_and_run("open_clip:ViT-B-32", precision=precision)
    assert built.inputs[0].dtype == dtype
    assert {parameter.dtype for parameter in built.model.parameters()} == {dtype}


def test_models_run_on_the_cpu_in_eval_mode() -> None:
    built = build_and_run("timm:resnet18", device="cpu", batch_size=2)
    assert not built.model.training
    assert not built.inputs[0].is_meta


CONFIGURATION = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 128, "head_width": 64, "patch_size": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 100, "width": 64, "heads": 2, "layers": 2},
}


def test_user_configuration_is_built() -> None:
    built = build_and_run("config:small", config=CONFIGURATION, image_size=(96, 96))
    assert built.family == "clip_vit"
    assert (built.image_width, built.text_width, built.embed_dim) == (128, 64, 64)
    assert built.inputs[1].shape == (1, 16)
    assert "small" not in open_clip.list_models()
    assert CONFIGURATION["vision_cfg"]["image_size"] == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embed_dim": None}, "has no embed_dim"),
        ({"text_cfg": {"hf_model_name": "someone/else"}}, "would need a look-up at Hugging Face"),
        ({"text_cfg": {"widht": 3}}, "widht"),
        ({"vision_cfg": {"timm_model_name": "hf-hub:some/model"}}, "timm does not know"),
        ({"vision_cfg": {"timm_model_name": 5}}, "names 5, which timm does not know"),
        ({"vision_cfg": {"timm_model_name": "no_such_model"}}, "timm does not know"),
        (
            {"multimodal_cfg": {"width": 64}},
            "numbers for CoCa's decoder, and has multimodal_cfg.width 64, text_cfg.width 64, vision_cfg.width 128",
        ),
        (
            {"multimodal_cfg": {}, "embed_dim": 32, "vision_cfg": {"attentional_pool": True}},
            "has multimodal_cfg.width 512, text_cfg.width 64, embed_dim 32",
        ),
    ],
)
def test_wrong_configuration_is_refused_with_the_reason(change: dict[str, object], message: str) -> None:
    with pytest.raises(Refused, match=message):
        build("config:small", config=CONFIGURATION | change)


def test_building_writes_no_logs_and_no_output(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = list(logging.getLogger().handlers)
    for name in ("open_clip:ViT-B-32", "open_clip:roberta-ViT-B-32", "timm:resnet18"):
        build(name)
    assert caplog.records == []
    assert "".join(capfd.readouterr()) == ""
    assert logging.getLogger().handlers == handlers


def test_hugging_face_configs_are_listed_in_the_sources() -> None:
    sources = (HF_CONFIGS / "SOURCES.md").read_text()
    for path in HF_CONFIGS.glob("*/config.json"):
        assert path.parent.name.rpartition("--")[2].removesuffix("1.3B").rstrip("-") in sources


def test_lack_of_memory_is_not_blamed_on_the_options_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        build("timm:resnet18", num_classes=7)
    monkeypatch.setattr("engine.models.timm_models.out_of_memory", lambda _error: False)
    with pytest.raises(Refused, match="timm:resnet18 cannot be built with num_classes=7"):
        build("timm:resnet18", num_classes=7)
