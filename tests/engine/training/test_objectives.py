"""Objectives against open_clip's losses on the same outputs, and against hand formulas."""

import math
from typing import Any

import open_clip
import pytest
import torch
from open_clip.loss import SigLipLoss
from torch import Tensor, nn

from engine.specs import Refused
from engine.specs.train import TrainSpec
from engine.training import objectives
from tests.support.step import batches, clip, coca


def outputs_of(model: nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        return dict(model(*batches(1)[0]))


@pytest.mark.parametrize("bias", [None, -10.0])
def test_clip_loss_equals_that_of_open_clip(bias: float | None) -> None:
    model = clip(init_logit_bias=bias)
    outputs = outputs_of(model)
    found = objectives.create(TrainSpec(), model)(outputs)
    reference = open_clip.ClipLoss()(**outputs)
    assert found == {"contrastive_loss": reference, "loss": reference}
    cosines = outputs["logit_scale"] * outputs["image_features"] @ outputs["text_features"].T
    by_hand = -(cosines.log_softmax(0).diagonal() + cosines.log_softmax(1).diagonal()).mean() / 2
    torch.testing.assert_close(reference, by_hand)


def test_siglip_loss_equals_that_of_open_clip() -> None:
    model = clip(init_logit_bias=-10)
    outputs = outputs_of(model)
    found = objectives.create(TrainSpec(loss="siglip"), model)(outputs)
    assert found["loss"] == found["contrastive_loss"] == SigLipLoss()(**outputs)


def test_coca_losses_equal_those_of_open_clip() -> None:
    model = coca()
    outputs = outputs_of(model)
    spec = TrainSpec(loss="coca", coca_caption_weight=3.0, coca_contrastive_weight=0.5)
    found = objectives.create(spec, model)(outputs)
    contrast, caption = open_clip.CoCaLoss(caption_loss_weight=3.0, clip_loss_weight=0.5)(**outputs)
    assert found == {"contrastive_loss": contrast, "caption_loss": caption, "loss": contrast + caption}


def test_distillation_loss_equals_that_of_open_clip() -> None:
    model, teacher = clip(), clip(seed=1, init_logit_bias=-10).eval()
    objective = objectives.create(TrainSpec(loss="distill", distill_model="RN50"), model, teacher=teacher)
    teacher_outputs = objective.beside(*batches(1)[0])
    found = objective({**outputs_of(model), **teacher_outputs})
    reference_outputs = {f"dist_{name}": value for name, value in outputs_of(teacher).items() if name != "logit_bias"}
    contrast, distilled = open_clip.DistillClipLoss()(**outputs_of(model), **reference_outputs)
    assert found == {"contrastive_loss": contrast, "distill_loss": distilled, "loss": contrast + distilled}
    assert not any(value.requires_grad for value in teacher_outputs.values())


@pytest.mark.parametrize(
    ("loss", "model", "message"),
    [
        (
            "siglip",
            clip,
            "SigLIP's loss needs a logit bias, .* take .*, .* or one of 25 more, or a configuration with init_logit_",
        ),
        ("coca", clip, "is not a CoCa model and the loss is coca"),
        ("clip", coca, "is a CoCa model and the loss is clip"),
        ("distill", lambda: clip(init_logit_bias=-10), "has a logit bias, which the loss distill does not take"),
    ],
)
def test_loss_that_does_not_fit_the_model_is_refused(loss: Any, model: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        objectives.create(TrainSpec(loss=loss, distill_model="RN50"), model())


def test_teacher_with_another_tokenizer_is_refused() -> None:
    """The teacher gets the student's tokens, which name other words in another vocabulary."""
    spec = TrainSpec(loss="distill", distill_model="roberta-ViT-B-32")
    with pytest.raises(Refused, match="the teacher roberta-ViT-B-32 has the tokenizer roberta-base, and digits-clip"):
        objectives.create(spec, clip(), teacher=clip())


def test_padding_does_not_count_in_the_caption_loss() -> None:
    logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [6, 5, 4, 3, 2]])
    total, count = objectives.caption_loss(logits, labels)
    probabilities = logits.softmax(dim=2)
    by_hand = [-math.log(probabilities[i, j, labels[i, j]]) for i in range(3) for j in range(5) if labels[i, j]]
    assert count == len(by_hand) == 9
    assert total == pytest.approx(sum(by_hand), rel=1e-5)
