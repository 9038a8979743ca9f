"""Ranks against open_clip's metrics and a full sort; the validation loss against open_clip's loss."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from open_clip import ClipLoss
from open_clip_train.train import get_clip_metrics
from torch import Tensor
from torch.nn import functional

from engine.training.evaluation import retrieval


def features(count: int, seed: int, width: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(count, width, generator=generator), dim=1)


def ranks_by_sorting(similar: Tensor, right: list[set[int]]) -> list[int]:
    """Return, from 0, the rank of the first right column of each row. Equal values keep their order."""
    order = np.argsort(-similar.numpy(), axis=1, kind="stable")
    return [
        min(place for place, column in enumerate(row) if column in columns)
        for row, columns in zip(order.tolist(), right, strict=True)
    ]


def summary(way: str, ranks: list[int]) -> dict[str, float]:
    return {
        f"{way}_mean_rank": sum(ranks) / len(ranks) + 1,
        f"{way}_median_rank": float(np.floor(np.median(ranks)) + 1),
        **{f"{way}_R@{k}": sum(rank < k for rank in ranks) / len(ranks) for k in (1, 5, 10)},
    }


def by_sorting(images: Tensor, texts: Tensor, owner: Tensor) -> dict[str, float]:
    similar = images @ texts.T
    of_image = [set((owner == image).nonzero()[:, 0].tolist()) for image in range(len(images))]
    return summary("image_to_text", ranks_by_sorting(similar, of_image)) | summary(
        "text_to_image", ranks_by_sorting(similar.T, [{image} for image in owner.tolist()])
    )


@pytest.mark.parametrize("count", [1, 2, 7, 50])
@pytest.mark.parametrize("chunk", [1, 8, 1024])
def test_ranks_of_pairs_equal_those_of_open_clip(count: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "MOST_ROWS", chunk)
    images = features(count, seed=1)
    texts = functional.normalize(images + features(count, seed=2), dim=1)
    found = retrieval.metrics(images, texts, torch.arange(count))
    assert found == pytest.approx(get_clip_metrics(images, texts, torch.tensor(30.0)), abs=1e-12)


@pytest.mark.parametrize("chunk", [3, 1024])
def test_image_with_several_captions_is_ranked_by_the_best(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "MOST_ROWS", chunk)
    images, owner = features(20, seed=3), torch.cat([torch.arange(20).repeat(2), torch.tensor([4, 4, 17])])
    owner = owner[torch.randperm(len(owner), generator=torch.Generator().manual_seed(0))]
    texts = functional.normalize(images[owner] + 1.5 * features(len(owner), seed=4), dim=1)
    found = retrieval.metrics(images, texts, owner)
    assert found == pytest.approx(by_sorting(images, texts, owner), abs=1e-12)
    assert found["text_to_image_R@1"] != found["image_to_text_R@1"]


@pytest.mark.parametrize("chunk", [1, 16, 1024])
def test_equal_similarities_are_ranked_in_their_order(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """361 images share ten captions, as with class names. One product with all would round equal values differently."""
    monkeypatch.setattr(retrieval, "MOST_ROWS", chunk)
    words, images, owner = features(10, seed=5, width=512), features(361, seed=6, width=512), torch.arange(361)
    similar = (images @ words.T)[:, owner % 10]
    right = [{image} for image in range(361)]
    wanted = summary("image_to_text", ranks_by_sorting(similar, right)) | summary(
        "text_to_image", ranks_by_sorting(similar.T, right)
    )
    assert retrieval.metrics(images, words[owner % 10], owner) == pytest.approx(wanted, abs=1e-12)


def test_median_rank_is_rounded_down_as_in_open_clip() -> None:
    texts = functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.4]]), dim=1)
    found = retrieval.metrics(torch.eye(2), texts, torch.arange(2))
    assert (found["text_to_image_mean_rank"], found["text_to_image_median_rank"]) == (1.5, 1.0)


def test_model_with_equal_features_has_the_recall_of_chance() -> None:
    same = features(1, seed=7).expand(100, -1)
    found = retrieval.metrics(same, same, torch.arange(100))
    assert found["image_to_text_R@1"] == found["text_to_image_R@1"] == 0.01
    assert found["image_to_text_mean_rank"] == 50.5


def test_features_that_are_nan_are_ranked_last() -> None:
    images, texts = features(10, seed=8), features(10, seed=9)
    images[3] = torch.nan
    found = retrieval.metrics(images, texts, torch.arange(10))
    assert retrieval.metrics(images * torch.nan, texts, torch.arange(10))["image_to_text_R@10"] == 0
    assert found["image_to_text_R@10"] == 0.9
    assert (
        found["text_to_image_mean_rank"]
        > by_sorting(images.nan_to_num(), texts, torch.arange(10))["text_to_image_mean_rank"]
    )


class Sizes(torch.overrides.TorchFunctionMode):
    """Records the number of elements of each tensor that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        self.sizes.extend([result.numel()] if isinstance(result, Tensor) else [])
        return result


