"""Checks before the start of a training: messages and numbers, checked by hand."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from engine.datasets import DataSummary
from engine.report.checks import Data, bf16_advice, checks
from engine.specs.train import TrainSpec

FACTS = DataSummary(1250, 1250, 1250, (), (), (), 1250, (), None, None, None, ())
DATA = Data(train=1000, held=250, facts=FACTS)


def marks(spec: TrainSpec, data: Data = DATA) -> dict[str, str]:
    """Return the marks of the checks by their texts."""
    return {check.text: check.mark for check in checks(spec, data)}


def test_good_data_have_no_warnings() -> None:
    # 1000 / 16 is 62.5, the largest power of two below is 32; 1000 // 32 is 31
    assert marks(TrainSpec()) == {
        "1,000 pairs to train on, 250 held out.": "ok",
        "1,250 captions, all distinct.": "ok",
        "Opened 1,250 images; all can be read.": "ok",
        "465 steps of 32 pairs: 31 steps an epoch, 15 epochs. Each epoch leaves out 8 pairs, chosen at random.": "ok",
        "The learning rate rises to 0.001 within 47 steps, then falls to 0.": "ok",
        "Retrieval among the pairs held out is measured during training.": "ok",
    }


@pytest.mark.parametrize(
    ("fields", "left_out"),
    [
        ({"batch_size": 999}, " Each epoch leaves out 1 pair, chosen at random."),
        ({"batch_size": 250}, ""),
        ({"resampled": True}, ""),
        ({"overfit": True, "steps": 5, "epochs": None}, ""),
    ],
)
def test_pairs_left_out_of_each_epoch_are_counted(fields: dict[str, Any], left_out: str) -> None:
    (steps,) = (text for text in marks(TrainSpec(**fields)) if "steps of" in text)
    assert steps.partition(". ")[2] == left_out.removeprefix(" ")


@pytest.mark.parametrize(
    ("fields", "data", "message", "mark"),
    [
        ({"batch_size": 1024}, {}, "Batch: the data are smaller than one step of 1,024 pairs", "error"),
        ({"batch_size": 64, "nproc": 2, "accum_freq": 10}, {}, "are smaller than one step of 1,280 pairs", "error"),
        ({"warmup": "466"}, {}, "Learning rate: a warm-up of 466 steps out of 465 never reaches", "error"),
        ({}, {"distinct_captions": 3}, "1,250 captions, 3 distinct: retrieval cannot be good", "warning"),
        ({}, {"distinct_captions": 3, "classes": ("x", "y", "z")}, "1,250 captions, 3 distinct: pairs that", "ok"),
        ({}, {"distinct_captions": 3, "classes": ("x",)}, "1,250 captions, 3 distinct: retrieval cannot", "warning"),
        ({}, {"distinct_captions": 1}, "Give captions in a CSV beside the images, or put", "error"),
        (
            {"lr": 5},
            {},
            "rises to 5 within 47 steps, then falls to 0. open_clip's image scripts use at most",
            "warning",
        ),
        ({"lr": 5, "opt": "timm/sgd"}, {}, "The learning rate rises to 5 within 47 steps, then falls to 0.", "ok"),
        ({"warmup": "0"}, {}, "The learning rate is 0.001 at the first step, then falls to 0.", "ok"),
        ({"epochs": 1, "warmup": "1"}, {}, "The learning rate rises to 0.001 within 1 step, then", "ok"),
        ({}, {"classes": ("x",)}, "Retrieval among the pairs held out is measured during training.", "ok"),
        (
            {"zeroshot_data": "z"},
            {"classes": ("x",), "zeroshot": 9},
            "at least two classes, and z has only 'x'",
            "error",
        ),
        ({}, {"shared": 240}, "240 of 250 held-out images also used for training.", "warning"),
        ({}, {"zeroshot": 30, "zeroshot_shared": 9}, "9 of 30 zero-shot images also used for training.", "warning"),
        ({}, {"held": 0, "zeroshot": 9, "zeroshot_shared": 9}, "9 of 9 zero-shot images also used for", "warning"),
        ({}, {"held": 0}, "The quality of the model cannot be measured", "warning"),
        (
            {},
            {"unreadable": [("a.png", "cut off")]},
            "1 of 1,250 images opened cannot be read: a.png (cut off)",
            "warning",
        ),
        ({}, {"opened": 1, "unreadable": [("a.png", "x")]}, "1 of 1 image opened cannot be read", "error"),
        ({}, {"classes": ("n01440764", "n01443537")}, "'a photo of a n01440764'", "warning"),
        (
            {"zeroshot_data": "/photos"},
            {"held": 0, "classes": ("x", "y"), "zeroshot": 30},
            "accuracy on 30 images of 2 classes",
            "ok",
        ),
        ({"zeroshot_data": "/photos"}, {"zeroshot": 30}, "needs a class for each image", "error"),
        ({"classes": ("a", "b")}, {"classes": ("x", "y", "z")}, "3 classes, but 2 names were given", "error"),
        ({"val_frequency": 0}, {}, "Neither retrieval nor zero-shot accuracy is measured", "warning"),
        ({"precision": "fp16"}, {}, "fp16 needs an accelerator", "error"),
        ({"precision": "fp16", "device": "cluster:cpu"}, {}, "fp16 needs an accelerator", "error"),
        ({"precision": "fp16", "device": "cuda"}, {}, "Take amp_bf16 or amp", "warning"),
        ({"precision": "bf16", "lr": 1e-5}, {}, "at a learning rate of 1e-05: most weights will not change", "warning"),
        ({"precision": "bf16", "lr_text": 1e-5}, {}, "a learning rate of 1e-05: most weights will not", "warning"),
        ({"lock_image": True}, {}, "The image tower is locked but has no trained weights", "warning"),
        ({"lock_image": True, "lock_text": True, "pretrained": "x"}, {}, "Both towers are locked", "warning"),
        ({"loss": "distill", "distill_model": "RN50"}, {}, "The teacher RN50 has no trained weights", "warning"),
        ({"nproc": 2, "accum_freq": 3, "batch_size": 4}, {}, "4 pairs × 3 batches × 2 processes = 24 pairs", "ok"),
        ({"overfit": True, "steps": 50}, {}, "50 steps of 32 pairs: the same batch each time", "ok"),
        ({"lr_text": 0.05}, {}, "rises to 0.001 (text tower: 0.05) within 47 steps, then falls to 0. open", "warning"),
        ({"val_every_steps": 2, "val_frequency": 0}, {}, "Validate every (steps) has nothing to measure", "error"),
        ({"best_metric": "image_to_text_r10", "val_frequency": 0}, {}, "cannot be chosen by image_to_text", "error"),
        ({"best_metric": "val_generative_loss"}, {}, "cannot be chosen by val_generative_loss", "error"),
        ({"best_metric": "zeroshot_top5"}, {"classes": ("x", "y")}, "cannot be chosen by zeroshot_top5", "error"),
        ({"best_metric": "zeroshot_top1"}, {"classes": ("x", "y")}, "Zero-shot accuracy on 2 classes", "ok"),
    ],
)
def test_checks_report_errors_warnings_and_facts(
    fields: dict[str, object], data: dict[str, Any], message: str, mark: str
) -> None:
    counts = data.keys() & {"held", "shared", "zeroshot", "zeroshot_shared"}
    facts = replace(FACTS, **{name: data[name] for name in data.keys() - counts})
    changed = replace(DATA, facts=facts, **{name: data[name] for name in counts})
    mark_of = marks(TrainSpec.model_validate(fields), changed)
    assert [mark_of[item] for item in mark_of if message in item] == [mark], mark_of


@pytest.mark.parametrize(
    "fields",
    [{"precision": "bf16", "lr": 1e-3}, {"precision": "amp_bf16", "lr": 1e-5}, {"precision": "auto", "lr": 1e-5}],
)
def test_no_warning_if_precision_is_enough_for_the_learning_rate(fields: dict[str, object]) -> None:
    assert set(marks(TrainSpec.model_validate(fields)).values()) == {"ok"}


def rates(**gflop_per_s: float) -> pd.DataFrame:
    shared = {"operation": "matmul", "host": "here", "device": "cpu", "where": "a CPU, 2 threads, on here", "flags": ""}
    return pd.DataFrame([shared | {"dtype": name, "gflop_per_s": rate} for name, rate in gflop_per_s.items()])


def test_bf16_is_advised_if_its_measured_rate_is_much_higher() -> None:
    measured = rates(float32=196.0, bfloat16=827.0)
    advice = bf16_advice(measured, "here", "cpu", "Precision amp_bf16")
    assert advice.startswith("Precision amp_bf16 may be up to 4.22 times as fast")
    assert advice.endswith("827 GFLOP/s in bfloat16 and 196 GFLOP/s in float32.")
    flags = ["single process, contended, below floor", "single process, below floor"]
    flagged = bf16_advice(measured.assign(flags=flags), "here", "cpu", "Precision amp_bf16")
    assert flagged == f"{advice} These rates are flagged (contended), so they may be wrong."
    for insufficient in (rates(float32=196.0, bfloat16=200.0), rates(float32=196.0), measured.head(0)):
        assert bf16_advice(insufficient, "here", "cpu", "") == ""
    assert bf16_advice(measured, "elsewhere", "cpu", "") == bf16_advice(measured, "here", "cuda:0", "") == ""
