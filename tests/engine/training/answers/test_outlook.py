"""The outlook of a run before it starts: files and memory, against hand sums and real steps."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.jobs.answers import Answers
from engine.measure import environment
from engine.models.clip.hub import Remote
from engine.results.answers import Prospect
from engine.settings import ROOT, Settings
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Outlook
from engine.specs.train import TrainSpec
from engine.training.answers import outlook
from engine.training.answers.outlook import answer
from tests.support.clip_models import CONFIGS, VIT, cached, make, saved, train_spec

IMAGES = 3 * 8 * 8 * 128 + (1 + 17) * 128 + 3 * (12 * 128**2 + 13 * 128) + 4 * 128 + 128 * 64
TEXTS = (49408 + 16) * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64 + 64 * 64
PARAMETERS = IMAGES + TEXTS + 1
"""Parameters of digits-clip: embeddings, blocks of attention, perceptron and norms, projections, logit scale."""


def prospect(spec: TrainSpec | EvaluateSpec, batch_size: int = 64) -> Prospect:
    return answer(Outlook.of(spec, batch_size))


def training_memory(batch_size: int = 64, **fields: Any) -> tuple[float, float]:
    """Return the peak memory and the permanent memory of a training, in MB."""
    found = prospect(TrainSpec(**fields), batch_size)
    assert not found.problems
    assert found.peak_mb is not None
    assert found.state_mb is not None
    return found.peak_mb, found.state_mb


@pytest.mark.parametrize("device", ["cluster:cpu", "cluster:gpu", "cluster:gpu:H100"])
def test_memory_on_a_cluster_is_that_of_float32(device: str) -> None:
    """The default precision depends on the node's GPU, which is unknown before the run."""
    assert training_memory(device=device) == training_memory(device=device, precision="fp32")


def test_digits_clip_needs_16_bytes_per_parameter() -> None:
    mask = 16 * 16 * 4  # the only buffer: which tokens a token sees
    peak, held = training_memory()
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
def test_permanent_memory_depends_on_the_moments_of_the_optimizer(fields: dict[str, Any], size: int) -> None:
    mask = 16 * 16 * 4
    assert training_memory(**fields)[1] == pytest.approx((size * PARAMETERS + mask) / 1e6)


@pytest.mark.slow
def test_activations_grow_with_the_batch_and_shrink_with_checkpointing() -> None:
    (small, held), (large, _) = training_memory(64), training_memory(128)
    images, texts = 64 * 3 * 32 * 32 * 4 / 1e6, 64 * 16 * 8 / 1e6
    assert large - held > 1.5 * (small - held) > images + texts
    assert training_memory(64, grad_checkpointing=True)[0] < small
    assert training_memory(64, precision="amp_bf16")[1] == held, "mixed precision keeps weights in float32"
    assert training_memory(64, precision="bf16")[1] < held


def test_evaluation_in_amp_holds_copies_of_one_tower_at_a_time() -> None:
    """The copies are those of the image tower, which is larger. The values of one image are small beside them."""
    full, mixed = (
        prospect(EvaluateSpec(model="digits-clip", checkpoint="", precision=precision), 1).peak_mb or 0
        for precision in ("fp32", "amp")
    )
    assert mixed - full == pytest.approx(2 * IMAGES / 1e6, rel=0.08), "those of both towers are 11 % more"


def test_locked_weights_have_neither_gradients_nor_moments() -> None:
    assert training_memory()[1] - training_memory(lock_image=True)[1] == pytest.approx(12 * IMAGES / 1e6)


@pytest.mark.slow
def test_logits_of_all_processes_and_ddp_buckets_are_counted() -> None:
    """Two batches of 512 in two processes: logits of 2048 x 2048 instead of 512 x 512, and DDP's buckets."""
    single, joint = training_memory(512), training_memory(512, accum_freq=2, nproc=2)
    buckets = joint[1] - single[1]
    assert buckets == pytest.approx((single[1]) / 4, rel=0.01)
    assert training_memory(2, nproc=2)[0] - training_memory(2)[0] == pytest.approx(buckets, rel=0.01), "few logits"
    # the loss keeps two matrices of logits, and their logarithms of probabilities
    assert joint[0] - single[0] - buckets > 4 * (2048**2 - 512**2) * 4 / 1e6


@pytest.mark.slow
def test_memory_of_a_teacher_is_counted() -> None:
    configs = {"vit": CONFIGS["vit"]}
    without_teacher = training_memory(model="config:vit", configs=configs)
    with_teacher = training_memory(model="config:vit", configs=configs, loss="distill", distill_model="digits-clip")
    assert with_teacher[0] - without_teacher[0] > 4 * PARAMETERS / 1e6
    # the teacher gets the student's 16 pixels and 8 tokens, so it has 5 and 8 positions instead of 17 and 16
    weights, mask = PARAMETERS - 12 * 128 - 8 * 64, 8 * 8
    assert with_teacher[1] - without_teacher[1] == pytest.approx(4 * (weights + mask) / 1e6)


