"""Preparing a model for training: locked towers, patch dropout, checkpointing, memory format, batch norms."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from engine.models.batch_norm import synchronise
from engine.models.clip.weights import arrange
from engine.specs import Refused
from tests.support.clip_models import CONFIGS, TEXT, make, same, saved, train_spec, trained


@pytest.mark.parametrize("name", ["vit", "own-text", "timm", "coca"])
def test_image_tower_is_locked_except_its_last_groups(name: str) -> None:
    locked, unlocked = make(name), make(name)
    notes = arrange(locked.model, train_spec(name, lock_image=True))
    arrange(unlocked.model, train_spec(name, lock_image=True, lock_image_unlocked_groups=2))
    assert {key for key in trained(locked.model.visual) if not key.startswith("head")} == set(), (
        "only timm's projection is trained"
    )
    assert 0 < len(trained(unlocked.model.visual)) < len(list(unlocked.model.visual.parameters()))
    assert trained(locked.model) >= {"logit_scale"}
    total = sum(weight.numel() for weight in locked.model.parameters())
    assert notes[-1].endswith(f"of {total:,} parameters are trained, the others are locked")


def test_resnet_is_locked_as_a_whole_with_its_statistics(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"except its last 1 group \(.*\): lock it as a whole"):
        arrange(make("resnet").model, train_spec("resnet", lock_image=True, lock_image_unlocked_groups=1))
    built = make("resnet")
    arrange(built.model, train_spec("resnet", lock_image=True, lock_image_freeze_bn_stats=True))
    before = built.model.visual.bn1.running_mean.clone()
    built.model.train()(torch.rand(2, 3, 32, 32), torch.ones(2, 8, dtype=torch.long))
    assert torch.equal(built.model.visual.bn1.running_mean, before)
    assert trained(built.model.visual) == set()
    path = saved(built, tmp_path)  # without num_batches_tracked
    reloaded = make("resnet", path)
    assert torch.equal(reloaded.model.visual.layer1[0].conv1.weight, built.model.visual.layer1[0].conv1.weight)


@pytest.mark.parametrize("name", ["vit", "own-text", "coca"])
def test_text_tower_is_locked_except_its_last_layers_and_norms(name: str) -> None:
    def trainable(**fields: Any) -> set[str]:
        built = make(name)
        arrange(built.model, train_spec(name, lock_text=True, **fields))
        text = {key.removeprefix("text.") for key in trained(built.model)}
        return {key for key in text if not key.startswith(("visual", "logit", "text_decoder"))}

    assert trainable(lock_text_freeze_layer_norm=True) == set()
    norms = trainable()
    assert {key.rsplit(".", 1)[0].rsplit(".", 1)[-1] for key in norms} == {"ln_1", "ln_2", "ln_final"}
    last = trainable(lock_text_unlocked_layers=2, lock_text_freeze_layer_norm=True)
    assert "transformer.resblocks.2.mlp.c_fc.weight" in last
    assert not any(key.startswith(("transformer.resblocks.0", "transformer.resblocks.1", "token")) for key in last)


@pytest.mark.parametrize("name", ["vit", "own-text"])
@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"lock_image": True, "lock_image_unlocked_groups": 99}, "99 unlocked groups are the whole image tower"),
        ({"lock_text": True, "lock_text_unlocked_layers": 99}, "99 unlocked layers are the whole text tower"),
    ],
)
def test_lock_that_locks_nothing_is_refused(name: str, fields: dict[str, Any], refusal: str) -> None:
    with pytest.raises(Refused, match=refusal):
        arrange(make(name).model, train_spec(name, **fields))


@pytest.mark.parametrize("name", ["vit", "own-text", "timm", "coca"])
def test_checkpointed_activations_give_the_same_gradients(name: str) -> None:
    gradients = []
    for checkpointed in (False, True):
        built = make(name, seed=1)
        arrange(built.model, train_spec(name, grad_checkpointing=checkpointed, channels_last=checkpointed))
        size = built.image_size[0]
        torch.manual_seed(0)
        images = torch.rand(2, 3, size, size, dtype=torch.float64)  # single precision rounds as the CPU's kernels do
        out = built.model.double().train()(images, torch.arange(16).reshape(2, 8))
        (out["image_features"][:, 0].sum() + out["text_features"][:, 0].sum()).backward()
        gradients.append(
            {key: weight.grad for key, weight in built.model.named_parameters() if weight.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][key], rtol=1e-9, atol=1e-12), key


def test_patch_dropout_applies_only_in_training() -> None:
    built = make(patch_dropout=0.5)
    lengths: list[int] = []
    built.model.visual.transformer.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    image = torch.rand(1, 3, 16, 16)
    built.model.train().encode_image(image)
    built.model.eval().encode_image(image)
    assert lengths == [1 + 8, 1 + 16]
    with pytest.raises(Refused, match="no patches"):
        make("resnet", patch_dropout=0.5)
    with pytest.raises(Refused, match="patch_drop_rate"):
        make("convnet", patch_dropout=0.5)


def test_resnet_that_cannot_checkpoint_has_a_note() -> None:
    built = make("resnet")
    notes = arrange(built.model, train_spec("resnet", grad_checkpointing=True))
    assert "cannot checkpoint" in notes[-1]


def test_channels_last_sets_the_memory_format_of_convolutions() -> None:
    built = make("resnet")
    arrange(built.model, train_spec("resnet", channels_last=True))
    assert built.model.visual.layer1[0].conv2.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["resnet", "norm-act"])
def test_synchronised_batch_norms_equal_plain_ones_in_one_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SyncBatchNorm synchronises on accelerators only. A CPU can only check its results in one process."""
    vision = {"timm_model_name": "test_efficientnet", "timm_pool": "avg", "timm_proj": "linear", "image_size": 64}
    monkeypatch.setitem(CONFIGS, "norm-act", {"embed_dim": 8, "vision_cfg": vision, "text_cfg": TEXT})
    plain, synchronised = make(name), make(name)
    arrange(synchronised.model, train_spec(name, use_bn_sync=True, nproc=2, device="cuda:0"))
    norms = [type(part) for part in synchronised.model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert all(issubclass(norm, nn.SyncBatchNorm) for norm in norms)
    images = torch.rand(4, 3, *plain.image_size, generator=torch.Generator().manual_seed(0))
    outputs = [built.model.train().encode_image(images) for built in (plain, synchronised)]
    torch.testing.assert_close(*outputs)
    assert same(plain.model, synchronised.model), "the running statistics are equal too"


@pytest.mark.parametrize("affine", [True, False])
def test_synchronised_norm_on_a_cpu_equals_batch_norm_in_one_process(tmp_path: Path, affine: bool) -> None:
    plain = nn.Sequential(nn.BatchNorm2d(3, affine=affine, dtype=torch.float64))
    joined = copy.deepcopy(plain)
    assert synchronise(joined, "cpu")
    images = 5 + 2 * torch.rand(4, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = [images.clone().requires_grad_() for _ in range(2)]
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/met", rank=0, world_size=1)
    try:
        outputs = [model(image) for model, image in zip((plain, joined), inputs, strict=True)]
        for output in outputs:
            (output**3).sum().backward()
        half = joined(images.bfloat16())
    finally:
        distributed.destroy_process_group()
    plain(images.bfloat16().double())
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*(image.grad for image in inputs))
    assert half.dtype == torch.bfloat16, "the output keeps the type of the input"
    torch.testing.assert_close(dict(plain.named_buffers()), dict(joined.named_buffers()), rtol=1e-6, atol=0)
    torch.testing.assert_close(plain.eval()(images), joined.eval()(images), rtol=1e-6, atol=1e-6)


def test_synchronising_needs_batch_norms_and_processes() -> None:
    with pytest.raises(Refused, match="config:vit has no trainable batch norm"):
        arrange(make("vit").model, train_spec("vit", use_bn_sync=True, nproc=2, device="cuda:0"))
    with pytest.raises(ValueError, match="set nproc"):
        train_spec("resnet", use_bn_sync=True)
