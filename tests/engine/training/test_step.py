"""Training steps against those of open_clip, and against a single loss over all batches."""

import copy
import math
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import open_clip
import pytest
import torch
from open_clip_train.train import train_one_epoch
from torch import Tensor, nn
from torch.nn import functional

from engine.specs.train import TrainSpec
from engine.training import objectives, optimizers
from engine.training.step import StepResult, train_step
from tests.support.step import VISION, Batch, batches, clip, coca

RESNET = {"layers": (1, 1, 1, 1), "width": 8, "image_size": 32, "head_width": 64}


def merged(batch_list: list[Batch]) -> list[Batch]:
    return [(torch.cat([images for images, _ in batch_list]), torch.cat([tokens for _, tokens in batch_list]))]


def in_double_precision(batch_list: list[Batch]) -> list[Batch]:
    return [(images.double(), tokens) for images, tokens in batch_list]


def zero_rate_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def step(model: nn.Module, batch_list: list[Batch], spec: TrainSpec, **more: Any) -> StepResult:
    objective = more.pop("objective", None) or objectives.create(spec, model)
    optimizer = more.pop("optimizer", None) or zero_rate_optimizer(model)
    return train_step(model, batch_list, objective, optimizer, **{"autocast": nullcontext, **more})


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def check_close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-5 * float(wanted[name].abs().max()) + 1e-8)


class Loader(list[Batch]):
    """A data loader with the attributes that open_clip's training reads."""

    @property
    def num_batches(self) -> int:
        return len(self)

    @property
    def num_samples(self) -> int:
        return sum(len(images) for images, _ in self)


def train_with_open_clip(
    model: nn.Module, batch_list: list[Batch], optimizer: torch.optim.Optimizer, clip_norm: float | None
) -> None:
    args = Namespace(
        device="cpu",
        precision="fp32",
        distill=False,
        accum_freq=1,
        skip_scheduler=True,
        grad_clip_norm=clip_norm,
        horovod=False,
        log_every_n_steps=100,
        rank=0,
        local_rank=0,
        log_local=False,
        batch_size=len(batch_list[0][0]),
        world_size=1,
        wandb=False,
    )
    data = {"train": Namespace(dataloader=Loader(batch_list), set_epoch=lambda epoch: None)}
    train_one_epoch(model, data, open_clip.ClipLoss(), 0, optimizer, None, None, None, args)


def open_clip_adamw(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    def spared(name: str, parameter: Tensor) -> bool:
        return parameter.ndim < 2 or "bn" in name or "ln" in name or "bias" in name or "logit_scale" in name

    named = list(model.named_parameters())
    groups = [
        {"params": [parameter for name, parameter in named if spared(name, parameter)], "weight_decay": 0.0},
        {"params": [parameter for name, parameter in named if not spared(name, parameter)], "weight_decay": 0.2},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), eps=1e-6)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_steps_equal_those_of_open_clip_training(clip_norm: float | None) -> None:
    model = clip().double()  # AdamW makes full steps even from rounding errors
    reference, batch_list = copy.deepcopy(model), in_double_precision(batches(4))
    spec = TrainSpec(lr=0.01)
    train_with_open_clip(reference, batch_list, open_clip_adamw(reference, 0.01), clip_norm)
    objective, optimizer = objectives.create(spec, model), optimizers.create(model, spec)
    for batch in batch_list:
        train_step(model, [batch], objective, optimizer, autocast=nullcontext, clip_norm=clip_norm)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, reference.state_dict()[name], msg=name)


@pytest.mark.parametrize("loss", ["clip", "siglip", "distill"])
def test_accumulated_batches_equal_one_large_batch(loss: Any) -> None:
    spec = TrainSpec(loss=loss, distill_model="RN50")
    model = clip(init_logit_bias=-10 if loss == "siglip" else None)
    objective = objectives.create(spec, model, teacher=clip(seed=1).eval())
    batch_list = batches(3)
    whole = step(model, merged(batch_list), spec, objective=objective)
    wanted = gradients(model)
    found = step(model, batch_list, spec, objective=objective)
    check_close(gradients(model), wanted)
    torch.testing.assert_close(found.losses, whole.losses, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.grad_norm, whole.grad_norm, rtol=1e-5, atol=0)
    assert found.logit_scale == whole.logit_scale == pytest.approx(1 / 0.07, rel=1e-5)


def test_open_clip_optimizer_continues_from_the_state_of_ours() -> None:
    model, spec, batch_list = clip().double(), TrainSpec(lr=0.01), in_double_precision(batches(2))
    objective, optimizer = objectives.create(spec, model), optimizers.create(model, spec)
    train_step(model, batch_list[:1], objective, optimizer, autocast=nullcontext)
    reference = copy.deepcopy(model)
    continued = open_clip_adamw(reference, 0.5)
    continued.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train_with_open_clip(reference, batch_list[1:], continued, None)
    train_step(model, batch_list[1:], objective, optimizer, autocast=nullcontext)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, reference.state_dict()[name], msg=name)


