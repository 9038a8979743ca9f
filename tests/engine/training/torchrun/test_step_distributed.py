"""Two processes take the same step as one process with the whole batch, and stop at the same step."""

import copy
import functools
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from engine.models import batch_norm
from engine.settings import ROOT
from engine.specs.train import TrainSpec
from engine.training import checkpoints, objectives, optimizers
from engine.training.distributed import Place
from engine.training.loop import Training
from engine.training.setup import Setup, prepare
from engine.training.step import train_step
from tests.support.clip_models import CONFIGS
from tests.support.step import Batch, batches, clip
from tests.support.training import CONSTANT_METRIC, rows, tiny

WORLD, ACCUMULATED, SIZE = 2, 2, 4
SPECS = {
    "clip": TrainSpec(gather_with_grad=True),
    "local": TrainSpec(gather_with_grad=True, local_loss=True),
    "siglip": TrainSpec(loss="siglip"),
}

NORMED = {
    "resnet": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8},
    "norm-act": {"timm_model_name": "test_efficientnet", "timm_pool": "avg", "timm_proj": "linear", "image_size": 32},
}
"""Image towers with torch's batch norms, and with timm's, which include activations."""
CAPTIONS: dict[str, Any] = {"model": "config:coca", "configs": {"coca": CONFIGS["coca"]}, "loss": "coca"}
CAPTIONS |= {"coca_contrastive_weight": 0, "context_length": 3}
"""A training whose logit scale and projection of texts get no gradient. All captions have at least three tokens."""


def whole_batch() -> Batch:
    return batches(1, WORLD * ACCUMULATED * SIZE)[0]


def build_model(loss: str) -> Any:
    return clip(init_logit_bias=-10 if loss == "siglip" else None)


def run_steps(
    network: nn.Module, model: nn.Module, parts: Any, spec: TrainSpec, rank: int, world: int
) -> dict[str, Any]:
    """Return the losses and the last gradients of two steps. parts: the batches that each step accumulates."""
    objective = objectives.create(spec, model, rank=rank, world_size=world)
    optimizer = optimizers.create(model, spec)
    no_sync: Any = getattr(network, "no_sync", nullcontext)
    results = [
        train_step(network, parts, objective, optimizer, autocast=nullcontext, no_sync=no_sync) for _ in range(2)
    ]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"losses": [result.losses["loss"].item() for result in results], "gradients": copy.deepcopy(gradients)}


def run_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/met", rank=rank, world_size=WORLD)
    images, tokens = (whole.chunk(WORLD * ACCUMULATED) for whole in whole_batch())
    parts = [(images[turn * WORLD + rank], tokens[turn * WORLD + rank]) for turn in range(ACCUMULATED)]
    for name, spec in SPECS.items():
        model = build_model(spec.loss)
        torch.save(
            run_steps(DistributedDataParallel(model), model, parts, spec, rank, WORLD), f"{folder}/{name}-{rank}.pt"
        )
    for name in NORMED:
        torch.save(batch_norm_state(name, rank, WORLD), f"{folder}/{name}-{rank}.pt")
    spec = tiny(**CAPTIONS, batch_size=4, nproc=WORLD, val_fraction=0)
    setup = prepare(spec, Place(rank, WORLD), Path(folder) / f"captions-{rank}")
    torch.save(losses_of_steps(setup), f"{folder}/captions-{rank}.pt")
    # inductor, the default, takes a minute
    torch.compile = functools.partial(torch.compile, backend="aot_eager")  # type: ignore[assignment]
    spec = tiny(compile=True, grad_checkpointing=True, batch_size=4, nproc=WORLD, val_fraction=0)
    setup = prepare(spec, Place(rank, WORLD), Path(folder) / str(rank))
    assert isinstance(setup.network, torch._dynamo.OptimizedModule)
    torch.save(losses_of_steps(setup), f"{folder}/compiled-{rank}.pt")
    torch.save(rows_until_early_stop(rank, folder), f"{folder}/early-{rank}.pt")
    torch.save(steps_until_stop_of_second(rank, folder), f"{folder}/stopped-{rank}.pt")
    distributed.destroy_process_group()


