"""What a run needs before it starts: files here or at the hub, and memory, against hand sums and a real step."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.jobs.answers import Answers
from engine.results.answers import Prospect
from engine.settings import Settings
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Outlook
from engine.specs.train import TrainSpec
from engine.training import outlook
from engine.training.outlook import answer
from tests.support.clip_models import CONFIGS, VIT, cached, make, saved, train_spec

IMAGES = 3 * 8 * 8 * 128 + (1 + 17) * 128 + 3 * (12 * 128**2 + 13 * 128) + 4 * 128 + 128 * 64
TEXTS = (49408 + 16) * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64 + 64 * 64
PARAMETERS = IMAGES + TEXTS + 1
"""Of digits-clip, by hand: embeddings, blocks of attention, perceptron and norms, projections; the logit scale."""


def prospect(spec: TrainSpec | EvaluateSpec, batch_size: int = 64) -> Prospect:
    return answer(Outlook.of(spec, batch_size))


def of_training(batch_size: int = 64, **fields: Any) -> tuple[float, float]:
    """MB at the most, and there throughout."""
    found = prospect(TrainSpec(**fields), batch_size)
    assert not found.problems
    assert found.peak_mb is not None
    assert found.state_mb is not None
    return found.peak_mb, found.state_mb


def test_digits_clip_holds_sixteen_bytes_for_each_parameter() -> None:
    mask = 16 * 16 * 4  # the only buffer: which tokens a token sees
    peak, held = of_training()
    assert held == pytest.approx((16 * PARAMETERS + mask) / 1e6)
    assert peak > held


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({"opt": "timm/adamw"}, 16),
        ({"opt": "timm/lion"}, 12),  # one moment
        ({"opt": "timm/sgd"}, 12),  # its momentum of 0.9
    ],
)
def test_each_optimizer_keeps_its_own_moments(fields: dict[str, Any], size: int) -> None:
    mask = 16 * 16 * 4
    assert of_training(**fields)[1] == pytest.approx((size * PARAMETERS + mask) / 1e6)


@pytest.mark.slow
def test_activations_grow_with_the_batch_and_shrink_where_they_are_computed_twice() -> None:
    (small, held), (large, _) = of_training(64), of_training(128)
    images, texts = 64 * 3 * 32 * 32 * 4 / 1e6, 64 * 16 * 8 / 1e6
    assert large - held > 1.5 * (small - held) > images + texts
    assert of_training(64, grad_checkpointing=True)[0] < small
    assert of_training(64, precision="amp_bf16")[1] == held, "mixed precision keeps weights in float32"
    assert of_training(64, precision="bf16")[1] < held


def test_locked_weights_have_neither_gradients_nor_moments() -> None:
    assert of_training()[1] - of_training(lock_image=True)[1] == pytest.approx(12 * IMAGES / 1e6)


def test_what_meets_in_the_loss_counts() -> None:
    """Two batches of 512 in two processes: logits of 2048 x 2048 instead of 512 x 512, and DDP's buckets."""
    alone, together = of_training(512), of_training(512, accum_freq=2, nproc=2)
    buckets = together[1] - alone[1]
    assert buckets == pytest.approx((alone[1]) / 4, rel=0.01)
    assert together[0] - alone[0] - buckets > (2048**2 - 512**2) * 4 / 1e6


@pytest.mark.slow
def test_a_teacher_is_held_as_well() -> None:
    configs = {"vit": CONFIGS["vit"]}
    own = of_training(model="config:vit", configs=configs)
    taught = of_training(model="config:vit", configs=configs, loss="distill", distill_model="digits-clip")
    assert taught[0] - own[0] > 4 * PARAMETERS / 1e6


MEASURED = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile
from engine.models import clip_weights
from engine.specs.train import TrainSpec
from engine.training import objectives, optimizers, precision
from engine.training.step import train_step
spec = TrainSpec.model_validate_json(sys.argv[1])
made = clip_weights.create(spec, weights="")
clip_weights.arrange(made.model, spec)
made.model.train()
optimizer = optimizers.create(made.model, spec)
objective = objectives.create(spec, made.model)
def step(pairs):
    batch = torch.rand(pairs, 3, *made.image_size), torch.ones(pairs, made.context_length, dtype=torch.long)
    autocast = lambda: precision.autocast(spec.precision, "cpu")
    train_step(made.model, [batch], objective, optimizer, autocast=autocast)