STEP_SCRIPT = """
from engine.process import collect_rarely
collect_rarely()
import json, sys
import torch
from torch.profiler import ProfilerActivity, profile
from engine.models.clip import weights as clip_weights
from engine.specs.train import TrainSpec
from engine.training import objectives, optimizers, precision
from engine.training.step import train_step
def most(step):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    changes = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = top = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        top = max(top, held)
    return top
def peaks(spec, sizes):
    made = clip_weights.create(spec, weights="")
    clip_weights.arrange(made.model, spec)
    made.model.train()
    optimizer = optimizers.create(made.model, spec)
    objective = objectives.create(spec, made.model)
    def step(pairs):
        tokens = pairs, made.context_length
        batches = [
            (torch.rand(pairs, 3, *made.image_size), torch.ones(*tokens, dtype=torch.long))
            for _ in range(spec.accum_freq)
        ]
        autocast = lambda: precision.autocast(spec.precision, "cpu")
        train_step(made.model, batches, objective, optimizer, autocast=autocast)
    step(2)
    found = []
    for pairs in sizes:
        optimizer.zero_grad()
        found.append(most(lambda: step(pairs)))
    return found
def temporaries(how):
    weights = [torch.nn.Parameter(torch.ones(size, 1024)) for size in (64, 128, 256)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW(weights, **how)
    optimizer.step()
    return most(optimizer.step)
steps = [peaks(TrainSpec.model_validate(fields), sizes) for fields, sizes in json.loads(sys.argv[1])]
print(json.dumps([steps, [temporaries(how) for how in ({"foreach": True}, {"fused": True}, {"foreach": False})]]))
"""
STEPS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "float32": ({}, [2, 256]),
    "lion": ({"opt": "timm/lion"}, [64]),
    "accumulated": ({"accum_freq": 4}, [2, 64]),
    "accumulated, locked tower": ({"accum_freq": 8, "lock_image": True}, [32]),
    "mixed": ({"precision": "amp_bf16"}, [2, 64]),
    "mixed, checkpointing": ({"precision": "amp_bf16", "grad_checkpointing": True}, [2, 64]),
    "mixed, accumulated": ({"precision": "amp_bf16", "accum_freq": 4}, [2, 16]),
}
"""Fields and numbers of pairs of the real steps that estimates are compared with."""


