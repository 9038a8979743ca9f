"""Objectives against open_clip's losses; steps against open_clip's training and against one loss of everything."""

import copy
import math
from argparse import Namespace
from contextlib import nullcontext
from typing import Any

import open_clip
import pytest
import torch
from open_clip.loss import SigLipLoss
from open_clip_train.train import train_one_epoch
from torch import Tensor, nn
from torch.nn import functional

from engine.specs import Refused
from engine.specs.train import TrainSpec
from engine.training import objectives, optimizers
from engine.training.step import StepResult, train_step

VISION = {"image_size": 16, "patch_size": 4, "layers": 2, "width": 16, "head_width": 8}
TEXT = {"context_length": 8, "vocab_size": 32, "width": 16, "heads": 2, "layers": 1}
RESNET = {"layers": (1, 1, 1, 1), "width": 8, "image_size": 32, "head_width": 64}
Batch = tuple[Tensor, Tensor]


def clip(seed: int = 0, vision: dict[str, Any] | None = None, **more: Any) -> Any:
    torch.manual_seed(seed)
    return open_clip.CLIP(embed_dim=16, vision_cfg=vision or VISION, text_cfg=TEXT, output_dict=True, **more)


def coca() -> Any:
    torch.manual_seed(0)
    pooled = {"attentional_pool": True, "attn_pooler_queries": 4, "attn_pooler_heads": 2, "output_tokens": True}
    text = TEXT | {"embed_cls": True, "output_tokens": True}
    model = open_clip.CoCa(16, {**TEXT, "attn_pooler_heads": 2}, text, VISION | pooled)
    # open_clip leaves it as the memory that it finds
    nn.init.normal_(model.text_decoder.text_projection, std=0.25)
    return model


def batches(count: int, size: int = 6, image_size: int = 16) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, size, 3, image_size, image_size, generator=generator)
    return list(zip(images, torch.randint(1, 32, (count, size, 8), generator=generator), strict=True))


def together(some: list[Batch]) -> list[Batch]:
    return [(torch.cat([images for images, _ in some]), torch.cat([tokens for _, tokens in some]))]


def doubled(some: list[Batch]) -> list[Batch]:
    return [(images.double(), tokens) for images, tokens in some]


def outputs_like(model: nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        return dict(model(*batches(1)[0]))


def standing_still(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def step(model: nn.Module, some: list[Batch], spec: TrainSpec, **more: Any) -> StepResult:
    objective = more.pop("objective", None) or objectives.create(spec, model)
    optimizer = more.pop("optimizer", None) or standing_still(model)
    return train_step(model, some, objective, optimizer, **{"autocast": nullcontext, **more})


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-5 * float(wanted[name].abs().max()) + 1e-8)


# Objectives


@pytest.mark.parametrize("bias", [None, -10.0])
def test_clips_loss_is_open_clips(bias: float | None) -> None:
    model = clip(init_logit_bias=bias)
    outputs = outputs_like(model)
    found = objectives.create(TrainSpec(), model)(outputs)
    reference = open_clip.ClipLoss()(**outputs)
    assert found == {"contrastive_loss": reference, "loss": reference}
    cosines = outputs["logit_scale"] * outputs["image_features"] @ outputs["text_features"].T
    by_hand = -(cosines.log_softmax(0).diagonal() + cosines.log_softmax(1).diagonal()).mean() / 2
    torch.testing.assert_close(reference, by_hand)


def test_siglips_loss_is_open_clips() -> None:
    model = clip(init_logit_bias=-10)
    outputs = outputs_like(model)
    found = objectives.create(TrainSpec(loss="siglip"), model)(outputs)
    assert found["loss"] == found["contrastive_loss"] == SigLipLoss()(**outputs)


def test_cocas_losses_are_open_clips() -> None:
    model = coca()
    outputs = outputs_like(model)
    spec = TrainSpec(loss="coca", coca_caption_weight=3.0, coca_contrastive_weight=0.5)
    found = objectives.create(spec, model)(outputs)
    contrast, caption = open_clip.CoCaLoss(caption_loss_weight=3.0, clip_loss_weight=0.5)(**outputs)
    assert found == {"contrastive_loss": contrast, "caption_loss": caption, "loss": contrast + caption}


def test_distillation_is_open_clips() -> None:
    model, teacher = clip(), clip(seed=1, init_logit_bias=-10).eval()
    objective = objectives.create(TrainSpec(loss="distill", distill_model="RN50"), model, teacher=teacher)
    beside = objective.beside(*batches(1)[0])
    found = objective({**outputs_like(model), **beside})
    taught = {f"dist_{name}": value for name, value in outputs_like(teacher).items() if name != "logit_bias"}
    contrast, distilled = open_clip.DistillClipLoss()(**outputs_like(model), **taught)
    assert found == {"contrastive_loss": contrast, "distill_loss": distilled, "loss": contrast + distilled}
    assert not any(value.requires_grad for value in beside.values())


@pytest.mark.parametrize(
    ("loss", "model", "said"),
    [
        (
            "siglip",
            clip,
            "SigLIP's loss needs a logit bias, .* take .*, .* or one of 25 more, or a configuration with init_logit_",
        ),
        ("coca", clip, "is not a CoCa model and the loss is coca"),
        ("clip", coca, "is a CoCa model and the loss is clip"),
        ("distill", lambda: clip(init_logit_bias=-10), "has a logit bias, which the loss distill does not take"),
    ],
)
def test_a_loss_that_does_not_fit_the_model_is_refused(loss: Any, model: Any, said: str) -> None:
    with pytest.raises(Refused, match=said):
        objectives.create(TrainSpec(loss=loss, distill_model="RN50"), model())


def test_padding_is_no_part_of_a_captions_loss() -> None:
    logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [6, 5, 4, 3, 2]])
    total, count = objectives.caption_loss(logits, labels)
    chances = logits.softmax(dim=2)
    by_hand = [-math.log(chances[i, j, labels[i, j]]) for i in range(3) for j in range(5) if labels[i, j]]
    assert count == len(by_hand) == 9
    assert total == pytest.approx(sum(by_hand), rel=1e-5)


