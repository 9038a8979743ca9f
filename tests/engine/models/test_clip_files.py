"""Files of weights: ours and open_clip's load as open_clip loads them, and what does not fit is refused."""

import os
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch

from engine.models import clip_files
from engine.models.clip_weights import create
from engine.specs import Refused
from engine.specs.train import TrainSpec
from tests.support.clip_models import CONFIGS, PICTURE, VIT, cached, features, make, same, saved


@pytest.mark.parametrize("name", CONFIGS)
def test_a_checkpoint_comes_back_at_its_own_sizes_and_at_others(name: str, tmp_path: Path) -> None:
    size = {"timm": 96, "convnet": 96}.get(name, 64)
    made = make(name, image_size=size, context_length=12, seed=1)
    assert (made.image_size, made.context_length) == ((size, size), 12)
    path = saved(made, tmp_path)
    again = make(name, path, seed=2)
    assert same(made.model, again.model)
    assert (again.image_size, again.context_length, again.notes) == ((size, size), 12, [])
    image = made.preprocess_val(PICTURE)
    assert image.shape == (3, size, size)
    assert torch.equal(features(made.model, image, 12), features(again.model, image, 12))
    if name == "resnet":  # whose attention pool open_clip cannot adapt either
        with pytest.raises(Refused, match=r"size mismatch for visual\.attnpool\.positional_embedding"):
            make(name, path, image_size=2 * size)
        return
    other = make(name, path, image_size=2 * size, context_length=6, seed=2)
    assert (other.image_size, other.context_length) == ((2 * size, 2 * size), 6)
    assert features(other.model, other.preprocess_val(PICTURE), 6).isfinite().all()


@pytest.mark.parametrize("name", ["vit", "own-text", "resnet", "timm"])
def test_weights_of_open_clip_load_as_open_clip_loads_them(
    name: str, registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the sizes of the configuration, and at forced ones: position tables are resized in the same way."""
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, name, CONFIGS[name])
    theirs = open_clip.create_model(name)
    path = tmp_path / "weights.pt"
    torch.save({f"module.{key}": value for key, value in theirs.state_dict().items()}, path)
    assert same(theirs, make(name, path).model)
    force = {"image_size": 32 if name == "resnet" else 64, "context_length": 12}
    options = {f"force_{key}": value for key, value in force.items()}
    assert same(open_clip.create_model(name, pretrained=str(path), **options), make(name, path, **force).model)


def test_safetensors_are_taken_too(tmp_path: Path) -> None:
    from safetensors.torch import save_model

    made = make(seed=1)
    save_model(made.model, str(tmp_path / "weights.safetensors"))
    assert same(made.model, make(weights=tmp_path / "weights.safetensors", seed=2).model)


def test_what_the_weights_were_trained_with_is_kept(
    registry: None, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preprocessing and the activation of a tag, on the way to a fine-tuned checkpoint and back."""
    spec = TrainSpec(model="ViT-B-32", seed=1)
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", {"ViT-B-32": CONFIGS["vit"]})
    model = make(seed=9).model
    weights = cached(empty_cache, "timm/vit_base_patch32_clip_224.openai") / "open_clip_pytorch_model.bin"
    torch.save(model.state_dict(), weights)
    published = {**open_clip.get_pretrained_cfg("ViT-B-32", "openai"), "mean": (0.1, 0.2, 0.3), "resize_mode": "squash"}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED["ViT-B-32"], "openai", published)
    made = create(spec, weights="openai")
    assert made.notes[0].endswith("the model is built as open_clip's ViT-B-32-quickgelu")
    assert {type(module).__name__ for module in made.model.modules()} >= {"QuickGELU"}
    assert made.config["preprocess_cfg"]["mean"] == [0.1, 0.2, 0.3]
    again = create(spec, weights=str(saved(made, tmp_path)))
    image, changed = made.preprocess_val(PICTURE), again.preprocess_val(PICTURE)
    assert torch.equal(image, changed)
    assert torch.equal(features(made.model, image, 8), features(again.model, image, 8))
    assert not torch.equal(features(made.model, image, 8), features(model, image, 8))


def test_a_file_from_elsewhere_gets_the_preprocessing_all_published_weights_agree_on() -> None:
    assert clip_files.agreed_preprocessing("ViT-B-16-SigLIP")["mean"] == (0.5, 0.5, 0.5)
    assert clip_files.agreed_preprocessing("ViT-B-32")["resize_mode"] == "shortest"
    assert clip_files.agreed_preprocessing("digits-clip") == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"visual.proj": torch.zeros(1)}, "does not fit vit: Missing key"),
        ({"epoch": 1}, "holds no weights"),
        ([1], "holds no weights"),
        ({"state_dict": {}}, "holds no weights"),
        ({1: torch.zeros(1)}, "holds no weights"),
        (b"no such thing", "can run any code|can be read"),
        (b"", "can be read"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_differs(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(Refused, match=message) as caught:
        make(weights=path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_safetensors_without_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "weights.safetensors"
    save_file({}, path)
    with pytest.raises(Refused, match="holds no weights: neither tensors by their names"):
        make(weights=path)
    for content in (b"", b"\x02\0\0\0\0\0\0", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]"):
        path.write_bytes(content)
        with pytest.raises(Refused, match="holds no weights that can be read"):
            make(weights=path)


@pytest.mark.parametrize("config", [[1], {"model_cfg": []}, {"model_cfg": {"vision_cfg": 1, "text_cfg": "x"}}])
def test_a_damaged_configuration_beside_the_weights_counts_for_nothing(tmp_path: Path, config: Any) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": {"visual.proj": torch.zeros(1)}, "vitals": {"config": config}}, path)
    stored = clip_files.peek(path)
    assert (stored.model_cfg.keys() <= {"vision_cfg", "text_cfg"}, stored.image_size, stored.context_length) == (
        True,
        None,
        None,
    )


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    path = saved(make(), tmp_path, ours=False)
    wider = {"wider": {**CONFIGS["vit"], "vision_cfg": {**VIT, "width": 24}}}
    with pytest.raises(Refused, match=r"epoch_1.pt does not fit wider: size mismatch for visual.* and \d+ more"):
        create(TrainSpec(model="config:wider", configs=wider), weights=str(path))


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": make().model.state_dict(), "more": Bomb(tmp_path / "sprung")}, tmp_path / "bomb.pt")
    with pytest.raises(Refused, match="can run any code"):
        make(weights=tmp_path / "bomb.pt")
    assert not (tmp_path / "sprung").exists()


def test_no_tag_and_no_file(empty_cache: Path) -> None:
    with pytest.raises(Refused, match=r"'nowhere.pt' is neither .* of ViT-B-32; its tags are: openai, "):
        create(TrainSpec(model="ViT-B-32"), weights="nowhere.pt")
    with pytest.raises(Refused, match="its tags are: none"):
        create(TrainSpec(), weights="openai")
