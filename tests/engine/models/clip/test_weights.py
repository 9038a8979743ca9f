"""CLIP models with weights: equal to those of open_clip, which can load our files in turn."""

import math
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip_train.file_utils import pt_load
from PIL import Image

from engine.models.clip import build
from engine.models.clip import weights as clip_weights
from engine.models.clip.weights import create
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.training import checkpoints, optimizers
from tests.support.clip_models import CONFIGS, PICTURE, TEXT, VIT, make, same, saved, train_spec


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_depend_only_on_the_seed_and_keep_the_random_state(name: str) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    first = make(name, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert same(first.model, make(name, seed=1).model)
    assert not same(first.model, make(name, seed=2).model)
    assert first.notes == []
    assert name not in open_clip.list_models()


def test_digits_clip_has_the_sizes_of_the_digits() -> None:
    built = create(TrainSpec(), weights="")
    assert (built.name, built.image_size, built.context_length) == ("digits-clip", (32, 32), 16)
    block = 12 * 128**2 + 13 * 128  # attention, two-layer perceptron, norms
    images = 3 * 8 * 8 * 128 + (1 + 17) * 128 + 3 * block + 4 * 128 + 128 * 64
    texts = (49408 + 16) * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64 + 64 * 64
    assert sum(weight.numel() for weight in built.model.parameters()) == images + texts + 1
    assert built.tokenizer(["a photo of the digit three"]).shape == (1, 16)
    white = Image.new("RGB", (32, 32), "white")
    for transform in (built.preprocess_train, built.preprocess_val):
        assert transform(white).shape == (3, 32, 32)
    half_white = Image.new("RGB", (32, 32))
    half_white.paste(white, (-24, 0))
    halves = [built.preprocess_train(half_white) for _ in range(30)]
    assert all(image[..., :16].mean() > image[..., 16:].mean() for image in halves), "digits must not be flipped"


@pytest.mark.slow
def test_open_clip_loads_our_checkpoint_by_the_name_of_the_model(registry: None, tmp_path: Path) -> None:
    open_clip.add_model_config(build.OWN_CONFIGS)
    built = create(TrainSpec(seed=5), weights="")
    path = saved(built, tmp_path)
    reference, reference_train, reference_val = open_clip.create_model_and_transforms(
        "digits-clip", pretrained=str(path), output_dict=True
    )
    assert same(built.model, reference)
    assert torch.equal(built.preprocess_val(PICTURE), reference_val(PICTURE))
    torch.manual_seed(0)
    image = built.preprocess_train(PICTURE)
    torch.manual_seed(0)
    assert torch.equal(image, reference_train(PICTURE))
    tokenizer = open_clip.get_tokenizer("digits-clip")
    assert torch.equal(built.tokenizer(["seven, or 7?", ""]), tokenizer(["seven, or 7?", ""]))
    loaded = pt_load(str(path), map_location="cpu")  # what `open_clip_train --resume` reads
    assert {"epoch", "name", "state_dict", "optimizer"} <= set(loaded)
    reference.load_state_dict(loaded["state_dict"])


def test_open_clip_training_can_resume_from_our_checkpoint(tmp_path: Path) -> None:
    """Load what open_clip_train.main does with --resume: weights, and AdamW with its two groups of parameters."""
    spec = train_spec()
    built = make()
    optimizer = optimizers.create(built.model, spec)
    built.model(torch.rand(2, 3, 16, 16), torch.arange(16).reshape(2, 8))["image_features"][:, 0].sum().backward()
    optimizer.step()
    state = {"epoch": 1, "name": "mine", "state_dict": built.model.state_dict(), "optimizer": optimizer.state_dict()}
    path = checkpoints.save(tmp_path, "epoch_1.pt", {**state, "vitals": {"config": built.config}}, about={"step": 1})
    loaded = pt_load(str(path), map_location="cpu")
    assert loaded["epoch"] == 1
    model = make(seed=2).model
    model.load_state_dict(loaded["state_dict"])

    def is_plain(name: str, weight: torch.Tensor) -> bool:
        return weight.ndim < 2 or any(part in name for part in ("bn", "ln", "bias", "logit_scale"))

    named = list(model.named_parameters())
    groups = [
        {"params": [weight for name, weight in named if is_plain(name, weight)], "weight_decay": 0.0},
        {"params": [weight for name, weight in named if not is_plain(name, weight)], "weight_decay": spec.wd},
    ]
    reference = torch.optim.AdamW(groups, lr=spec.peak_lr)
    reference.load_state_dict(loaded["optimizer"])
    our_state = {name: optimizer.state[weight] for name, weight in built.model.named_parameters()}
    for name, weight in model.named_parameters():
        assert our_state[name].keys() == reference.state[weight].keys(), name
        for key, value in our_state[name].items():
            assert torch.equal(value, reference.state[weight][key]), name


def test_siglip_starts_at_the_papers_scale_and_bias_and_reloads_them(tmp_path: Path) -> None:
    built = make(loss="siglip")
    assert built.model.logit_scale.item() == pytest.approx(math.log(10))
    assert built.model.logit_bias.item() == -10
    reloaded = make(weights=saved(built, tmp_path))
    assert reloaded.model.logit_bias.item() == -10
    assert same(built.model, reloaded.model)


@pytest.mark.parametrize(("precision", "weights"), [("fp32", "float32"), ("amp", "float32"), ("bf16", "bfloat16")])
def test_half_precision_applies_to_matrices_and_not_to_norms(precision: str, weights: str) -> None:
    model = make(precision=precision).model
    assert model.visual.conv1.weight.dtype == getattr(torch, weights)
    assert model.visual.ln_post.weight.dtype == torch.float32
    assert model.logit_scale.dtype == torch.float32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "ViT-B-33"}, "neither a model of open_clip"),
        ({"model": "hf-hub:somebody/model"}, "neither a model of open_clip"),
        ({"model": "local-dir:/tmp"}, "neither a model of open_clip"),
        ({"model": "config:mine"}, "no configuration was given"),
        ({"model": "config:mine", "configs": {"mine": {"embed_dim": 8}}}, "no vision_cfg"),
        (
            {"model": "config:mine", "configs": {"mine": CONFIGS["vit"] | {"vision_cfg": {"timm_model_name": 5}}}},
            "names 5, which timm does not know",
        ),
        (
            {"model": "config:mine", "configs": {"mine": CONFIGS["vit"] | {"vision_cfg": {**VIT, "head_width": 0}}}},
            "'mine' cannot be built: integer division",
        ),
        (
            {"model": "config:mine", "configs": {"mine": CONFIGS["vit"] | {"vision_cfg": {**VIT, "layers": [1]}}}},
            "'mine' cannot be built: list index out of range",
        ),
        (
            {"model": "config:mine", "configs": {"mine": CONFIGS["coca"] | {"custom_text": False}}},
            "'mine' has a multimodal_cfg, so it also needs \"custom_text\": true",
        ),
    ],
)
def test_unknown_model_names_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        create(TrainSpec(**fields), weights="")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"hf_tokenizer_name": "somebody/tokenizer"}, "asks for tokenizer 'somebody/tokenizer'"),
        ({"tokenizer_kwargs": {"trust_remote_code": True}}, "sets trust_remote_code"),
        ({"tokenizer_kwargs": {"bpe_path": "/etc/passwd"}}, "sets bpe_path"),
        ({"tokenizer_kwargs": {"clean": 5}}, "which mine needs, cannot be loaded: Invalid clean function"),
        ({"tokenizer_kwargs": {"clean": []}}, "which mine needs, cannot be loaded: unhashable"),
        ({"tokenizer_kwargs": {"strip_sep_token": True}}, "cannot be loaded: .* argument 'strip_sep_token'"),
        ({"vocab_size": 1000}, "1,000 tokens"),
        ({"hf_model_name": "somebody/model"}, "would need a look-up"),
    ],
)
def test_configuration_cannot_fetch_files_or_run_code(text: dict[str, Any], message: str) -> None:
    configs = {"mine": {**CONFIGS["vit"], "text_cfg": {**TEXT, **text}}}
    with pytest.raises(Refused, match=message):
        create(TrainSpec(model="config:mine", configs=configs), weights="")


def test_impossible_size_is_refused_with_the_default_of_the_model() -> None:
    with pytest.raises(Refused, match="its own size is 160"):
        make("timm", image_size=97)


def test_evaluation_builds_the_same_model(tmp_path: Path) -> None:
    built = make(image_size=32, seed=4)
    spec = EvaluateSpec(model="config:vit", configs={"vit": CONFIGS["vit"]})
    evaluated = create(spec, weights=str(saved(built, tmp_path)))
    assert same(built.model, evaluated.model)
    assert (evaluated.image_size, evaluated.notes) == ((32, 32), [])
    assert "model is untrained" in create(spec, weights="").notes[0]


def test_templates_equal_those_of_open_clip() -> None:
    assert clip_weights.TEMPLATES[0] == "itap of a {}."
    assert all(
        template.format("cat") == fill("cat")
        for template, fill in zip(clip_weights.TEMPLATES, open_clip.SIMPLE_IMAGENET_TEMPLATES, strict=True)
    )
