"""Log lines against those of open_clip's trainer, params.txt, and what Weights & Biases gets."""

import copy
import logging
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import open_clip
import pytest
from open_clip_train.train import train_one_epoch

from engine.training import optimizers
from engine.training.optimizers import assign
from tests.support.training import losses, tiny, train, training

LINE = re.compile(
    r"Train Epoch: (\d+) \[\s*(\d+)/(\d+) \((\d+)%\)\] Data \(t\): [\d.]+ Batch \(t\): [\d.]+, [\d.]+/s, [\d.]+/s/gpu "
    r"LR: ([\d.]+) Logit Scale: ([\d.]+) Contrastive_loss: ([\d.]+) \([\d.]+\) Loss: ([\d.]+) \(([\d.]+)\)"
)


def lines(caplog: pytest.LogCaptureFixture) -> list[list[float]]:
    texts = [record.getMessage() for record in caplog.records if "Train Epoch" in record.getMessage()]
    caplog.clear()
    return [list(map(float, match.groups())) for text in texts if (match := LINE.fullmatch(text))]


class Loader(list[Any]):
    num_batches, num_samples = 4, 32


def test_log_lines_equal_those_of_the_open_clip_trainer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = tiny(epochs=1, log_every_n_steps=2, opt="timm/sgd", momentum=0.9, lr=0.5, grad_clip_norm=0.1)
    caplog.set_level(logging.INFO)
    setup = training(spec, tmp_path / "theirs").setup
    model, batches = copy.deepcopy(setup.model), Loader(setup.batches.of(0))
    optimizer = optimizers.create(model, spec)
    args = Namespace(device="cpu", precision="fp32", distill=False, accum_freq=1, skip_scheduler=False)
    vars(args).update(grad_clip_norm=0.1, horovod=False, log_every_n_steps=2, rank=0, local_rank=0, log_local=False)
    vars(args).update(batch_size=8, world_size=1, wandb=False)
    data = {"train": Namespace(dataloader=batches, set_epoch=lambda epoch: None)}
    schedule = lambda step: assign(optimizer, setup.lr(step), {})  # noqa: E731
    train_one_epoch(model, data, open_clip.ClipLoss(), 0, optimizer, None, schedule, None, args)
    reference = lines(caplog)
    curve = losses(train(spec, tmp_path / "ours"))
    printed = lines(caplog)
    assert [line[:4] for line in reference] == [[0, 8, 32, 25], [0, 24, 32, 75], [0, 32, 32, 100]]
    assert [line[:8] for line in printed] == [pytest.approx(line[:8], rel=1e-3) for line in reference]
    assert [step for step, _ in curve] == [1, 3, 4]


def test_losses_in_brackets_are_running_means_of_the_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    step_losses = [loss for _, loss in losses(train(tiny(), tmp_path))]
    means = [line[-1] for line in lines(caplog)]
    wanted = [sum(epoch[: n + 1]) / (n + 1) for epoch in (step_losses[:4], step_losses[4:]) for n in range(4)]
    assert means == pytest.approx(wanted, rel=1e-3)


@pytest.mark.usefixtures("ascii_locale")
def test_params_txt_has_the_resolved_defaults(tmp_path: Path) -> None:
    train(tiny(batch_size=None, epochs=1, lr_text=2e-4, templates=["{} 字"]), tmp_path)
    params = dict(line.split(": ", 1) for line in (tmp_path / "params.txt").read_text(encoding="utf-8").splitlines())
    wanted = {"batch_size": "16", "steps": "2", "warmup": "1", "lr": "0.001", "lr_image": "0.001", "lr_text": "0.0002"}
    wanted |= {"beta1": "0.9", "beta2": "0.98", "eps": "1e-06", "precision": "fp32", "image_size": "[32, 32]"}
    wanted |= {"context_length": "8", "best_metric": "zeroshot_top1", "train_pairs": "32", "val_pairs": "8"}
    wanted["templates"] = "['{} 字']"
    assert {name: params[name] for name in wanted} == wanted


def test_weights_and_biases_gets_project_name_and_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.py").write_text(
        "given = []\n"
        "class Run:\n    def log(self, values, step): pass\n    def finish(self): pass\n"
        "def init(**options):\n    given.append(options)\n    return Run()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = tiny(epochs=1, wandb=True, wandb_project_name="digits", wandb_name="third", wandb_notes="as before")
    train(spec, tmp_path / "run")
    import wandb

    options = wandb.given[0]
    assert (options["project"], options["name"], options["notes"]) == ("digits", "third", "as before")
    assert options["config"]["lr"] == 1e-3
    assert options["config"]["steps"] == 4
