"""Export of a checkpoint as a folder that open_clip loads, and matching of an image with texts."""

import json
from base64 import b64encode
from io import BytesIO
from pathlib import Path

import open_clip
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import nn

from engine.models.clip import weights as clip_weights
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import LARGEST_IMAGE_MB, Export, Match
from engine.training import checkpoints
from engine.training.answers import export
from engine.training.evaluation import match
from tests.support.training import TINY, tiny, train

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(tiny(epochs=1), folder)
    return folder / "checkpoints" / "epoch_1.pt"


@pytest.fixture(autouse=True)
def set_data_roots(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_DATA_ROOTS", f"{checkpoint.parent.parent}:{tmp_path}")


def png_image() -> bytes:
    content = BytesIO()
    Image.linear_gradient("L").convert("RGB").save(content, "PNG")
    return content.getvalue()


def spec(checkpoint: Path) -> EvaluateSpec:
    return EvaluateSpec.model_validate(
        {"model": "config:tiny", "configs": {"tiny": TINY}, "checkpoint": str(checkpoint)}
    )


def test_open_clip_loads_the_exported_folder_with_equal_outputs(checkpoint: Path, tmp_path: Path) -> None:
    answer = export.answer(Export(checkpoint=checkpoint, folder=tmp_path / "out", card="# A card\n"))
    assert set(answer.files) == {"open_clip_model.safetensors", "open_clip_config.json", "README.md"}
    assert (tmp_path / "out" / "README.md").read_text() == "# A card\n"
    name = f"local-dir:{tmp_path / 'out'}"
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    tokens = open_clip.get_tokenizer(name)(["a photo of a seven"])
    stored = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert all(torch.equal(tensor, stored[name]) for name, tensor in model.state_dict().items())
    built = clip_weights.create(spec(checkpoint), weights=str(checkpoint))
    image = Image.open(BytesIO(png_image()))
    assert torch.equal(tokens, built.tokenizer(["a photo of a seven"]))
    assert torch.equal(preprocess(image), built.preprocess_val(image))
    with torch.no_grad():
        model.eval(), built.model.eval()
        torch.testing.assert_close(
            model.encode_image(preprocess(image)[None]),
            built.model.encode_image(built.preprocess_val(image)[None]),  # type: ignore[operator]
        )


def test_export_to_a_folder_with_files_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(Refused, match="exists and is not an empty folder"):
        export.answer(Export(checkpoint=checkpoint, folder=tmp_path, card=""))
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    (tmp_path / "empty").mkdir()
    export.answer(Export(checkpoint=checkpoint, folder=tmp_path / "empty", card=""))
    config = json.loads((tmp_path / "empty" / "open_clip_config.json").read_text())
    assert config["model_cfg"]["embed_dim"] == 16


def test_tied_weights_and_weights_of_several_processes_are_exported(checkpoint: Path, tmp_path: Path) -> None:
    tied = nn.Linear(2, 2, bias=False)
    weights = {"module.one": tied.weight.data, "module.other": tied.weight.data}
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    state = {"state_dict": weights, "vitals": {"config": {"model_cfg": {}}}}
    checkpoints.save(folder, "tied.pt", state, about={"epoch": 1, "step": 1, "spec": {}})
    export.answer(Export(checkpoint=folder / "tied.pt", folder=tmp_path / "out", card=""))
    loaded = load_file(tmp_path / "out" / "open_clip_model.safetensors")
    assert set(loaded) == {"one", "other"}
    assert torch.equal(loaded["one"], loaded["other"])


def test_texts_are_ranked_by_cosine_with_the_probabilities_of_the_loss(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("a seven", "a cat", "noise")
    question = Match(spec=spec(checkpoint), image=b64encode(png_image()), texts=texts)
    found = match.answer(question).texts
    built = clip_weights.create(spec(checkpoint), weights=str(checkpoint))
    built.model.eval()
    with torch.no_grad():
        image = built.model.encode_image(built.preprocess_val(Image.open(BytesIO(png_image())))[None], normalize=True)  # type: ignore[operator]
        features = built.model.encode_text(built.tokenizer(list(texts)), normalize=True)  # type: ignore[operator]
        cosines = (features @ image[0]).double()
        shares = (cosines * built.model.logit_scale.exp().double()).softmax(0)  # type: ignore[operator]
    expected = sorted(zip(cosines.tolist(), texts, shares.tolist(), strict=True), reverse=True)
    assert [item.text for item in found] == [text for _, text, _ in expected]
    assert [item.similarity for item in found] == pytest.approx([cosine for cosine, _, _ in expected], abs=1e-6)
    assert [item.probability for item in found] == pytest.approx([share for *_, share in expected], abs=1e-6)
    monkeypatch.setattr(match.kept_model(question.spec, Settings().roots).model, "logit_bias", torch.tensor(-2.0))
    logits = built.model.logit_scale.exp().double() * torch.tensor([cosine for cosine, *_ in expected]) - 2  # type: ignore[operator]
    of_siglip = [item.probability for item in match.answer(question).texts]
    assert of_siglip == pytest.approx(logits.sigmoid().tolist(), abs=1e-6)


def test_class_names_are_put_into_prompts(checkpoint: Path) -> None:
    common = {"spec": spec(checkpoint), "image": b64encode(png_image())}
    named = match.answer(Match(texts=("seven", "cat"), templates=("a photo of a {}.",), **common)).texts
    typed = match.answer(Match(texts=("a photo of a seven.", "a photo of a cat."), **common)).texts
    assert [item.similarity for item in named] == pytest.approx([item.similarity for item in typed], abs=1e-5)
    assert {item.text for item in named} == {"seven", "cat"}


def test_image_of_the_largest_upload_is_accepted() -> None:
    image = bytes(LARGEST_IMAGE_MB * 2**20)
    assert Match(spec=EvaluateSpec(), image=b64encode(image), texts=("one",)).image == image
    with pytest.raises(ValidationError, match="at most"):
        Match(spec=EvaluateSpec(), image=b64encode(image + bytes(6)), texts=("one",))


def test_invalid_image_is_refused(checkpoint: Path) -> None:
    with pytest.raises(Refused, match="the picture: it is no image of a known format"):
        match.answer(Match(spec=spec(checkpoint), image=b64encode(b"no picture"), texts=("one",)))
