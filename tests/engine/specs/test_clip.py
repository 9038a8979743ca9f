"""Specs of trainings, evaluations and searches: valid and refused values."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Augment, Search
from engine.specs.schedule import schedule
from engine.specs.train import TrainSpec


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"warmup": "soon"}, "warm-up 'soon' is neither a number of steps nor a share"),
        ({"warmup": "101%"}, "warm-up '101%' is neither a number of steps nor a share"),
        ({"epochs": 2, "steps": 5}, "give epochs or steps, not both"),
        ({"batch_size": 1}, "batch_size\n  Input should be greater than or equal to 2"),
        ({"batch_size": 10**9}, "batch_size\n  Input should be less than or equal to 65536"),
        ({"lr": float("nan")}, "lr\n  Input should be a finite number"),
        ({"lr_scheduler": "const-cooldown"}, "const-cooldown needs epochs_cooldown"),
        ({"loss": "distill"}, "distillation needs a teacher"),
        ({"loss": "coca", "accum_freq": 2}, "accum_freq must be 1"),
        ({"local_loss": True, "gather_with_grad": False}, "local_loss without gather_with_grad"),
        ({"opt": "sgd"}, "must be adamw or an optimizer of timm such as timm/lion"),
        ({"opt": "timm/lamb", "beta1": 0.9}, "timm's optimizers take both betas or none"),
        ({"templates": "a digit"}, "a template has {} where the class name goes, unlike 'a digit'"),
        ({"device": "cuda:1", "nproc": 2}, "2 processes take cuda:0 to cuda:1, so the device is cuda:0, not cuda:1"),
        ({"device": "mps", "nproc": 2}, "there is one mps device, for one process: 2 were asked for"),
        ({"data": "a.csv::b.csv", "data_weights": [1]}, "1 weight for 2 sources: give one each"),
        ({"data": "a.csv", "data_weights": [0]}, "the weights of sources are positive numbers"),
        ({"lock_image": True, "lr_image": 1e-4}, "the image tower is locked: leave lock_image or lr_image out"),
        (
            {"lock_text": True, "lock_text_freeze_layer_norm": True, "lr_text": 1e-4},
            "the text tower is locked: leave lock_text or lr_text out",
        ),
    ],
)
def test_invalid_trainings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        TrainSpec.model_validate(fields)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": "guessing"}, "Input should be 'retrieval', 'zeroshot' or 'linear-probe'"),
        ({"tasks": ()}, "at least 1 item"),
        ({"templates": "a photo"}, "a template has {} where the class name goes, unlike 'a photo'"),
    ],
)
def test_invalid_evaluations_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        EvaluateSpec.model_validate(fields)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": ""}, "text\n  String should have at least 1 character"),
        ({"top": 0}, "top\n  Input should be greater than or equal to 1"),
        ({"top": 1001}, "top\n  Input should be less than or equal to 1000"),
    ],
)
def test_invalid_searches_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        Search.model_validate({"spec": EvaluateSpec(), "folder": Path("/nowhere"), "text": "a seven"} | fields)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"more_models": "ViT-B-32,openai\na model"}, "'a model' names no model"),
        ({"more_models": "a" * 201}, "names no model"),
        ({"model": "a" * 201}, "at most 200 characters"),
        ({"recall_k": "0"}, "greater than or equal to 1"),
        ({"probe_c": "inf"}, "finite"),
        ({"shots": 0}, "greater than or equal to 1"),
        ({"class_prompts": "cat"}, "is not JSON"),
        ({"class_prompts": '{"cat": ["\\ud800"]}'}, "is not JSON"),
        ({"class_prompts": {"cat": []}}, "the class 'cat' has"),
        ({"class_prompts": "[1]"}, "prompts per class must be JSON"),
    ],
)
def test_invalid_options_of_evaluations_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        EvaluateSpec.model_validate(fields)


def test_evaluation_has_a_part_per_model_and_data_set() -> None:
    spec = EvaluateSpec.model_validate(
        {"more_models": "ViT-B-32, openai\nRN50\ndigits-clip", "more_data": "a.csv", "recall_k": "5,1,5"}
    )
    assert spec.subjects == (("digits-clip", ""), ("ViT-B-32", "openai"), ("RN50", ""))
    assert [(part.model, part.data) for part in spec.parts][:3] == [
        ("digits-clip", "digits"),
        ("digits-clip", "a.csv"),
        ("ViT-B-32", "digits"),
    ]
    assert all(len(part.parts) == 1 for part in spec.parts)
    assert spec.models == ("open_clip:ViT-B-32", "open_clip:RN50")
    assert spec.recall_k == (1, 5)
    assert EvaluateSpec.model_validate({"tasks": "zeroshot,retrieval,zeroshot"}).tasks == ("zeroshot", "retrieval")
    nested = EvaluateSpec.model_validate({"class_prompts": {"imagenet1k": {"cat": ["a cat."]}}})
    assert nested.class_prompts == '{"cat": ["a cat."]}'
    assert EvaluateSpec.model_validate_json(nested.model_dump_json()) == nested


def test_summary_begins_with_the_model_and_shortens_paths() -> None:
    best = "/srv/runs/7/checkpoints/best.pt"
    tuned = TrainSpec(pretrained=best, data="/srv/data/cats.csv::/srv/dogs/", lr=1e-5, epochs=3)
    assert tuned.summary == "digits-clip from run 7: best.pt on cats.csv::dogs, lr 1e-05, 3 epochs (cpu)"
    assert TrainSpec().summary == "digits-clip on digits (cpu)"
    assert EvaluateSpec(checkpoint=best, data="/srv/cats.csv").summary.startswith(
        "digits-clip from run 7: best.pt on cats.csv: retrieval"
    )


def test_augmentation_does_not_depend_on_the_processes() -> None:
    assert Augment.of(TrainSpec(nproc=2, use_bn_sync=True)) == Augment.of(TrainSpec())


def test_default_batch_size_grows_with_the_number_of_pairs() -> None:
    batches = {pairs: schedule(TrainSpec(), pairs).batch_size for pairs in (2, 7, 38, 200, 512, 1438, 10**6)}
    assert batches == {2: 2, 7: 4, 38: 16, 200: 16, 512: 32, 1438: 64, 10**6: 256}
