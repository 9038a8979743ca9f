"""Text search of images: against features computed with open_clip alone, and refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from torch import nn

from engine.datasets import open_pairs
from engine.results.answers import Hits
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Search
from engine.tasks import evaluate
from engine.training.evaluation.search import _kept, answer, kept_model
from tests.support.training import TINY

pytestmark = [pytest.mark.slow]


def write_clip(folder: Path, seed: int) -> Any:
    """Build a small CLIP with open_clip and random weights, write its checkpoint and return it."""
    folder.mkdir(exist_ok=True)
    config = {"model_cfg": TINY, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(seed)
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    torch.save(model.state_dict(), folder / "weights.pt")
    return model.eval()


@pytest.fixture
def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EvaluateSpec, Path]:
    """Return an evaluation of forty digits and its folder."""
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path))
    write_clip(tmp_path / "model", seed=1)
    fields = {"model": "config:tiny", "configs": {"tiny": TINY}, "checkpoint": str(tmp_path / "model" / "weights.pt")}
    spec = EvaluateSpec.model_validate(fields | {"samples": 40, "held_out": False, "tasks": "retrieval"})
    folder = tmp_path / "run"
    folder.mkdir()
    list(evaluate.run(spec, folder))
    return spec, folder


def search(spec: EvaluateSpec, folder: Path, text: str = "a handwritten seven", top: int = 12) -> Hits:
    return answer(Search(spec=spec, folder=folder, text=text, top=top))


def test_hits_equal_those_of_open_clip_alone(evaluated: tuple[EvaluateSpec, Path], tmp_path: Path) -> None:
    spec, folder = evaluated
    model = write_clip(tmp_path / "model", seed=1)
    pairs = open_pairs("digits", samples=40)
    tokens = open_clip.SimpleTokenizer(context_length=TINY["text_cfg"]["context_length"])  # type: ignore[index]
    transform = open_clip.image_transform(
        32,
        is_train=False,
        mean=open_clip.OPENAI_DATASET_MEAN,
        std=open_clip.OPENAI_DATASET_STD,
    )
    with torch.no_grad():
        images = model.encode_image(torch.stack([transform(pairs.image(place)) for place in range(len(pairs))])).numpy()
    images = images / np.linalg.norm(images, axis=1, keepdims=True)
    for text in ("a handwritten seven", "nothing of the kind {}"):
        with torch.no_grad():
            direction = model.encode_text(tokens([text])).numpy()[0]
        cosines = images @ (direction / np.linalg.norm(direction))
        found = search(spec, folder, text, top=5)
        assert found.images == 40
        assert [hit.index for hit in found.hits] == np.argsort(-cosines)[:5].tolist()
        assert [hit.similarity for hit in found.hits] == pytest.approx(np.sort(cosines)[::-1][:5].tolist(), abs=1e-5)
        assert [hit.source for hit in found.hits] == [pairs.source(hit.index) for hit in found.hits]
        assert [hit.label for hit in found.hits] == [pairs.classes[pairs.label(hit.index) or 0] for hit in found.hits]


def test_more_hits_than_images_returns_all_images(evaluated: tuple[EvaluateSpec, Path]) -> None:
    found = search(*evaluated, top=1000)
    assert sorted(hit.index for hit in found.hits) == list(range(40))
    similarities = [hit.similarity for hit in found.hits]
    assert similarities == sorted(similarities, reverse=True)
    assert [isinstance(made.model.visual, nn.Identity) for made in _kept.values()] == [True]
    whole = kept_model(evaluated[0], Settings().roots)  # to compare it with a picture
    assert not isinstance(whole.model.visual, nn.Identity)
    assert not whole.model.training
    assert list(_kept.values()) == [whole], "two models may not fit into memory"


def test_missing_and_damaged_embeddings_are_refused(evaluated: tuple[EvaluateSpec, Path]) -> None:
    spec, folder = evaluated
    whole = (folder / "embeddings.npz").read_bytes()
    for content in (b"", b"nothing", whole[: len(whole) // 2]):
        (folder / "embeddings.npz").write_bytes(content)
        with pytest.raises(Refused, match=r"embeddings.npz (cannot be read|holds)"):
            search(spec, folder)
    (folder / "embeddings.npz").unlink()
    with pytest.raises(Refused, match=r"embeddings.npz was not kept with this run"):
        search(spec, folder)


def test_missing_or_changed_checkpoint_is_refused(evaluated: tuple[EvaluateSpec, Path], tmp_path: Path) -> None:
    spec, folder = evaluated
    assert search(spec, folder).images == 40
    write_clip(tmp_path / "other", seed=2)
    shutil.copy(tmp_path / "other" / "weights.pt", spec.checkpoint)
    with pytest.raises(Refused, match=r"weights.pt has changed since it was evaluated"):
        search(spec, folder)
    Path(spec.checkpoint).unlink()
    with pytest.raises(Refused, match=r"weights.pt' is neither a file"):
        search(spec, folder)


def test_embeddings_of_another_width_are_refused(evaluated: tuple[EvaluateSpec, Path]) -> None:
    spec, folder = evaluated
    with np.load(folder / "embeddings.npz") as file:
        whole = dict(file)
    narrow = {name: whole[name][:, :8] for name in ("images", "texts")}
    np.savez(folder / "embeddings.npz", **(whole | narrow))
    with pytest.raises(Refused, match="it gives 16 numbers for a text, and the embeddings have 8"):
        search(spec, folder)
    orthogonal = whole["texts"][:, ::-1] * np.tile([1, -1], 8)  # of each text, as long as it
    for cosine in (0.985, 0.975):
        texts = cosine * whole["texts"] + (1 - cosine**2) ** 0.5 * orthogonal
        np.savez(folder / "embeddings.npz", **(whole | {"texts": texts}))
        if cosine > 0.98:
            assert search(spec, folder).images == 40, "half precision changes features less"
    with pytest.raises(Refused, match=r"it encodes the captions differently now \(cosine 0\.9[78]\)"):
        search(spec, folder)
    np.savez(folder / "embeddings.npz", **(whole | {"texts": np.full_like(whole["texts"], np.nan)}))
    with pytest.raises(Refused, match="it encodes the captions differently"):
        search(spec, folder)