def one_graph_gradients(
    model: nn.Module, batch_list: list[Batch], autocast: Any = nullcontext, seeds: Sequence[int] = (0, 0, 0)
) -> dict[str, Tensor]:
    """Return gradients of the loss over all batches, whose features are computed per batch in one graph."""
    model.zero_grad()
    parts = []
    with autocast():
        for seed, batch in zip(seeds, batch_list, strict=False):
            torch.manual_seed(seed)
            parts.append(model(*batch))
        images, texts = (torch.cat([part[f"{kind}_features"] for part in parts]) for kind in ("image", "text"))
        logits = parts[0]["logit_scale"] * images @ texts.T
        targets = torch.arange(len(logits))
        loss = (functional.cross_entropy(logits, targets) + functional.cross_entropy(logits.T, targets)) / 2
    loss.backward()
    return gradients(model)


def test_both_passes_of_a_batch_drop_the_same_patches() -> None:
    model, batch_list = clip(vision=VISION | {"patch_dropout": 0.5}), batches(3)
    torch.manual_seed(5)
    wanted = one_graph_gradients(model, batch_list, seeds=torch.randint(2**63 - 1, (3,)).tolist())
    torch.manual_seed(5)
    step(model, batch_list, TrainSpec())
    check_close(gradients(model), wanted)
    torch.manual_seed(6)
    step(model, batch_list, TrainSpec())
    assert not torch.allclose(model.visual.conv1.weight.grad, wanted["visual.conv1.weight"], rtol=1e-3)


def test_accumulation_under_autocast_has_gradients() -> None:
    """Autocast caches casts of weights. Casts made without gradients must not be used in the second pass."""

    def half() -> Any:
        return torch.autocast("cpu", torch.bfloat16)

    model, batch_list = clip(), batches(2)
    exact, wanted = one_graph_gradients(model, batch_list), one_graph_gradients(model, batch_list, half)
    step(model, batch_list, TrainSpec(), autocast=half)
    found = gradients(model)
    assert found.keys() == wanted.keys()
    for name, value in found.items():  # CPUs round to bfloat16 at different places
        error, of_one_graph = (float((gradient - exact[name]).norm()) for gradient in (value, wanted[name]))
        assert error <= 1.5 * of_one_graph, name


def test_running_statistics_are_updated_once_per_batch() -> None:
    model = clip(vision=RESNET)
    once, batch_list = copy.deepcopy(model), batches(2, image_size=32)
    for batch in batch_list:
        once(*batch)
    step(model, batch_list, TrainSpec())
    for name, value in model.named_buffers():
        torch.testing.assert_close(value, dict(once.named_buffers())[name], msg=name)


def test_gradient_norm_is_always_measured_and_clipped_on_request() -> None:
    model, batch_list = clip(), batches(1)
    norm = step(model, batch_list, TrainSpec()).grad_norm.item()
    assert norm == pytest.approx(math.sqrt(sum(float((parameter**2).sum()) for parameter in gradients(model).values())))
    assert step(model, batch_list, TrainSpec(), clip_norm=norm / 4).grad_norm.item() == pytest.approx(norm)
    assert math.sqrt(sum(float((parameter**2).sum()) for parameter in gradients(model).values())) == pytest.approx(
        norm / 4
    )


@pytest.mark.parametrize(("scale", "clamped"), [(9.0, math.log(100)), (-1.0, 0.0), (3.0, 3.0)])
def test_logit_scale_stays_between_1_and_100(scale: float, clamped: float) -> None:
    model = clip()
    model.logit_scale.data.fill_(scale)
    result = step(model, batches(1), TrainSpec())
    assert model.logit_scale.item() == pytest.approx(clamped)
    assert result.logit_scale.item() == pytest.approx(math.exp(scale))  # what the loss was computed with


def test_scaled_loss_takes_the_same_step() -> None:
    scaled, plain = clip(), clip()
    for model, scaler in ((scaled, torch.amp.GradScaler("cpu")), (plain, None)):
        optimizer = optimizers.create(model, TrainSpec(lr=0.01))
        result = step(model, batches(2), TrainSpec(), optimizer=optimizer, scaler=scaler, clip_norm=0.1)
        assert result.grad_norm > 0.1
    for name, value in scaled.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)


def test_overflow_changes_only_the_scale() -> None:
    model, scaler = clip(), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    before = copy.deepcopy(model.state_dict())
    optimizer = optimizers.create(model, TrainSpec(lr=0.01))
    result = step(model, batches(1), TrainSpec(), optimizer=optimizer, scaler=scaler)
    assert not math.isfinite(result.grad_norm.item())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert scaler.get_scale() == 2.0**126


def test_coca_model_learns_a_batch() -> None:
    model = coca()
    objective, optimizer = (
        objectives.create(TrainSpec(loss="coca"), model),
        optimizers.create(model, TrainSpec(lr=0.01)),
    )
    losses = [
        train_step(model, batches(1), objective, optimizer, autocast=nullcontext).losses["loss"].item()
        for _ in range(15)
    ]
    assert losses[-1] < 0.5 * losses[0]
