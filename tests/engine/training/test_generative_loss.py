"""The loss of held-out captions, by models that write some, against open_clip's own."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import open_clip
import pytest
import torch
from open_clip_train.train import maybe_compute_generative_loss
from torch import Tensor

from engine.results import Metric
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


class Counted:
    """Pairs whose captions are the numbers of rows of tokens."""

    def __init__(self, images: Tensor) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def image(self, index: int) -> Tensor:
        return self._images[index]

    def captions(self, index: int) -> tuple[str, ...]:
        return str(index), "another, which is not judged"


def found(model: open_clip.CoCa, images: Tensor, tokens: Tensor) -> float:
    """In batches of four, the last of which is shorter."""
    made = SimpleNamespace(
        model=model,
        preprocess_val=lambda image: image,
        tokenizer=lambda texts: tokens[[int(text) for text in texts]],
    )
    work = generative_loss(Counted(images), Reader(made, "fp32", "cpu", 4))  # type: ignore[arg-type]
    done = []
    while True:
        try:
            done.append(next(work))
        except StopIteration as ended:
            assert done == [4, 6]
            return float(ended.value)


def test_whole_captions_are_judged_as_open_clips_validation_does() -> None:
    model, (images, tokens) = coca().eval(), batches(1, 6)[0]
    with torch.no_grad():
        theirs = maybe_compute_generative_loss(model(images, tokens))
    assert found(model.train(), images, tokens) == pytest.approx(theirs.item(), rel=1e-5)
    assert model.training, "it is left as it was"


def test_padding_is_left_out_as_open_clips_training_does() -> None:
    model, (images, tokens) = coca().eval(), batches(1, 6)[0]
    for row, length in enumerate((8, 2, 3, 5, 8, 4)):
        tokens[row, length:] = model.pad_id
    with torch.no_grad():
        theirs = open_clip.CoCaLoss(caption_loss_weight=1, clip_loss_weight=0)(**model(images, tokens))[1]
    assert found(model, images, tokens) == pytest.approx(theirs.item(), rel=1e-5)


@pytest.mark.slow
def test_a_training_of_coca_tells_it_under_the_references_name(tmp_path: Path) -> None:
    fields = {"model": "config:coca", "configs": {"coca": TINY_COCA}, "loss": "coca"}
    events = train(tiny(**fields, best_metric="val_generative_loss"), tmp_path)
    written = [
        json.loads(line)["val_generative_loss"] for line in (tmp_path / "results.jsonl").read_text().splitlines()
    ]
    assert [row.val_generative_loss for row in rows(events)] == written
    curve = [event.value for event in events if isinstance(event, Metric) and event.name == "val/val_generative_loss"]
    assert curve == written
    assert written[0] == pytest.approx(math.log(49408), rel=0.2)  # it has hardly begun to guess
    assert [row.best for row in rows(events)] == [True, written[1] < written[0]]
    best = checkpoints.load(tmp_path / "checkpoints" / "best.pt")["vitals"]["done"]["rows"][-1]
    assert best["val_generative_loss"] == min(written)
