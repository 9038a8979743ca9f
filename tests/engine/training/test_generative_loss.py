"""The loss of held-out captions of models that generate captions, against open_clip's."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import open_clip
import pytest
import torch
from open_clip_train.train import maybe_compute_generative_loss
from torch import Tensor

from engine.datasets import Pairs
from engine.results import Metric, Progress
from engine.roots import Roots
from engine.training import checkpoints
from engine.training.evaluation.encode import Reader, generative_loss
from tests.support.step import batches, coca
from tests.support.training import TINY, rows, tiny, train

POOLED = {"attentional_pool": True, "attn_pooler_queries": 4, "attn_pooler_heads": 2, "output_tokens": True}
TINY_COCA = {
    "custom_text": True,
    "embed_dim": 16,
    "vision_cfg": TINY["vision_cfg"] | POOLED,  # type: ignore[operator]
    "text_cfg": TINY["text_cfg"] | {"embed_cls": True, "output_tokens": True},  # type: ignore[operator]
    "multimodal_cfg": TINY["text_cfg"] | {"attn_pooler_heads": 2},  # type: ignore[operator]
}


@dataclass(frozen=True)
class Prepared:
    """A picture that is a tensor already."""

    content: Tensor
    source: str = "prepared"

    def image(self, _roots: Roots) -> Any:
        return self.content


def loss_in_batches(model: open_clip.CoCa, images: Tensor, tokens: Tensor) -> float:
    """Return the loss of six pairs, computed in batches of at most four."""
    built = SimpleNamespace(
        model=model,
        preprocess_val=lambda image: image,
        tokenizer=lambda texts: tokens[[int(text) for text in texts]],
    )
    reader = Reader(built, "fp32", "cpu", 4)  # type: ignore[arg-type]
    captions = [(str(row), "another, which is not judged") for row in range(len(images))]  # the first: a row of tokens
    pairs = Pairs("prepared", [*map(Prepared, images)], captions)
    work = generative_loss(pairs, reader, lambda done: Progress(done=done))
    done = []
    while True:
        try:
            done.append(next(work).done)  # type: ignore[attr-defined]
        except StopIteration as ended:
            assert done == [4, 6]
            return float(ended.value)


def test_loss_of_whole_captions_equals_open_clips_validation() -> None:
    model, (images, tokens) = coca().eval(), batches(1, 6)[0]
    with torch.no_grad():
        reference = maybe_compute_generative_loss(model(images, tokens))
    assert loss_in_batches(model.train(), images, tokens) == pytest.approx(reference.item(), rel=1e-5)
    assert model.training, "the mode of the model is restored"


def test_padding_is_left_out_as_in_open_clips_training() -> None:
    model, (images, tokens) = coca().eval(), batches(1, 6)[0]
    for row, length in enumerate((8, 2, 3, 5, 8, 4)):
        tokens[row, length:] = model.pad_id
    with torch.no_grad():
        reference = open_clip.CoCaLoss(caption_loss_weight=1, clip_loss_weight=0)(**model(images, tokens))[1]
    assert loss_in_batches(model, images, tokens) == pytest.approx(reference.item(), rel=1e-5)


@pytest.mark.slow
def test_coca_training_reports_the_loss_by_open_clips_name(tmp_path: Path) -> None:
    fields = {"model": "config:coca", "configs": {"coca": TINY_COCA}, "loss": "coca"}
    events = train(tiny(**fields, best_metric="val_generative_loss"), tmp_path)
    written = [
        json.loads(line)["val_generative_loss"] for line in (tmp_path / "results.jsonl").read_text().splitlines()
    ]
    assert [row.val_generative_loss for row in rows(events)] == written
    curve = [event.value for event in events if isinstance(event, Metric) and event.name == "val/val_generative_loss"]
    assert curve == written
    assert written[0] == pytest.approx(math.log(49408), rel=0.2)  # the model guesses almost at random
    assert [row.best for row in rows(events)] == [True, written[1] < written[0]]
    best = checkpoints.load(tmp_path / "checkpoints" / "best.pt")["vitals"]["done"]["rows"][-1]
    assert best["val_generative_loss"] == min(written)
