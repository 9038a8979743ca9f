"""Towers that start from weights in the Hugging Face cache, against what open_clip loads."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from open_clip.hf_model import HFTextEncoder
from open_clip.timm_model import TimmModel
from safetensors.torch import save_file
from torch import Tensor
from transformers import RobertaConfig, RobertaForMaskedLM

from engine.models.clip import open_clip_models
from engine.models.clip.hub import Unreachable
from engine.models.clip.towers import FILES
from engine.models.clip.weights import create, fetch
from engine.specs import Refused
from engine.specs.questions import Outlook
from engine.specs.train import TrainSpec
from engine.training.answers import outlook
from tests.support.clip_models import TEXT, VIT, cached, make, train_spec

CONVNET = {"timm_model_name": "test_convnext", "timm_pool": "avg", "timm_proj": "linear", "image_size": 64}
HEADED = {"timm_model_name": "test_convnext", "timm_pool": "avg", "timm_proj": "", "image_size": 64}
LANGUAGE = {"hf_model_name": "roberta-base", "hf_tokenizer_name": "roberta-base", "hf_pooler_type": "mean_pooler"}
ROBERTA_SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ROBERTA_SIZES |= {"intermediate_size": 32, "max_position_embeddings": 120}


def spec(vision: dict[str, Any], text: dict[str, Any] = TEXT, **fields: Any) -> TrainSpec:
    config = {"embed_dim": 8, "vision_cfg": vision, "text_cfg": text}
    return TrainSpec(model="config:own", configs={"own": config}, **fields)


@pytest.fixture
def convnext(empty_cache: Path) -> dict[str, Tensor]:
    """Put weights of timm's test_convnext into the cache and return them."""
    torch.manual_seed(5)
    weights = timm.create_model("test_convnext").state_dict()
    repo = timm.get_pretrained_cfg("test_convnext").hf_hub_id
    save_file(weights, cached(empty_cache, repo) / "model.safetensors")
    return dict(weights)


@pytest.mark.parametrize(("vision", "random"), [(CONVNET, set()), (HEADED, {"head.fc.weight", "head.fc.bias"})])
def test_image_tower_starts_from_the_weights_that_open_clip_loads(
    vision: dict[str, Any], random: set[str], convnext: dict[str, Tensor]
) -> None:
    built = create(spec(vision, pretrained_image=True), weights="")
    reference = TimmModel("test_convnext", 8, 64, "avg", vision["timm_proj"], pretrained=True).trunk.state_dict()
    plain = create(spec(vision), weights="").model.visual.trunk.state_dict()
    state = built.model.visual.trunk.state_dict()
    assert state.keys() == reference.keys()
    different = {name for name, value in state.items() if not torch.equal(value, reference[name])}
    assert different == {name for name in random if "weight" in name}, "only the new head differs, and its bias is 0"
    assert {name for name in state if not torch.equal(state[name], plain[name])} != set()
    assert all(torch.equal(state[name], plain[name]) for name in random), "the seed still decides the other weights"
    assert built.notes[-1].startswith("the image tower starts from timm/test_convnext.r160_in1k")
    assert all(name in built.notes[-1] for name in random)


def test_text_tower_starts_from_the_weights_that_open_clip_loads(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_clip_models, "HF_CONFIGS", tmp_path / "configs")
    config, folder = RobertaConfig(**ROBERTA_SIZES), tmp_path / "configs" / "roberta-base"
    config.save_pretrained(folder)
    torch.manual_seed(5)
    whole = RobertaForMaskedLM(config)
    whole.save_pretrained(tmp_path / "theirs")
    hub = cached(empty_cache, "roberta-base")
    (hub / "model.safetensors").write_bytes((tmp_path / "theirs" / "model.safetensors").read_bytes())
    (hub / "tokenizer.json").write_text(json.dumps({}))
    monkeypatch.setattr("engine.models.clip.weights.tokenizer", lambda *_: None)
    built = create(spec(VIT, LANGUAGE, pretrained_text=True), weights="")
    reference = HFTextEncoder(str(tmp_path / "theirs"), 8, pooler_type="mean_pooler", pretrained=True)
    state, wanted = built.model.text.transformer.state_dict(), reference.transformer.state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[name], wanted[name]) for name in state)
    assert torch.equal(state["encoder.layer.0.output.dense.weight"], whole.roberta.encoder.layer[0].output.dense.weight)


@pytest.mark.usefixtures("empty_cache")
def test_missing_weights_give_an_error_with_a_command() -> None:
    wanted = spec(CONVNET, pretrained_image=True, batch_size=4)
    message = "test_convnext.r160_in1k are not in .*`hf download timm/test_convnext.r160_in1k"
    with pytest.raises(Unreachable, match=message) as error:
        list(fetch(wanted, ""))
    assert outlook.answer(Outlook.of(wanted, 4)).problems == (str(error.value),)


def test_towers_without_pretrained_weights_are_refused(convnext: dict[str, Tensor]) -> None:
    with pytest.raises(Refused, match="is not timm's"):
        make("vit", pretrained_image=True)
    with pytest.raises(Refused, match="not a model of Hugging Face"):
        make("vit", pretrained_text=True)
    with pytest.raises(ValueError, match="has the weights of both towers"):
        train_spec("vit", pretrained="laion", pretrained_image=True)


def test_weights_that_do_not_fit_are_refused(empty_cache: Path) -> None:
    folder = cached(empty_cache, timm.get_pretrained_cfg("test_convnext").hf_hub_id)
    save_file({"other": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(Refused, match="cannot be loaded"):
        create(spec(CONVNET, pretrained_image=True), weights="")


def test_pickle_as_weights_of_a_tower_is_refused_and_runs_nothing(empty_cache: Path, tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    folder = cached(empty_cache, timm.get_pretrained_cfg("test_convnext").hf_hub_id)
    torch.save({"weight": Code()}, folder / FILES[-1])
    with pytest.raises(Refused, match="cannot be loaded"):
        create(spec(CONVNET, pretrained_image=True), weights="")
    assert not (tmp_path / "ran").exists()