def test_full_similarity_matrix_is_never_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "MOST_ROWS", 10)
    with Sizes() as found:
        retrieval.metrics(features(300, 1), features(300, 2), torch.arange(300))
    assert max(found.sizes) <= max(10 * 300, 300 * 16)


def test_similarities_with_many_captions_are_computed_in_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts, owner = features(60, 1), features(300, 2), torch.arange(60).repeat(5)
    wanted = by_sorting(images, texts, owner)
    monkeypatch.setattr(retrieval, "MOST_AT_ONCE", 6000)
    monkeypatch.setattr(retrieval, "LEAST_ROWS", 1)
    with Sizes() as found:
        assert retrieval.metrics(images, texts, owner) == pytest.approx(wanted, abs=1e-12)
    assert max(found.sizes) <= 6000


@pytest.mark.slow
def test_ranks_of_many_images_and_captions_need_little_memory() -> None:
    # VmHWM, not ru_maxrss, because a process inherits the peak of its parent
    code = """
import torch
from pathlib import Path
from engine.training.evaluation import retrieval

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6

images, texts = torch.randn(1_000, 8), torch.randn(60_000, 8)
retrieval.metrics(images[:100], texts[:100], torch.arange(100))  # memory that torch needs once
before = peak()
retrieval.metrics(images, texts, torch.arange(60_000) % 1_000)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 250  # MB


@pytest.mark.parametrize(("count", "batch_size"), [(48, 16), (50, 16), (5, 16), (17, 8)])
def test_validation_loss_equals_that_of_open_clip_over_batches(count: int, batch_size: int) -> None:
    images, texts = features(count, seed=10), features(count, seed=11)
    total, loss = 0.0, ClipLoss()
    for start in range(0, count, batch_size):
        batch = slice(start, start + batch_size)
        total += float(loss(images[batch], texts[batch], torch.tensor(20.0))) * len(images[batch])
    assert retrieval.clip_loss(images, texts, 20.0, batch_size) == pytest.approx(total / count, rel=1e-6)


def test_recall_at_any_rank_equals_clip_benchmark() -> None:
    """CLIP_benchmark's recall_at_k: whether one of a query's matches is among the k largest similarities."""
    images, texts = features(20, seed=5), features(50, seed=6)
    owner = torch.arange(50) % 20
    found = retrieval.metrics(images, texts, owner, recalls=(2, 7))
    matches = owner[:, None] == torch.arange(20)
    for k in (2, 7):
        for way, similar, right in (
            ("text_to_image", texts @ images.T, matches),
            ("image_to_text", images @ texts.T, matches.T),
        ):
            hit = right.gather(1, similar.topk(k, dim=1).indices).any(dim=1)
            assert found[f"{way}_R@{k}"] == pytest.approx(hit.double().mean().item())
    assert len(found) == 8
