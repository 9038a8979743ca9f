"""Learning rates, optimizers and precisions against open_clip, or against its rules where it has no function."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from engine.measure import environment
from engine.specs import Refused
from engine.specs.fields.clip import warmup_steps
from engine.specs.schedule import Schedule
from engine.specs.train import TrainSpec
from engine.training import optimizers, precision
from engine.training.optimizers import learning_rate
from tests.support.step import VISION, clip

BASE, STEPS = 3e-4, 60


def clip_model(**vision: Any) -> Any:
    return clip(vision=VISION | vision)


@pytest.mark.parametrize(
    ("warmup", "steps", "expected"), [("7%", 100, 7), ("14%", 50, 7), ("0.1%", 1000, 1), ("7%", 101, 8), ("100%", 9, 8)]
)
def test_warmup_in_percent_is_exact(warmup: str, steps: int, expected: int) -> None:
    """7 / 100 * 100 is 7.000000000000001 in floating point, whose ceiling is 8."""
    assert warmup_steps(warmup, steps) == expected


def rates(warmup: int = 0, cooldown: int = 0, steps: int = STEPS, **fields: Any) -> list[float]:
    """Return the learning rate of each step."""
    plan = Schedule(2, 2, 1, 1, steps=steps, epochs=steps, warmup_steps=warmup, cooldown_steps=cooldown)
    rate = learning_rate(TrainSpec.model_validate({"lr": BASE, "epochs_cooldown": 1, **fields}), plan)
    return [rate(step) for step in range(steps)]


@pytest.mark.parametrize(
    ("kind", "warmup", "cooldown", "power", "end"),
    [
        *itertools.product(["cosine", "const"], [0, 1, 7, 59, 60], [0], [1.0], [0.0]),
        *itertools.product(["const-cooldown"], [0, 7, 50], [1, 20, 60], [1.0, 2.5], [0.0, 1e-6]),
    ],
)
def test_learning_rate_of_every_step_equals_a_formula(
    kind: str, warmup: int, cooldown: int, power: float, end: float
) -> None:
    def by_hand(step: int) -> float:
        if step < warmup:
            return BASE / warmup * (step + 1)
        if kind == "cosine":
            return BASE * math.cos(math.pi / 2 * (step - warmup) / (STEPS - warmup)) ** 2
        left = min(1.0, (STEPS - step) / cooldown) if kind == "const-cooldown" else 1.0
        return end + (BASE - end) * left**power

    found = rates(warmup, cooldown, lr_scheduler=kind, lr_cooldown_power=power, lr_cooldown_end=end)
    assert found == pytest.approx([by_hand(step) for step in range(STEPS)], rel=1e-12)


def groups_by_rule(model: nn.Module) -> tuple[set[str], set[str]]:
    """Return the names of parameters without and with weight decay, by open_clip's rule."""
    spared = {
        name
        for name, item in model.named_parameters()
        if item.dim() < 2 or "bn" in name or "ln" in name or "bias" in name or "logit_scale" in name
    }
    return spared, {name for name, _ in model.named_parameters()} - spared


@pytest.mark.parametrize("vision", [{}, {"layers": (1, 1, 1, 1), "width": 8, "image_size": 32, "head_width": 64}])
def test_adamw_has_the_parameter_groups_of_open_clip(vision: dict[str, Any]) -> None:
    model = clip_model(**vision)
    model.visual.requires_grad_(requires_grad=False)
    model.visual.get_parameter(next(name for name, _ in model.visual.named_parameters())).requires_grad_()
    names = {id(item): name for name, item in model.named_parameters() if item.requires_grad}
    optimizer = optimizers.create(model, TrainSpec(wd=0.3, lr=0.02))
    found = [{names[id(item)] for item in group["params"]} for group in optimizer.param_groups]
    spared, decayed = groups_by_rule(model)
    assert found == [spared & set(names.values()), decayed & set(names.values())]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0, 0.3]
    assert {group["lr"] for group in optimizer.param_groups} == {0.02}
    optimizers.assign(optimizer, 0.01, {})
    assert {group["lr"] for group in optimizer.param_groups} == {0.01}


def test_adamw_step_equals_the_formula_of_the_paper() -> None:
    """Loshchilov & Hutter (2019), by hand in float64."""
    torch.manual_seed(0)
    model, spec = clip_model().double(), TrainSpec(lr=0.01, wd=0.3)
    optimizer = optimizers.create(model, spec)
    weights = {name: item.detach().clone() for name, item in model.named_parameters()}
    first, second = ({name: torch.zeros_like(item) for name, item in weights.items()} for _ in range(2))
    for step in range(1, 4):
        for name, item in model.named_parameters():
            item.grad = torch.randn_like(item)
            first[name] = 0.9 * first[name] + 0.1 * item.grad
            second[name] = 0.98 * second[name] + 0.02 * item.grad**2
            decayed = weights[name] * (1 - 0.01 * (0.3 if name in groups_by_rule(model)[1] else 0))
            root = (second[name] / (1 - 0.98**step)).sqrt() + 1e-6
            weights[name] = decayed - 0.01 * first[name] / (1 - 0.9**step) / root
        optimizer.step()
    for name, item in model.named_parameters():
        torch.testing.assert_close(item.detach(), weights[name], msg=name)


