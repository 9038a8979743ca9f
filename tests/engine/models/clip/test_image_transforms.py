"""Training images equal those of open_clip's and timm's transforms for equal random states."""

import random
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from open_clip.transform import AugmentationCfg, PreprocessCfg, image_transform_v2
from PIL import Image
from pydantic import ValidationError
from timm.data.transforms_factory import create_transform

from engine import datasets
from engine.results.answers import Augmented
from engine.specs import Refused, TrainSpec
from engine.specs.questions import Augment
from engine.training.answers import augmented
from engine.training.batches import Drawn
from tests.support.clip_models import PICTURE, make, saved, train_spec

Transform = Any


def draw_images(transform: Transform, count: int = 6) -> torch.Tensor:
    """Return some draws of the same picture, from the same random states each time."""
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    return torch.stack([transform(PICTURE) for _ in range(count)])


@pytest.mark.filterwarnings("ignore:Unused augmentation")  # open_clip warns of its colour jitter
@pytest.mark.parametrize(
    ("fields", "open_clip_fields"),
    [
        ({}, {}),
        ({"aug_scale": "0.2,0.6"}, {"scale": (0.2, 0.6)}),
        (
            {"aug_color_jitter": (0.4, 0.3, 0.2, 0.1), "aug_color_jitter_prob": 0.5, "aug_gray_scale_prob": 0.5},
            {"color_jitter": (0.4, 0.3, 0.2, 0.1), "color_jitter_prob": 0.5, "gray_scale_prob": 0.5},
        ),
        ({"aug_use_timm": True, "aug_ratio": (0.5, 2)}, {"use_timm": True, "ratio": (0.5, 2)}),
        ({"aug_use_timm": True, "aug_color_jitter": (0.4,)}, {"use_timm": True, "color_jitter": 0.4}),
        (
            {"aug_use_timm": True, "aug_re_prob": 0.9, "aug_re_count": 3},
            {"use_timm": True, "re_prob": 0.9, "re_count": 3},
        ),
    ],
)
def test_augmented_images_equal_those_of_open_clip(fields: dict[str, Any], open_clip_fields: dict[str, Any]) -> None:
    built = make(**fields)
    reference = image_transform_v2(
        PreprocessCfg(size=(16, 16)), is_train=True, aug_cfg=AugmentationCfg(**open_clip_fields)
    )
    assert torch.equal(draw_images(built.preprocess_train), draw_images(reference))
    if fields:
        assert not torch.equal(draw_images(built.preprocess_train), draw_images(make().preprocess_train))


def test_auto_augment_uses_the_given_crop_and_erasing() -> None:
    mean, std = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    base: dict[str, Any] = {"is_training": True, "hflip": 0.0, "mean": mean, "std": std, "scale": (0.9, 1.0)}
    base |= {"interpolation": "bicubic", "auto_augment": "rand-m9"}
    before = draw_images(make(aug_use_timm=True, aug_auto_augment="rand-m9").preprocess_train)
    for fields, timm_options in (
        ({"aug_ratio": (0.3, 0.4)}, {"ratio": (0.3, 0.4)}),
        ({"aug_re_prob": 1.0, "aug_re_count": 2}, {"re_prob": 1.0, "re_count": 2, "re_mode": "pixel"}),
    ):
        built = make(aug_use_timm=True, aug_auto_augment="rand-m9", **fields)
        assert torch.equal(
            draw_images(built.preprocess_train), draw_images(create_transform((3, 16, 16), **base, **timm_options))
        )
        assert not torch.equal(draw_images(built.preprocess_train), before)


def test_random_interpolation_draws_bilinear_or_bicubic() -> None:
    whole = {"aug_use_timm": True, "aug_scale": (1, 1), "aug_ratio": (1.25, 1.25)}  # the picture is 50 x 40 pixels
    drawn = draw_images(make(**whole, image_interpolation="random").preprocess_train, 20)
    bilinear, bicubic = (
        draw_images(make(**whole, image_interpolation=name).preprocess_train, 1)[0] for name in ("bilinear", "bicubic")
    )
    assert {torch.equal(image, bicubic) for image in drawn} == {True, False}
    assert all(torch.equal(image, bilinear) or torch.equal(image, bicubic) for image in drawn)