# Steps


class Loader(list[Batch]):
    """A loader as open_clip's training wants it."""

    @property
    def num_batches(self) -> int:
        return len(self)

    @property
    def num_samples(self) -> int:
        return sum(len(images) for images, _ in self)


def theirs(model: nn.Module, some: list[Batch], optimizer: torch.optim.Optimizer, clip_norm: float | None) -> None:
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
        batch_size=len(some[0][0]),
        world_size=1,
        wandb=False,
    )
    data = {"train": Namespace(dataloader=Loader(some), set_epoch=lambda epoch: None)}
    train_one_epoch(model, data, open_clip.ClipLoss(), 0, optimizer, None, None, None, args)


def their_adamw(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    def spared(name: str, each: Tensor) -> bool:
        return each.ndim < 2 or "bn" in name or "ln" in name or "bias" in name or "logit_scale" in name

    named = list(model.named_parameters())
    groups = [
        {"params": [each for name, each in named if spared(name, each)], "weight_decay": 0.0},
        {"params": [each for name, each in named if not spared(name, each)], "weight_decay": 0.2},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), eps=1e-6)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_steps_are_those_of_open_clips_training(clip_norm: float | None) -> None:
    model = clip().double()  # AdamW makes steps of gradients that are nothing but rounding
    reference, some = copy.deepcopy(model), doubled(batches(4))
    spec = TrainSpec(lr=0.01)
    theirs(reference, some, their_adamw(reference, 0.01), clip_norm)
    objective, optimizer = objectives.create(spec, model), optimizers.create(model, spec)
    for batch in some:
        train_step(model, [batch], objective, optimizer, autocast=nullcontext, clip_norm=clip_norm)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, reference.state_dict()[name], msg=name)


@pytest.mark.parametrize("loss", ["clip", "siglip", "distill"])
def test_accumulated_batches_are_one_batch(loss: Any) -> None:
    spec = TrainSpec(loss=loss, distill_model="RN50")
    model = clip(init_logit_bias=-10 if loss == "siglip" else None)
    objective = objectives.create(spec, model, teacher=clip(seed=1).eval())
    some = batches(3)
    whole = step(model, together(some), spec, objective=objective)
    wanted = gradients(model)
    found = step(model, some, spec, objective=objective)
    close(gradients(model), wanted)
    assert found.losses == pytest.approx(whole.losses, rel=1e-5)
    assert found.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    assert found.logit_scale == whole.logit_scale == pytest.approx(1 / 0.07, rel=1e-5)


def test_open_clips_optimizer_takes_up_the_state_of_ours() -> None:
    model, spec, some = clip().double(), TrainSpec(lr=0.01), doubled(batches(2))
    objective, optimizer = objectives.create(spec, model), optimizers.create(model, spec)
    train_step(model, some[:1], objective, optimizer, autocast=nullcontext)
    reference = copy.deepcopy(model)
    taken_up = their_adamw(reference, 0.5)
    taken_up.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    theirs(reference, some[1:], taken_up, None)
    train_step(model, some[1:], objective, optimizer, autocast=nullcontext)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, reference.state_dict()[name], msg=name)