def most(pairs):
    optimizer.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step(pairs)
    changes = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = top = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        top = max(top, held)
    return top
step(2)
print(*(most(int(pairs)) for pairs in sys.argv[2:]))
"""


def measured(*pairs: int, moments: int = 2, **fields: Any) -> list[float]:
    """Return the peak MB of real steps: what torch's allocator is asked for, beside weights and moments.

    The resident memory of the process would be no measure: with it come the C library's free blocks and the working
    space of matrix products, which differ from machine to machine.
    """
    command = [sys.executable, "-c", MEASURED, TrainSpec(**fields).model_dump_json(), *map(str, pairs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [(4 * (1 + moments) * PARAMETERS + int(number)) / 1e6 for number in done.stdout.splitlines()[-1].split()]


STEPPED = """
import torch
from torch.profiler import ProfilerActivity, profile
for how in ({"foreach": True}, {"fused": True}, {"foreach": False}):
    weights = [torch.nn.Parameter(torch.ones(size, 1024)) for size in (64, 128, 256)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW(weights, **how)
    optimizer.step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        optimizer.step()
    changes = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = top = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        top = max(top, held)
    print(top)
"""


@pytest.mark.slow
def test_what_an_optimizers_own_step_needs_is_what_torch_allocates() -> None:
    done = subprocess.run([sys.executable, "-c", STEPPED], capture_output=True, text=True, check=True)
    weights = [size * 1024 * 4 for size in (64, 128, 256)]
    fields_of = [{"opt": "timm/adamw", "device": "cuda:0"}, {}, {"opt": "timm/adamw"}]
    expected = [outlook._temporaries(TrainSpec.model_validate(fields), weights) for fields in fields_of]
    foreach, fused, one_by_one = (int(line) for line in done.stdout.split()[-3:])
    assert [foreach, fused] == pytest.approx(expected[:2], abs=2048)
    assert expected[2] / 2 < one_by_one <= expected[2], "the last weight's, and what is left of the one before"
    assert outlook._temporaries(TrainSpec(device="cuda:0"), weights) == 0, "our AdamW is fused"


@pytest.mark.slow
def test_the_estimate_is_that_of_a_real_step() -> None:
    assert measured(2, 512) == [pytest.approx(of_training(pairs)[0], rel=0.01) for pairs in (2, 512)]
    (lion,), expected = measured(64, moments=1, opt="timm/lion"), of_training(opt="timm/lion")[0]
    assert 0.85 * expected < lion <= expected, "its own step may need fewer temporaries than are counted"


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimate_of_mixed_precision_is_that_of_a_real_step(checkpointing: bool) -> None:
    """Weights of products and convolutions have copies in half precision, embeddings of tokens have none."""
    fields = {"precision": "amp_bf16", "grad_checkpointing": checkpointing}
    for pairs, peak in zip((2, 64, 512), measured(2, 64, 512, **fields), strict=True):
        assert of_training(pairs, **fields)[0] == pytest.approx(peak, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_every_kind_of_model_is_told_of(name: str) -> None:
    spec = train_spec(name, **({"loss": "coca"} if name == "coca" else {}))
    weights = sum(weight.nbytes for weight in make(name).model.parameters())
    found = prospect(spec, 4)
    assert found.problems == ()
    assert found.state_mb is not None
    assert found.state_mb == pytest.approx(4 * weights / 1e6, rel=0.05)
    evaluated = prospect(EvaluateSpec(model=spec.model, configs=spec.configs), 4)
    assert evaluated.state_mb == pytest.approx(weights / 1e6, rel=0.05)
    assert evaluated.peak_mb is not None
    assert weights / 1e6 < evaluated.peak_mb < (found.peak_mb or 0)


@pytest.mark.slow
def test_weights_in_the_cache_lie_there(empty_cache: Path) -> None:
    path = cached(empty_cache, "timm/vit_base_patch32_clip_224.openai") / "open_clip_model.safetensors"
    path.write_bytes(b"not looked into")
    found = prospect(TrainSpec(model="ViT-B-32", pretrained="openai"), 2)
    assert found.problems == ()
    assert [(needed.what, needed.path) for needed in found.needed] == [("weights openai of ViT-B-32", str(path))]
    assert found.cache == str(empty_cache)
    assert found.free_mb > 0


@pytest.mark.slow
def test_weights_and_tokenizers_out_of_reach_are_problems(empty_cache: Path) -> None:
    found = prospect(EvaluateSpec(model="roberta-ViT-B-32", checkpoint="laion2b_s12b_b32k"), 2)
    tokenizer, weights = found.problems
    assert "needs the tokenizer of roberta-base" in tokenizer
    assert weights.endswith(
        "'laion2b_s12b_b32k' of roberta-ViT-B-32 are not in "
        f"{empty_cache}, and huggingface.co/laion/CLIP-ViT-B-32-roberta-base-laion2B-s12B-b32k cannot be reached: "
        "HF_HUB_OFFLINE is set"
    )
    assert found.peak_mb, "told all the same"


def test_a_checkpoint_is_held_against_the_model_by_names_and_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path))
    path = saved(make(), tmp_path)
    fits = prospect(train_spec(pretrained=str(path)), 4)
    assert (fits.problems, [needed.path for needed in fits.needed]) == ((), [str(path)])
    wider = {"wider": {**CONFIGS["vit"], "vision_cfg": {**VIT, "width": 24}}}
    found = prospect(TrainSpec(model="config:wider", configs=wider, pretrained=str(path)), 4)
    assert len(found.problems) == 1
    assert "does not fit wider: size mismatch for visual" in found.problems[0]
    assert found.peak_mb is None


def test_safetensors_are_held_against_the_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_model

    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path))
    path = tmp_path / "weights.safetensors"
    save_model(make().model, str(path))
    assert prospect(train_spec(pretrained=str(path)), 4).problems == ()
    assert "does not fit resnet" in prospect(train_spec("resnet", pretrained=str(path)), 4).problems[0]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": "ViT-B-32", "pretrained": "laion"}, "'laion' is neither a file nor published weights of ViT-B-32"),
        ({"loss": "coca"}, "digits-clip is not a CoCa model"),
        (dict(train_spec("timm", image_size=97)), "its own size is 160"),
        ({"model": "RN50", "lock_image": True, "lock_image_unlocked_groups": 2}, "lock it as a whole"),
    ],
)
def test_what_cannot_be_made_is_a_problem(fields: dict[str, Any], problem: str) -> None:
    found = prospect(TrainSpec(**fields), 4)
    assert len(found.problems) == 1
    assert problem in found.problems[0]


def test_what_makes_no_difference_is_not_asked() -> None:
    one = TrainSpec(lr=1e-4, epochs=3, data="elsewhere.csv", batch_size=None, seed=3, classes=("a",))
    assert Outlook.of(one, 64) == Outlook.of(TrainSpec(), 64)
    assert Outlook.of(one, 64) != Outlook.of(one, 32)
    for spec in (one, EvaluateSpec(checkpoint="openai")):
        question = Outlook.of(spec, 8)
        again = Outlook.model_validate_json(question.model_dump_json())
        assert again == question
        assert type(again.spec) is type(spec)


@pytest.mark.slow
def test_the_process_that_answers_tells_of_digits_clip(settings: Settings) -> None:
    answers = Answers(settings)
    try:
        found = Prospect.model_validate(answers.ask(Outlook.of(TrainSpec(), 64)).result(120))
    finally:
        answers.close()
    assert found == prospect(TrainSpec()).model_copy(update={"free_mb": found.free_mb, "unused_mb": found.unused_mb})
    assert found.unused_mb
    assert found.problems == ()
    assert found.state_mb is not None
    assert found.state_mb > 16 * PARAMETERS / 1e6


@pytest.mark.slow
def test_nothing_is_allocated_for_it() -> None:
    before = torch.get_rng_state()
    found = prospect(TrainSpec(model="ViT-L-14"), 4096)
    assert found.peak_mb is not None
    assert found.peak_mb > 1_000_000, "a terabyte, which nobody has here"
    assert torch.equal(before, torch.get_rng_state())
