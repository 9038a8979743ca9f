"""Files of weights: ours and open_clip's load as in open_clip, and those that do not fit are refused."""

import os
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch

from engine.models.clip import files
from engine.models.clip.weights import create
from engine.specs import Refused
from engine.specs.train import TrainSpec
from tests.support.clip_models import CONFIGS, PICTURE, VIT, cached, features, make, same, saved


@pytest.mark.parametrize("name", CONFIGS)
def test_checkpoint_loads_at_its_sizes_and_at_others(name: str, tmp_path: Path) -> None:
    size = {"timm": 96, "convnet": 96}.get(name, 64)
    built = make(name, image_size=size, context_length=12, seed=1)
    assert (built.image_size, built.context_length) == ((size, size), 12)
    path = saved(built, tmp_path)
    reloaded = make(name, path, seed=2)
    assert same(built.model, reloaded.model)
    assert (reloaded.image_size, reloaded.context_length, reloaded.notes) == ((size, size), 12, [])
    image = built.preprocess_val(PICTURE)
    assert image.shape == (3, size, size)
    assert torch.equal(features(built.model, image, 12), features(reloaded.model, image, 12))
    if name == "resnet":  # open_clip cannot adapt its attention pool either
        with pytest.raises(Refused, match=r"size mismatch for visual\.attnpool\.positional_embedding"):
            make(name, path, image_size=2 * size)
        return
    resized = make(name, path, image_size=2 * size, context_length=6, seed=2)
    assert (resized.image_size, resized.context_length) == ((2 * size, 2 * size), 6)
    assert features(resized.model, resized.preprocess_val(PICTURE), 6).isfinite().all()


@pytest.mark.parametrize("name", ["vit", "own-text", "resnet", "timm"])
def test_weights_of_open_clip_load_as_in_open_clip(
    name: str, registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the sizes of the configuration and forced ones, for which position tables are resized."""
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, name, CONFIGS[name])
    reference = open_clip.create_model(name)
    path = tmp_path / "weights.pt"
    torch.save({f"module.{key}": value for key, value in reference.state_dict().items()}, path)
    assert same(reference, make(name, path).model)
    force = {"image_size": 32 if name == "resnet" else 64, "context_length": 12}
    options = {f"force_{key}": value for key, value in force.items()}
    assert same(open_clip.create_model(name, pretrained=str(path), **options), make(name, path, **force).model)


def test_safetensors_are_loaded(tmp_path: Path) -> None:
    from safetensors.torch import save_model

    built = make(seed=1)
    save_model(built.model, str(tmp_path / "weights.safetensors"))
    assert same(built.model, make(weights=tmp_path / "weights.safetensors", seed=2).model)


def test_preprocessing_and_activation_of_a_tag_are_stored(
    registry: None, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that both stay the same when a fine-tuned checkpoint is written and loaded."""
    spec = TrainSpec(model="ViT-B-32", seed=1)
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", {"ViT-B-32": CONFIGS["vit"]})
    model = make(seed=9).model
    weights = cached(empty_cache, "timm/vit_base_patch32_clip_224.openai") / "open_clip_pytorch_model.bin"
    torch.save(model.state_dict(), weights)
    published = {**open_clip.get_pretrained_cfg("ViT-B-32", "openai"), "mean": (0.1, 0.2, 0.3), "resize_mode": "squash"}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED["ViT-B-32"], "openai", published)
    built = create(spec, weights="openai")
    assert built.notes[0] == "the weights were trained with QuickGELU, so the model is built with it"
    assert {type(module).__name__ for module in built.model.modules()} >= {"QuickGELU"}
    assert built.config["preprocess_cfg"]["mean"] == [0.1, 0.2, 0.3]
    reloaded = create(spec, weights=str(saved(built, tmp_path)))
    image, changed = built.preprocess_val(PICTURE), reloaded.preprocess_val(PICTURE)
    assert torch.equal(image, changed)
    assert torch.equal(features(built.model, image, 8), features(reloaded.model, image, 8))
    assert not torch.equal(features(built.model, image, 8), features(model, image, 8))


@pytest.mark.parametrize("quick", [True, False])
def test_model_has_the_activation_of_its_checkpoint(tmp_path: Path, quick: bool) -> None:
    configs = {"mine": {**CONFIGS["vit"], "quick_gelu": quick}}
    built = create(TrainSpec(model="config:mine", configs=configs), weights="")
    configs["mine"]["quick_gelu"] = not quick
    reloaded = create(TrainSpec(model="config:mine", configs=configs), weights=str(saved(built, tmp_path)))
    image = built.preprocess_val(PICTURE)
    assert torch.equal(features(built.model, image, 8), features(reloaded.model, image, 8))
    how = "with" if quick else "without"
    assert reloaded.notes == [f"the weights were trained {how} QuickGELU, so the model is built {how} it"]
    assert reloaded.config["model_cfg"]["quick_gelu"] == quick


def test_agreed_preprocessing_is_common_to_all_published_weights() -> None:
    assert files.agreed_preprocessing("ViT-B-16-SigLIP")["mean"] == (0.5, 0.5, 0.5)
    assert files.agreed_preprocessing("ViT-B-32")["resize_mode"] == "shortest"
    assert files.agreed_preprocessing("digits-clip") == {}


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
        (b".hidden", "can be read"),  # IndexError of the unpickler
        (b"GIF89a", "can be read"),  # struct.error
    ],
)
def test_weights_that_do_not_fit_are_refused_with_the_reason(tmp_path: Path, content: Any, message: str) -> None:
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
def test_damaged_configuration_in_a_weights_file_is_ignored(tmp_path: Path, config: Any) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": {"visual.proj": torch.zeros(1)}, "vitals": {"config": config}}, path)
    stored = files.peek(path)
    assert (stored.model_cfg.keys() <= {"vision_cfg", "text_cfg"}, stored.image_size, stored.context_length) == (
        True,
        None,
        None,
    )


def test_weights_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    path = saved(make(), tmp_path, ours=False)
    wider = {"wider": {**CONFIGS["vit"], "vision_cfg": {**VIT, "width": 24}}}
    with pytest.raises(Refused, match=r"epoch_1.pt does not fit wider: size mismatch for visual.* and \d+ more"):
        create(TrainSpec(model="config:wider", configs=wider), weights=str(path))


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickle_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": make().model.state_dict(), "more": Bomb(tmp_path / "sprung")}, tmp_path / "bomb.pt")
    with pytest.raises(Refused, match="can run any code"):
        make(weights=tmp_path / "bomb.pt")
    assert not (tmp_path / "sprung").exists()


def test_weights_that_are_neither_tag_nor_file_are_refused(empty_cache: Path) -> None:
    with pytest.raises(Refused, match=r"'nowhere.pt' is neither .* of ViT-B-32; its tags are: openai, "):
        create(TrainSpec(model="ViT-B-32"), weights="nowhere.pt")
    with pytest.raises(Refused, match="its tags are: none"):
        create(TrainSpec(), weights="openai")