def batch_norm_state(name: str, rank: int, world: int) -> dict[str, torch.Tensor]:
    """Return weights and running statistics after three steps in double precision, split over the processes."""
    model = clip(vision=NORMED[name]).double()
    network: nn.Module = model
    if world > 1:
        assert batch_norm.synchronise(model, "cpu")
        network = DistributedDataParallel(model)
    objective = objectives.create(SPECS["clip"], model, rank=rank, world_size=world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, tokens in batches(3, 8, image_size=32):
        part = (images.double().chunk(world)[rank], tokens.chunk(world)[rank])
        train_step(network, [part], objective, optimizer, autocast=nullcontext)
    return model.state_dict()  # type: ignore[no-any-return]


def losses_of_steps(setup: Setup) -> list[float]:
    """Return the losses of three steps."""
    found, batch_iterator = [], setup.batches.of(0)
    for _ in range(3):
        result = train_step(
            setup.network, [next(batch_iterator)], setup.objective, setup.optimizer, autocast=nullcontext
        )
        found.append(float(result.losses["loss"]))
    return found


def rows_until_early_stop(rank: int, folder: str) -> list[tuple[int, int, int]]:
    """Return (epoch, step, samples seen) of the rows of a training whose metric does not change."""
    spec = tiny(**CONSTANT_METRIC, patience=2, val_every_steps=3, val_at_start=True, batch_size=4, nproc=WORLD)
    events = list(training(spec, rank, f"{folder}/early").run())
    return [(row.epoch, row.step, row.samples_seen) for row in rows(events)]


def steps_until_stop_of_second(rank: int, folder: str) -> int:
    """Return the number of steps of a training. Only the second process is asked to stop, after its second step."""
    trainer: Training
    trainer = training(
        tiny(batch_size=4, nproc=WORLD), rank, f"{folder}/stopped", lambda: rank == 1 and trainer.progress.step == 2
    )
    list(trainer.run())
    return trainer.progress.step


def training(spec: TrainSpec, rank: int, folder: str, stopped: Callable[[], bool] = lambda: False) -> Training:
    return Training(prepare(spec, Place(rank, WORLD), Path(folder)), Path(folder), "here", stopped=stopped)


@pytest.fixture(scope="module")
def results_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run two processes and return the folder with their results.

    They are forked from a new process that has imported torch and run no operator.
    """
    folder = tmp_path_factory.mktemp("two")
    code = (
        "from engine.process import collect_rarely; collect_rarely(); "
        "import torch._inductor.compile_fx; "  # aot_eager would import it in both processes
        f"from {__name__} import run_processes; run_processes({str(folder)!r})"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    return folder


def run_processes(folder: str) -> None:
    multiprocessing.start_processes(run_process, (folder,), nprocs=WORLD, start_method="fork")


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_two_processes_take_the_step_of_one(name: str, results_folder: Path) -> None:
    model = build_model(SPECS[name].loss)
    wanted = run_steps(model, model, [whole_batch()], SPECS[name], 0, 1)
    first, second = (torch.load(results_folder / f"{name}-{rank}.pt") for rank in range(WORLD))
    for parameter, value in wanted["gradients"].items():
        atol = 1e-5 * float(value.abs().max())
        torch.testing.assert_close(first["gradients"][parameter], value, rtol=1e-5, atol=atol, msg=parameter)
        torch.testing.assert_close(first["gradients"][parameter], second["gradients"][parameter], rtol=0, atol=0)
    mean = [sum(both) / WORLD for both in zip(first["losses"], second["losses"], strict=True)]
    assert mean == pytest.approx(wanted["losses"], rel=1e-5)


@pytest.mark.slow
def test_compiled_checkpointed_processes_take_the_steps_of_one(results_folder: Path, tmp_path: Path) -> None:
    wanted = losses_of_steps(prepare(tiny(val_fraction=0), Place(), tmp_path))
    assert torch.load(results_folder / "compiled-0.pt") == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
def test_processes_that_train_on_captions_alone_take_the_steps_of_one(results_folder: Path, tmp_path: Path) -> None:
    wanted = losses_of_steps(prepare(tiny(**CAPTIONS, val_fraction=0), Place(), tmp_path))
    found = [torch.load(results_folder / f"captions-{rank}.pt") for rank in range(WORLD)]
    assert [sum(losses) / WORLD for losses in zip(*found, strict=True)] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMED)
def test_synchronised_batch_norms_make_two_processes_train_as_one(name: str, results_folder: Path) -> None:
    wanted = batch_norm_state(name, 0, 1)
    assert any("running_var" in key for key in wanted)
    for rank in range(WORLD):
        torch.testing.assert_close(torch.load(results_folder / f"{name}-{rank}.pt"), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_two_processes_stop_early_together_within_an_epoch(results_folder: Path) -> None:
    first, second = (torch.load(results_folder / f"early-{rank}.pt") for rank in range(WORLD))
    assert first == [(0, 0, 0), (0, 3, 24), (1, 4, 32), (1, 6, 48)]
    assert second == [], "the first process validates"


@pytest.mark.slow
def test_stop_request_of_one_process_stops_both_at_the_same_step(results_folder: Path) -> None:
    assert [torch.load(results_folder / f"stopped-{rank}.pt") for rank in range(WORLD)] == [2, 2]
    saved = checkpoints.load(results_folder / "stopped" / "checkpoints" / "latest.pt")
    assert saved["vitals"]["done"]["step"] == 2