@pytest.fixture(scope="module")
def peaks() -> tuple[list[list[int]], list[int]]:
    """Return the largest memory in bytes that torch allocates, in one process: in the STEPS, and in optimizer steps.

    The resident memory of the process is not used: it includes free blocks of the C library and the working space of
    matrix products, which differ between machines.
    """
    command = [sys.executable, "-c", STEP_SCRIPT, json.dumps(list(STEPS.values()))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    steps, optimizer_steps = json.loads(done.stdout.splitlines()[-1])
    return steps, optimizer_steps


@pytest.fixture(scope="module")
def measured(peaks: tuple[list[list[int]], list[int]]) -> dict[str, list[float]]:
    """Return the peak memory of the STEPS in MB: what torch allocates, plus weights and moments."""
    moments = {"lion": 1 * PARAMETERS, "accumulated, locked tower": 2 * (PARAMETERS - IMAGES)}
    return {
        name: [4 * (PARAMETERS + moments.get(name, 2 * PARAMETERS)) / 1e6 + peak / 1e6 for peak in found]
        for name, found in zip(STEPS, peaks[0], strict=True)
    }


@pytest.mark.slow
def test_temporaries_of_an_optimizer_step_equal_what_torch_allocates(
    peaks: tuple[list[list[int]], list[int]],
) -> None:
    weights = [size * 1024 * 4 for size in (64, 128, 256)]
    fields_of = [{"opt": "timm/adamw", "device": "cuda:0"}, {}, {"opt": "timm/adamw"}]
    expected = [outlook._temporaries(TrainSpec.model_validate(fields), weights) for fields in fields_of]
    foreach, fused, one_by_one = peaks[1]
    assert [foreach, fused] == pytest.approx(expected[:2], abs=2048)
    assert expected[2] / 2 < one_by_one <= expected[2], "those of the last weight and the rest of those before"
    assert outlook._temporaries(TrainSpec(device="cuda:0"), weights) == 0, "our AdamW is fused"


@pytest.mark.slow
def test_estimate_equals_the_peak_of_a_real_step(measured: dict[str, list[float]]) -> None:
    assert measured["float32"] == [pytest.approx(training_memory(pairs)[0], rel=0.01) for pairs in (2, 256)]
    (lion,), expected = measured["lion"], training_memory(opt="timm/lion")[0]
    assert 0.85 * expected < lion <= expected, "its step may need fewer temporaries than are counted"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accumulated", "accumulated, locked tower"])
def test_estimate_equals_the_peak_of_a_real_step_of_several_batches(
    measured: dict[str, list[float]], name: str
) -> None:
    """Gradients of earlier batches lie beside the activations of later ones, and the inputs of all batches wait."""
    fields, sizes = STEPS[name]
    assert measured[name] == [pytest.approx(training_memory(pairs, **fields)[0], rel=0.01) for pairs in sizes]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed", "mixed, checkpointing", "mixed, accumulated"])
def test_mixed_precision_estimate_equals_the_peak_of_a_real_step(measured: dict[str, list[float]], name: str) -> None:
    """Weights of products and convolutions have copies in half precision, embeddings of tokens have none."""
    fields, sizes = STEPS[name]
    for pairs, peak in zip(sizes, measured[name], strict=True):
        assert training_memory(pairs, **fields)[0] == pytest.approx(peak, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_every_kind_of_model_has_an_outlook(name: str) -> None:
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
def test_cached_weights_are_found_in_the_cache(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "available_bytes", lambda: 3 * 10**9)  # as a container limits it
    path = cached(empty_cache, "timm/vit_base_patch32_clip_224.openai") / "open_clip_model.safetensors"
    path.write_bytes(b"not looked into")
    found = prospect(TrainSpec(model="ViT-B-32", pretrained="openai"), 2)
    assert found.problems == ()
    assert [(needed.what, needed.path) for needed in found.needed] == [("weights openai of ViT-B-32", str(path))]
    assert found.cache == str(empty_cache)
    assert found.free_mb == pytest.approx(shutil.disk_usage(empty_cache).free / 1e6, rel=0.05)
    assert found.unused_mb == 3000
    teacher = {"loss": "distill", "distill_model": "ViT-B-32", "distill_pretrained": "openai"}
    taught = prospect(TrainSpec(**teacher, device="cuda:0", precision="fp32"), 2)
    assert (taught.problems, taught.needed) == ((), found.needed)
    assert taught.unused_mb is None, "the memory of the host is not that of an accelerator"
    assert outlook._needed("weights", Remote("org/name", "weights.bin", 605_200_000, "weights are", "")).mb == 605.2


@pytest.mark.slow
def test_unreachable_weights_and_tokenizers_are_problems(empty_cache: Path) -> None:
    found = prospect(EvaluateSpec(model="roberta-ViT-B-32", checkpoint="laion2b_s12b_b32k"), 2)
    tokenizer, weights = found.problems
    assert "needs the tokenizer of roberta-base" in tokenizer
    assert weights.endswith(
        "'laion2b_s12b_b32k' of roberta-ViT-B-32 are not in "
        f"{empty_cache}, and huggingface.co/laion/CLIP-ViT-B-32-roberta-base-laion2B-s12B-b32k cannot be reached: "
        "HF_HUB_OFFLINE is set"
    )
    assert found.peak_mb, "the peak is estimated nevertheless"


def test_checkpoint_is_compared_with_the_model_by_names_and_shapes(
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
    configs = {"vit": CONFIGS["vit"], **wider}
    taught = {"loss": "distill", "distill_model": "config:wider", "distill_pretrained": str(path)}
    (problem,) = prospect(TrainSpec(model="config:vit", configs=configs, **taught), 4).problems
    assert "does not fit wider" in problem


def test_safetensors_are_compared_with_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ({"opt": "timm/sgd", "momentum": 0.0}, "Nesterov momentum requires a momentum"),
        (
            {"opt": "timm/sgd", "beta1": 0.9, "beta2": 0.99},
            "timm/sgd takes no betas, only momentum: leave beta1 and beta2 out",
        ),
        ({"opt": "timm/lion", "eps": 1e-6}, "timm/lion takes no eps, only betas: leave eps out"),
        (
            {"opt": "timm/adafactor", "beta1": 0.9, "beta2": 0.99, "momentum": 0.9},
            "takes no momentum, only betas and eps",
        ),
    ],
)
def test_impossible_models_are_problems(fields: dict[str, Any], problem: str) -> None:
    found = prospect(TrainSpec(**fields), 4)
    assert len(found.problems) == 1
    assert problem in found.problems[0]


def test_fields_without_effect_are_left_out_of_the_question() -> None:
    changed = TrainSpec(lr=1e-4, epochs=3, data="elsewhere.csv", batch_size=None, seed=3, classes=("a",))
    assert Outlook.of(changed, 64) == Outlook.of(TrainSpec(), 64)
    assert Outlook.of(changed, 64) != Outlook.of(changed, 32)
    for spec in (changed, EvaluateSpec(checkpoint="openai")):
        question = Outlook.of(spec, 8)
        copied = Outlook.model_validate_json(question.model_dump_json())
        assert copied == question
        assert type(copied.spec) is type(spec)


@pytest.mark.slow
def test_answer_process_gives_the_outlook_of_digits_clip(settings: Settings) -> None:
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
def test_outlook_allocates_nothing() -> None:
    before = torch.get_rng_state()
    found = prospect(TrainSpec(model="ViT-L-14"), 4096)
    assert found.peak_mb is not None
    assert found.peak_mb > 1_000_000, "a terabyte, more than any machine here has"
    assert torch.equal(before, torch.get_rng_state())