def test_auto_augment_equals_timm_and_depends_on_seed_epoch_and_index() -> None:
    built = make(aug_use_timm=True, aug_auto_augment="rand-m9-mstd0.5-inc1")
    mean, std = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    shared: dict[str, Any] = {"is_training": True, "hflip": 0.0, "mean": mean, "std": std, "scale": (0.9, 1.0)}
    reference = create_transform((3, 16, 16), **shared, interpolation="bicubic", auto_augment="rand-m9-mstd0.5-inc1")
    assert torch.equal(draw_images(built.preprocess_train), draw_images(reference))
    drawn = Drawn(
        datasets.open_pairs("digits"), built.preprocess_train, open_clip.SimpleTokenizer(context_length=8), seed=0
    )
    np.random.seed(1)
    first = drawn[0, 5][0]
    assert np.random.get_state()[1][0] == 1, "the global random state does not change"  # type: ignore[index]
    np.random.seed(2)
    assert torch.equal(drawn[0, 5][0], first)
    assert not torch.equal(drawn[1, 5][0], first)
    with pytest.raises(Refused, match="timm has no auto_augment 'rand-z9'"):
        make(aug_use_timm=True, aug_auto_augment="rand-z9")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean", (0.1, 0.2, 0.3)),
        ("std", (0.5, 0.6, 0.7)),
        ("interpolation", "bilinear"),
        ("resize_mode", "longest"),
        ("resize_mode", "squash"),
    ],
)
def test_held_out_preprocessing_is_as_given_and_stored_in_checkpoints(name: str, value: Any, tmp_path: Path) -> None:
    built = make(**{f"image_{name}": value})
    reference = image_transform_v2(PreprocessCfg(size=(16, 16), **{name: value}), is_train=False)
    assert torch.equal(built.preprocess_val(PICTURE), reference(PICTURE))
    assert not torch.equal(reference(PICTURE), make().preprocess_val(PICTURE))
    reloaded = make("vit", saved(built, tmp_path))
    assert torch.equal(reloaded.preprocess_val(PICTURE), reference(PICTURE))


@pytest.mark.parametrize(("name", "size"), [("vit", "16x24"), ("convnet", "64x96"), ("timm", "160x96")])
def test_images_may_be_rectangles(name: str, size: str) -> None:
    built = make(name, image_size=size)
    height, width = map(int, size.split("x"))
    assert built.preprocess_train(PICTURE).shape == (3, height, width)
    assert built.model.encode_image(built.preprocess_val(PICTURE)[None]).shape == (1, 8)  # type: ignore[operator]


def test_resnet_takes_only_square_images() -> None:
    with pytest.raises(Refused, match="takes square images only"):
        make("resnet", image_size="32x64")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"image_mean": "0.5"}, "give 3 numbers from 0 to 1"),
        ({"image_std": "0,1,1"}, "image_std is .*: give 3 numbers"),
        ({"image_interpolation": "random"}, "set aug_use_timm too"),
        ({"aug_scale": "0.9,0.5"}, "aug_scale is .*: give 2 numbers"),
        ({"aug_ratio": "0.5,2"}, "aug_ratio: only timm has this"),
        ({"aug_auto_augment": "rand-m9"}, "aug_auto_augment: only timm has this"),
        ({"aug_auto_augment": "strong", "aug_use_timm": True}, "must be a policy of timm, such as rand-m9"),
        ({"aug_color_jitter": "0.4,0.4,0.4,0.1"}, "aug_color_jitter_prob above 0"),
        ({"aug_color_jitter_prob": 0.5}, "needs 4 numbers"),
        ({"aug_color_jitter": "0.1,0.1,0.1,0.9", "aug_color_jitter_prob": 1}, "the fourth one at most 0.5"),
        ({"aug_use_timm": True, "aug_gray_scale_prob": 0.1}, "do not work with aug_use_timm"),
        ({"aug_use_timm": True, "aug_color_jitter": "0.1,0.2"}, "has 2 numbers: timm takes 1, 3 or 4"),
        ({"aug_use_timm": True, "aug_color_jitter": "0.1", "aug_auto_augment": "rand-m9"}, "give one of them"),
    ],
)
def test_conflicting_image_options_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        TrainSpec(**fields)


def test_preview_shows_images_as_the_training_draws_them() -> None:
    spec = train_spec(aug_scale=(0.2, 0.5), data="digits", samples=10)
    answer: Augmented = augmented.answer(Augment.of(spec))
    assert len(set(answer.images)) == len(answer.images) == augmented.IMAGES * augmented.EPOCHS
    built = make(aug_scale=(0.2, 0.5))
    pairs = datasets.open_pairs("digits", samples=10)
    drawn = Drawn(pairs, built.preprocess_train, lambda texts: torch.zeros(len(texts), 1), seed=0)[1, 0][0]
    mean, std = (torch.tensor(v)[:, None, None] for v in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD))
    shown = np.asarray(Image.open(BytesIO(b64decode(answer.images[1]))), dtype=np.float32)
    assert np.allclose(shown, (drawn * std + mean).permute(1, 2, 0).numpy() * 255, atol=1)
