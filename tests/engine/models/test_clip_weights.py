"""CLIP models with weights: the same that open_clip itself makes, from files of ours that open_clip itself takes."""

import math
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip_train.file_utils import pt_load
from PIL import Image

from engine.models import clip_build, clip_weights
from engine.models.clip_weights import create
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.training import checkpoints, optimizers
from tests.support.clip_models import CONFIGS, PICTURE, TEXT, make, same, saved, train_spec


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_depend_on_the_seed_alone_and_leave_the_random_state_as_it_was(name: str) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    first = make(name, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert same(first.model, make(name, seed=1).model)
    assert not same(first.model, make(name, seed=2).model)
    assert first.notes == []
    assert name not in open_clip.list_models()


def test_the_digits_model_fits_digits() -> None:
    made = create(TrainSpec(), weights="")
    assert (made.name, made.image_size, made.context_length) == ("digits-clip", (32, 32), 16)
    block = 12 * 128**2 + 13 * 128  # attention, two-layer perceptron, norms
    images = 3 * 8 * 8 * 128 + (1 + 17) * 128 + 3 * block + 4 * 128 + 128 * 64
    texts = (49408 + 16) * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64 + 64 * 64
    assert sum(weight.numel() for weight in made.model.parameters()) == images + texts + 1
    assert made.tokenizer(["a photo of the digit three"]).shape == (1, 16)
    white = Image.new("RGB", (32, 32), "white")
    for transform in (made.preprocess_train, made.preprocess_val):
        assert transform(white).shape == (3, 32, 32)
    left = Image.new("RGB", (32, 32))
    left.paste(white, (-24, 0))
    halves = [made.preprocess_train(left) for _ in range(30)]
    assert all(image[..., :16].mean() > image[..., 16:].mean() for image in halves), "a flipped digit is another one"


@pytest.mark.slow
def test_open_clip_takes_a_checkpoint_of_ours_by_the_models_name(registry: None, tmp_path: Path) -> None:
    open_clip.add_model_config(clip_build.OWN_CONFIGS)
    made = create(TrainSpec(seed=5), weights="")
    path = saved(made, tmp_path)
    theirs, their_train, their_val = open_clip.create_model_and_transforms(
        "digits-clip", pretrained=str(path), output_dict=True
    )
    assert same(made.model, theirs)
    assert torch.equal(made.preprocess_val(PICTURE), their_val(PICTURE))
    torch.manual_seed(0)
    mine = made.preprocess_train(PICTURE)
    torch.manual_seed(0)
    assert torch.equal(mine, their_train(PICTURE))
    tokenizer = open_clip.get_tokenizer("digits-clip")
    assert torch.equal(made.tokenizer(["seven, or 7?", ""]), tokenizer(["seven, or 7?", ""]))
    loaded = pt_load(str(path), map_location="cpu")  # what `open_clip_train --resume` reads
    assert {"epoch", "name", "state_dict", "optimizer"} <= set(loaded)
    theirs.load_state_dict(loaded["state_dict"])


def test_the_reference_goes_on_from_a_checkpoint_of_ours(tmp_path: Path) -> None:
    """As open_clip_train.main does with --resume: weights, and AdamW with its two groups of parameters."""
    spec = train_spec()
    made = make()
    optimizer = optimizers.create(made.model, spec)
    made.model(torch.rand(2, 3, 16, 16), torch.arange(16).reshape(2, 8))["image_features"][:, 0].sum().backward()
    optimizer.step()
    state = {"epoch": 1, "name": "mine", "state_dict": made.model.state_dict(), "optimizer": optimizer.state_dict()}
    path = checkpoints.save(tmp_path, "epoch_1.pt", {**state, "vitals": {"config": made.config}}, about={"step": 1})
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
    theirs = torch.optim.AdamW(groups, lr=spec.peak_lr)
    theirs.load_state_dict(loaded["optimizer"])
    mine = {name: optimizer.state[weight] for name, weight in made.model.named_parameters()}
    for name, weight in model.named_parameters():
        assert mine[name].keys() == theirs.state[weight].keys(), name
        for key, value in mine[name].items():
            assert torch.equal(value, theirs.state[weight][key]), name


def test_siglip_begins_where_the_paper_does_and_its_bias_is_loaded_again(tmp_path: Path) -> None:
    made = make(loss="siglip")
    assert made.model.logit_scale.item() == pytest.approx(math.log(10))
    assert made.model.logit_bias.item() == -10
    again = make(weights=saved(made, tmp_path))
    assert again.model.logit_bias.item() == -10
    assert same(made.model, again.model)


@pytest.mark.parametrize(("precision", "weights"), [("fp32", "float32"), ("amp", "float32"), ("bf16", "bfloat16")])
def test_precision_is_that_of_the_reference(precision: str, weights: str) -> None:
    """Half precision is for matrices: norms stay in float32."""
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
    ],
)
def test_only_known_names_are_models(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        create(TrainSpec(**fields), weights="")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"hf_tokenizer_name": "somebody/tokenizer"}, "asks for tokenizer 'somebody/tokenizer'"),
        ({"tokenizer_kwargs": {"trust_remote_code": True}}, "sets trust_remote_code"),
        ({"tokenizer_kwargs": {"bpe_path": "/etc/passwd"}}, "sets bpe_path"),
        ({"vocab_size": 1000}, "1,000 tokens"),
        ({"hf_model_name": "somebody/model"}, "would need a look-up"),
    ],
)
def test_a_configuration_fetches_nothing_and_runs_nothing_of_its_own(text: dict[str, Any], message: str) -> None:
    configs = {"mine": {**CONFIGS["vit"], "text_cfg": {**TEXT, **text}}}
    with pytest.raises(Refused, match=message):
        create(TrainSpec(model="config:mine", configs=configs), weights="")


def test_a_size_that_cannot_be_is_refused_with_the_models_own() -> None:
    with pytest.raises(Refused, match="its own size is 160"):
        make("timm", image_size=97)


def test_an_evaluation_makes_the_same_model(tmp_path: Path) -> None:
    made = make(image_size=32, seed=4)
    spec = EvaluateSpec(model="config:vit", configs={"vit": CONFIGS["vit"]})
    evaluated = create(spec, weights=str(saved(made, tmp_path)))
    assert same(made.model, evaluated.model)
    assert (evaluated.image_size, evaluated.notes) == ((32, 32), [])
    assert "model is untrained" in create(spec, weights="").notes[0]


def test_templates_are_open_clips() -> None:
    assert clip_weights.TEMPLATES[0] == "itap of a {}."
    assert all(
        template.format("cat") == fill("cat")
        for template, fill in zip(clip_weights.TEMPLATES, open_clip.SIMPLE_IMAGENET_TEMPLATES, strict=True)
    )