@pytest.mark.parametrize(
    ("vision", "fields", "betas", "eps"),
    [
        ({}, {}, (0.9, 0.98), 1e-6),
        ({"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "token", "image_size": 32}, {}, (0.9, 0.98), 1e-6),
        ({"timm_model_name": "eva02_tiny_patch14_224", "timm_pool": "token", "image_size": 28}, {}, (0.9, 0.98), 1e-6),
        ({"timm_model_name": "resnet10t", "timm_pool": "avg", "timm_proj": "linear"}, {}, (0.9, 0.999), 1e-8),
        ({"layers": (1, 1, 1, 1), "width": 8, "image_size": 32, "head_width": 64}, {}, (0.9, 0.999), 1e-8),
        ({}, {"beta2": 0.95}, (0.9, 0.95), 1e-6),
        ({}, {"beta1": 0.0, "eps": 1e-7}, (0.0, 0.98), 1e-7),
    ],
)
def test_default_betas_and_eps_depend_on_the_image_tower(
    vision: dict[str, Any], fields: dict[str, Any], betas: tuple[float, float], eps: float
) -> None:
    optimizer = optimizers.create(clip_model(**vision), TrainSpec(**fields))
    assert (optimizer.defaults["betas"], optimizer.defaults["eps"]) == (betas, eps)


def test_timm_optimizers_use_the_given_settings() -> None:
    model = clip_model()
    lamb = optimizers.create(model, TrainSpec(opt="timm/lamb", lr=0.01, wd=0.05, beta1=0.8, beta2=0.9))
    assert type(lamb).__name__ == "Lamb"
    assert lamb.defaults["betas"] == (0.8, 0.9)
    assert {group["weight_decay"] for group in lamb.param_groups} == {0, 0.05}
    spared = {id(item) for group in lamb.param_groups if not group["weight_decay"] for item in group["params"]}
    assert id(model.positional_embedding) in spared  # as the model says in no_weight_decay
    sgd = optimizers.create(model, TrainSpec(opt="timm/sgd", momentum=0.7))
    assert {group["momentum"] for group in sgd.param_groups} == {0.7}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"opt": "timm/nonesuch"}, "timm/nonesuch cannot be made here .*; timm has .*adamw"),
        ({"opt": "timm/sgd", "eps": 1e-6, "beta1": 0.9, "beta2": 0.9}, "takes no betas and no eps"),
        ({"opt": "timm/adamw", "momentum": 0.9}, "takes no momentum"),
        ({"opt": "timm/adan", "beta1": 0.9, "beta2": 0.95}, "takes more than two betas: leave beta1 and beta2 out"),
        ({"opt": "timm/adahessian"}, "second derivatives"),
    ],
)
def test_impossible_optimizers_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        optimizers.create(clip_model(), TrainSpec(**fields))


@pytest.mark.parametrize("opt", ["adamw", "timm/lamb", "timm/lookahead_adamw"])
def test_each_tower_has_the_learning_rate_given_for_it(opt: str) -> None:
    """The reference has one optimizer for each tower instead of groups of parameters."""
    peaks = {"": 1e-3, "image": 4e-3, "text": 5e-4}
    spec = TrainSpec(opt=opt, lr=peaks[""], lr_image=peaks["image"], lr_text=peaks["text"])
    model = clip(init_logit_bias=-10.0).double()
    single = {tower: copy.deepcopy(model) for tower in peaks}
    optimizer = optimizers.create(model, spec)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    tower_optimizers = {
        tower: optimizers.create(single[tower], TrainSpec(opt=opt, lr=peak)) for tower, peak in peaks.items()
    }
    schedules = {tower: rates(2, steps=6, lr=peak) for tower, peak in peaks.items()}
    for step in range(6):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.full_like(parameter, (-1) ** step * (1 + len(name)))
            for copied in single.values():
                copied.get_parameter(name).grad = parameter.grad.clone()
        optimizers.assign(optimizer, schedules[""][step], spec.lr_scales)
        optimizer.step()
        for tower, other in tower_optimizers.items():
            optimizers.assign(other, schedules[tower][step], {})
            other.step()
    for name, parameter in model.named_parameters():
        tower = "image" if name.startswith("visual.") else "" if name.startswith("logit_") else "text"
        torch.testing.assert_close(parameter, single[tower].get_parameter(name), msg=name)


def test_learning_rate_of_a_locked_tower_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lr_image is .* and the image tower is locked"):
        TrainSpec(lr_image=1e-3, lock_image=True)
    assert TrainSpec(lr_image=1e-3, lock_image=True, lock_image_unlocked_groups=1).lr_scales == {"image": 1}


def test_model_with_every_parameter_locked_is_refused() -> None:
    with pytest.raises(Refused, match="every parameter is locked"):
        optimizers.create(clip_model().requires_grad_(requires_grad=False), TrainSpec())


def test_default_precision_of_a_cpu_looks_at_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at a GPU would start CUDA in the process that answers the questions of pages."""
    monkeypatch.setattr(environment, "devices", lambda: pytest.fail("the devices are looked at"))
    assert precision.resolved(TrainSpec(device="cpu")).precision == "fp32"


@pytest.mark.parametrize(
    ("name", "computed"),
    [("fp32", None), ("bf16", None), ("amp_bf16", torch.bfloat16), ("amp", torch.bfloat16)],
)
def test_precisions_on_a_cpu_compute_in_their_data_type(name: Any, computed: Any) -> None:
    precision.check(name, "cpu")
    with precision.autocast(name, "cpu"):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (computed or torch.float32)
    assert precision.scaler(name, "cpu") is None


def test_fp16_is_refused_on_a_cpu() -> None:
    with pytest.raises(Refused, match="fp16 needs an accelerator"):
        precision.check("fp16", "cpu")