def in_one_graph(model: nn.Module, some: list[Batch], autocast: Any = nullcontext) -> dict[str, Tensor]:
    """Gradients of all batches' loss, by features that are computed batch by batch and kept with their graphs."""
    model.zero_grad()
    with autocast():
        parts = [model(*batch) for batch in some]
        images, texts = (torch.cat([part[f"{kind}_features"] for part in parts]) for kind in ("image", "text"))
        logits = parts[0]["logit_scale"] * images @ texts.T
        own = torch.arange(len(logits))
        loss = (functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)) / 2
    loss.backward()
    return gradients(model)


def test_both_passes_of_a_batch_drop_the_same_patches() -> None:
    model, some = clip(vision=VISION | {"patch_dropout": 0.5}), batches(3)
    torch.manual_seed(5)
    wanted = in_one_graph(model, some)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    step(model, some, TrainSpec())
    close(gradients(model), wanted)
    assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(6)
    step(model, some, TrainSpec())
    assert not torch.allclose(model.visual.conv1.weight.grad, wanted["visual.conv1.weight"], rtol=1e-3)


def test_accumulation_under_autocast_has_gradients() -> None:
    """Autocast remembers its casts of weights, and those made without gradients must not serve the second pass."""

    def half() -> Any:
        return torch.autocast("cpu", torch.bfloat16)

    model, some = clip(), batches(2)
    wanted = in_one_graph(model, some, half)
    step(model, some, TrainSpec(), autocast=half)
    found = gradients(model)
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=0.05, atol=0.02 * float(wanted[name].abs().max()))


def test_running_statistics_see_each_batch_once() -> None:
    model = clip(vision=RESNET)
    once, some = copy.deepcopy(model), batches(2, image_size=32)
    for batch in some:
        once(*batch)
    step(model, some, TrainSpec())
    for name, value in model.named_buffers():
        torch.testing.assert_close(value, dict(once.named_buffers())[name], msg=name)


def test_gradients_are_measured_always_and_clipped_where_asked() -> None:
    model, some = clip(), batches(1)
    norm = step(model, some, TrainSpec()).grad_norm
    assert norm == pytest.approx(math.sqrt(sum(float((each**2).sum()) for each in gradients(model).values())))
    assert step(model, some, TrainSpec(), clip_norm=norm / 4).grad_norm == pytest.approx(norm)
    assert math.sqrt(sum(float((each**2).sum()) for each in gradients(model).values())) == pytest.approx(norm / 4)


@pytest.mark.parametrize(("scale", "clamped"), [(9.0, math.log(100)), (-1.0, 0.0), (3.0, 3.0)])
def test_the_logit_scale_stays_between_1_and_100(scale: float, clamped: float) -> None:
    model = clip()
    model.logit_scale.data.fill_(scale)
    result = step(model, batches(1), TrainSpec())
    assert model.logit_scale.item() == pytest.approx(clamped)
    assert result.logit_scale == pytest.approx(math.exp(scale))  # what the loss was computed with


def test_a_scaled_loss_takes_the_same_step() -> None:
    scaled, plain = clip(), clip()
    for model, scaler in ((scaled, torch.amp.GradScaler("cpu")), (plain, None)):
        optimizer = optimizers.create(model, TrainSpec(lr=0.01))
        result = step(model, batches(2), TrainSpec(), optimizer=optimizer, scaler=scaler, clip_norm=0.1)
        assert result.grad_norm > 0.1
    for name, value in scaled.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)


def test_an_overflow_changes_nothing_but_the_scale() -> None:
    model, scaler = clip(), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    before = copy.deepcopy(model.state_dict())
    optimizer = optimizers.create(model, TrainSpec(lr=0.01))
    result = step(model, batches(1), TrainSpec(), optimizer=optimizer, scaler=scaler)
    assert not math.isfinite(result.grad_norm)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert scaler.get_scale() == 2.0**126


def test_a_coca_model_learns_a_batch() -> None:
    model = coca()
    objective, optimizer = (
        objectives.create(TrainSpec(loss="coca"), model),
        optimizers.create(model, TrainSpec(lr=0.01)),
    )
    losses = [
        train_step(model, batches(1), objective, optimizer, autocast=nullcontext).losses["loss"] for _ in range(15)
    ]
    assert losses[-1] < 0.5 * losses[0]
