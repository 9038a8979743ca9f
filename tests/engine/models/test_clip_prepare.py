"""What a training asks of a model: locked towers, fewer patches and activations, another order in memory."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from engine.models.batch_norm import synchronise
from engine.models.clip_weights import arrange
from engine.specs import Refused
from tests.support.clip_models import CONFIGS, TEXT, make, same, saved, train_spec, trained


@pytest.mark.parametrize("name", ["vit", "own-text", "timm", "coca"])
def test_the_image_tower_is_locked_but_for_its_last_groups(name: str) -> None:
    whole, some = make(name), make(name)
    notes = arrange(whole.model, train_spec(name, lock_image=True))
    arrange(some.model, train_spec(name, lock_image=True, lock_image_unlocked_groups=2))
    assert {key for key in trained(whole.model.visual) if not key.startswith("head")} == set(), "but timm's projection"
    assert 0 < len(trained(some.model.visual)) < len(list(some.model.visual.parameters()))
    assert trained(whole.model) >= {"logit_scale"}
    every = sum(weight.numel() for weight in whole.model.parameters())
    assert notes[-1].endswith(f"of {every:,} parameters are trained, the others are locked")


def test_a_resnet_is_locked_as_a_whole_with_its_statistics(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="lock it as a whole"):
        arrange(make("resnet").model, train_spec("resnet", lock_image=True, lock_image_unlocked_groups=1))
    made = make("resnet")
    arrange(made.model, train_spec("resnet", lock_image=True, lock_image_freeze_bn_stats=True))
    before = made.model.visual.bn1.running_mean.clone()
    made.model.train()(torch.rand(2, 3, 32, 32), torch.ones(2, 8, dtype=torch.long))
    assert torch.equal(made.model.visual.bn1.running_mean, before)
    assert trained(made.model.visual) == set()
    path = saved(made, tmp_path)  # without num_batches_tracked
    again = make("resnet", path)
    assert torch.equal(again.model.visual.layer1[0].conv1.weight, made.model.visual.layer1[0].conv1.weight)


@pytest.mark.parametrize("name", ["vit", "own-text", "coca"])
def test_the_text_tower_is_locked_but_for_its_last_layers_and_norms(name: str) -> None:
    def left(**fields: Any) -> set[str]:
        made = make(name)
        arrange(made.model, train_spec(name, lock_text=True, **fields))
        text = {key.removeprefix("text.") for key in trained(made.model)}
        return {key for key in text if not key.startswith(("visual", "logit", "text_decoder"))}

    assert left(lock_text_freeze_layer_norm=True) == set()
    norms = left()
    assert {key.rsplit(".", 1)[0].rsplit(".", 1)[-1] for key in norms} == {"ln_1", "ln_2", "ln_final"}
    last = left(lock_text_unlocked_layers=2, lock_text_freeze_layer_norm=True)
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
def test_a_lock_that_locks_nothing_is_refused(name: str, fields: dict[str, Any], refusal: str) -> None:
    with pytest.raises(Refused, match=refusal):
        arrange(make(name).model, train_spec(name, **fields))


@pytest.mark.parametrize("name", ["vit", "own-text", "timm", "coca"])
def test_checkpointed_activations_give_the_same_gradients(name: str) -> None:
    gradients = []
    for checkpointed in (False, True):
        made = make(name, seed=1)
        arrange(made.model, train_spec(name, grad_checkpointing=checkpointed, channels_last=checkpointed))
        size = made.image_size[0]
        torch.manual_seed(0)
        images = torch.rand(2, 3, size, size, dtype=torch.float64)  # single precision rounds as the CPU's kernels do
        out = made.model.double().train()(images, torch.arange(16).reshape(2, 8))
        (out["image_features"][:, 0].sum() + out["text_features"][:, 0].sum()).backward()
        gradients.append({key: weight.grad for key, weight in made.model.named_parameters() if weight.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][key], rtol=1e-9, atol=1e-12), key


def test_patches_are_left_out_in_training_alone() -> None:
    made = make(patch_dropout=0.5)
    seen: list[int] = []
    made.model.visual.transformer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    image = torch.rand(1, 3, 16, 16)
    made.model.train().encode_image(image)
    made.model.eval().encode_image(image)
    assert seen == [1 + 8, 1 + 16]
    with pytest.raises(Refused, match="no patches"):
        make("resnet", patch_dropout=0.5)
    with pytest.raises(Refused, match="patch_drop_rate"):
        make("convnet", patch_dropout=0.5)


def test_a_resnet_says_that_it_keeps_its_activations() -> None:
    made = make("resnet")
    notes = arrange(made.model, train_spec("resnet", grad_checkpointing=True))
    assert "cannot checkpoint" in notes[-1]


def test_channels_last_is_how_convolutions_lie_in_memory() -> None:
    made = make("resnet")
    arrange(made.model, train_spec("resnet", channels_last=True))
    assert made.model.visual.layer1[0].conv2.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["resnet", "norm-act"])
def test_synchronised_batch_norms_compute_as_before_in_one_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SyncBatchNorm joins processes on accelerators only, so a CPU can only check what it was converted from."""
    vision = {"timm_model_name": "test_efficientnet", "timm_pool": "avg", "timm_proj": "linear", "image_size": 64}
    monkeypatch.setitem(CONFIGS, "norm-act", {"embed_dim": 8, "vision_cfg": vision, "text_cfg": TEXT})
    plain, synchronised = make(name), make(name)
    arrange(synchronised.model, train_spec(name, use_bn_sync=True, nproc=2, device="cuda:0"))
    norms = [type(part) for part in synchronised.model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert all(issubclass(norm, nn.SyncBatchNorm) for norm in norms)
    images = torch.rand(4, 3, *plain.image_size, generator=torch.Generator().manual_seed(0))
    outputs = [made.model.train().encode_image(images) for made in (plain, synchronised)]
    torch.testing.assert_close(*outputs)
    assert same(plain.model, synchronised.model), "running statistics too"


def test_a_synchronised_norm_on_a_cpu_is_batch_norm_in_a_group_of_one(tmp_path: Path) -> None:
    plain = nn.Sequential(nn.BatchNorm2d(3, dtype=torch.float64))
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
    assert half.dtype == torch.bfloat16, "as torch's own, and its statistics are of float32"
    torch.testing.assert_close(dict(plain.named_buffers()), dict(joined.named_buffers()), rtol=1e-6, atol=0)
    torch.testing.assert_close(plain.eval()(images), joined.eval()(images), rtol=1e-6, atol=1e-6)


def test_synchronising_needs_batch_norms_and_processes() -> None:
    with pytest.raises(Refused, match="config:vit has no trainable batch norm"):
        arrange(make("vit").model, train_spec("vit", use_bn_sync=True, nproc=2, device="cuda:0"))
    with pytest.raises(ValueError, match="set nproc"):
        train_spec("resnet", use_bn_sync=True)
