"""The training loop: the pairs it draws, what it writes, and that continued trainings equal unstopped ones."""

import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import pytest
import torch

from engine import datasets
from engine.measure import contention
from engine.measure.contention import Usage
from engine.models import variants
from engine.models.variants import Numbers
from engine.results import Metric, Progress
from engine.specs import Refused
from engine.specs.train import METRICS
from engine.store.files import RunFiles
from engine.training import checkpoints, logs, loop, meter, precision, resuming, setup, validation
from engine.training.batches import Batches, Drawn, Order
from engine.training.distributed import Place
from engine.training.loop import Training
from engine.training.meter import Diverged
from engine.training.resuming import TrainingProgress
from engine.training.setup import prepare
from engine.training.step import StepResult, seed
from tests.support.data import write_classes
from tests.support.training import TINY, captioned, close, losses, rows, tiny, train, training


def load_weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return dict(checkpoints.load(folder / "checkpoints" / name)["state_dict"])


def equal_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def order(**fields: object) -> Order:
    return Order(**({"count": 100, "batch_size": 4, "batches": 12, "seed": 3} | fields))  # type: ignore[arg-type]


def test_every_epoch_has_each_pair_once_in_a_new_order() -> None:
    whole = order(batches=25)
    indices = [index for batch in whole for _, index in batch]
    assert sorted(indices) == list(range(100))
    whole.epoch = 1
    assert [index for batch in whole for _, index in batch] != indices
    whole.epoch = 0
    assert [index for batch in whole for _, index in batch] == indices


def test_processes_share_the_larger_batches_of_a_single_process() -> None:
    single = list(order(batch_size=8, batches=6))
    parts = [list(order(batches=6, rank=rank, world_size=2)) for rank in range(2)]
    assert [first + second for first, second in zip(*parts, strict=True)] == single


def test_epoch_continues_after_its_last_batch() -> None:
    whole, rest = order(), order(start=5)
    assert list(rest) == list(whole)[5:]
    assert len(rest) == 7


def test_repeated_step_has_different_batches() -> None:
    """Equal batches in a step cannot be told apart: the loss would stay above the log of their number."""
    repeated = order(batches=3, repeat=True)
    first = [[index for _, index in batch] for batch in repeated]
    assert len({index for batch in first for index in batch}) == 12
    repeated.epoch = 1
    assert [[index for _, index in batch] for batch in repeated] == first


def test_pairs_are_drawn_in_proportion_to_their_weights() -> None:
    drawn = Counter(order(count=2, weights=np.array([3.0, 1.0]), batches=5000).drawn(0).tolist())
    assert drawn[0] / 20_000 == pytest.approx(0.75, abs=0.015)  # 5 standard errors


def test_drawn_pair_depends_only_on_seed_epoch_and_index() -> None:
    digits = datasets.open_pairs("digits")

    def crop(image: object) -> torch.Tensor:
        return torch.tensor([float(torch.rand(())), np.random.rand(), random.random()])

    tokenizer = open_clip.SimpleTokenizer(context_length=8)
    drawn = Drawn(digits, crop, tokenizer, seed=1)
    torch.manual_seed(0)
    image, tokens = drawn[2, 17]
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    again = drawn[2, 17]
    assert torch.equal(torch.get_rng_state(), before[0]), "the global random states do not change"
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
    assert torch.equal(image, again[0])
    assert torch.equal(tokens, again[1])
    assert not (image == drawn[3, 17][0]).any()
    assert not (image == drawn[2, 18][0]).any()
    captions = {tuple(drawn[epoch, 17][1].tolist()) for epoch in range(30)}
    assert len(captions) == len(digits.captions(17)), "every caption is drawn"


@pytest.mark.slow
def test_loading_in_another_process_gives_the_same_batches() -> None:
    digits = datasets.open_pairs("digits")
    tokenizer, transform = open_clip.SimpleTokenizer(context_length=8), open_clip.image_transform(32, is_train=True)
    loaded = []
    for workers in (0, 1):
        batches = Batches(digits, transform, tokenizer, order(batches=3), workers=workers, pin=False)
        loaded.append([*batches.of(0), *batches.of(1, start=1)])
    assert [len(entry) for entry in loaded] == [5, 5]
    assert all(
        torch.equal(a, b) for direct, worker in zip(*loaded, strict=True) for a, b in zip(direct, worker, strict=True)
    )


@pytest.mark.slow
def test_training_writes_curves_rows_and_files(tmp_path: Path) -> None:
    events = train(tiny(), tmp_path)
    assert [step for step, _ in losses(events)] == list(range(1, 9))
    first, second = rows(events)
    assert (first.epoch, first.step, second.epoch, second.step) == (1, 4, 2, 8)
    assert second.samples_seen == 64
    assert not [note for note in second.notes if "not used" in note], "the held-out pairs are used for validation"
    assert second.train_loss == pytest.approx(np.mean([loss for step, loss in losses(events) if step > 4]))
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in results] == [1, 2]
    assert results[1]["digits-zeroshot-val-top1"] == second.zeroshot_top1
    assert results[1]["image_to_text_R@1"] == second.image_to_text_r1
    assert "batch_size: 8\n" in (tmp_path / "params.txt").read_text()
    assert {path.name for path in (tmp_path / "checkpoints").glob("*.pt")} >= {"epoch_2.pt", "best.pt"}


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
def test_open_clip_loads_the_checkpoint(tmp_path: Path) -> None:
    train(tiny(epochs=1), tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(tmp_path / "tiny.json")
    model = open_clip.create_model("tiny", pretrained=str(tmp_path / "checkpoints" / "epoch_1.pt"))
    stored = load_weights(tmp_path, "epoch_1.pt")
    assert equal_weights({name: tensor for name, tensor in model.state_dict().items() if name in stored}, stored)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3, 4, 6, 8])
def test_continued_training_equals_an_unstopped_one(tmp_path: Path, steps: int) -> None:
    whole = train(tiny(), tmp_path / "whole")
    stopped = train(tiny(), tmp_path / "stopped", steps=steps)
    assert losses(stopped)[-1][0] == steps
    continued = train(tiny(), tmp_path / "stopped")
    assert losses(continued) == losses(whole), "the whole curve is reported again, bit for bit"
    assert [row.train_loss for row in rows(continued)] == [row.train_loss for row in rows(whole)]
    assert equal_weights(
        load_weights(tmp_path / "stopped", "epoch_2.pt"), load_weights(tmp_path / "whole", "epoch_2.pt")
    )
    assert (tmp_path / "stopped" / "results.jsonl").read_text() == (tmp_path / "whole" / "results.jsonl").read_text()


def draw_from_every_generator() -> list[float]:
    """Return numbers from every random generator."""
    return [random.random(), float(np.random.random()), *torch.rand(2).tolist()]


@pytest.mark.slow
def test_random_masks_depend_only_on_seed_step_and_process(tmp_path: Path) -> None:
    spec = tiny(patch_dropout=0.5, epochs=None, steps=4, overfit=True, val_frequency=0, zeroshot_frequency=0)
    drawn = {}
    for rank in (0, 1):
        trainer = Training(prepare(spec, Place(rank=rank), tmp_path / str(rank)), tmp_path / str(rank), "here")
        step_draws: list[list[float]] = []
        trainer.setup.model.register_forward_pre_hook(
            lambda *_, step_draws=step_draws: step_draws.append(draw_from_every_generator())
        )
        list(trainer.run())
        drawn[rank] = step_draws
    flat = [tuple(values) for step_draws in drawn.values() for values in step_draws]
    assert len(flat) == len(set(flat)) == 8, "4 steps of 2 processes"
    for step, rank in ((2, 1), (0, 0)):
        seed(spec.seed, step, rank)
        next_draw = draw_from_every_generator()
        assert next_draw == drawn[rank][step]


@pytest.mark.slow
def test_training_stopped_between_log_lines_equals_an_unstopped_one(tmp_path: Path) -> None:
    """Losses are read only for log lines, here at every third step, and for the checkpoint of the second step."""
    spec = tiny(patch_dropout=0.5, log_every_n_steps=3, save_every_steps=2)
    whole = train(spec, tmp_path / "whole")
    stopped = training(spec, tmp_path / "stopped")
    events = stopped.run()
    while stopped.progress.step < 3:
        next(events)
    shutil.copytree(tmp_path / "stopped", tmp_path / "killed")
    close(events)
    for name, step in (("stopped", 3), ("killed", 2)):
        assert checkpoints.load(tmp_path / name / "checkpoints" / "latest.pt")["vitals"]["done"]["step"] == step
        continued = train(spec, tmp_path / name)
        assert equal_weights(
            load_weights(tmp_path / name, "epoch_2.pt"), load_weights(tmp_path / "whole", "epoch_2.pt")
        )
        assert [row.train_loss for row in rows(continued)] == [row.train_loss for row in rows(whole)]


def test_loss_is_read_only_for_log_lines(tmp_path: Path) -> None:
    trainer = training(tiny(epochs=1, log_every_n_steps=3, val_frequency=0, zeroshot_frequency=0), tmp_path)
    read, original = [], trainer._meter.read

    def record_and_read(done: TrainingProgress) -> None:
        read.append(done.step)
        original(done)

    trainer._meter.read = record_and_read  # type: ignore[method-assign]
    list(trainer.run())
    assert read == [1, 4]


@pytest.mark.slow
def test_another_run_continues_from_the_folder_of_the_first(tmp_path: Path) -> None:
    whole = train(tiny(), tmp_path / "whole")
    train(tiny(), tmp_path / "first", steps=5)
    second = train(tiny(resume=str(tmp_path / "first")), tmp_path / "second")
    assert losses(second) == losses(whole)
    assert equal_weights(
        load_weights(tmp_path / "second", "epoch_2.pt"), load_weights(tmp_path / "whole", "epoch_2.pt")
    )


@pytest.mark.slow
def test_damaged_newest_checkpoint_is_skipped_with_a_note(tmp_path: Path) -> None:
    whole = train(tiny(keep_last=0), tmp_path / "whole")
    train(tiny(keep_last=0, epochs=2), tmp_path / "spoilt", steps=6)
    newest = tmp_path / "spoilt" / "checkpoints" / "latest.pt"
    damage(newest)
    continued = train(tiny(keep_last=0), tmp_path / "spoilt")
    assert losses(continued) == losses(whole)
    assert any("latest.pt" in note for note in rows(continued)[-1].notes)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [True, False])
def test_restart_at_step_0_after_an_earlier_attempt_has_a_note(tmp_path: Path, damaged: bool) -> None:
    train(tiny(epochs=1), tmp_path, steps=2)
    latest = tmp_path / "checkpoints" / "latest.pt"
    if damaged:
        damage(latest)
    else:  # as after a kill before the first checkpoint
        latest.unlink()
        checkpoints.manifest_path(latest).unlink()
    again = train(tiny(epochs=1), tmp_path)
    assert [step for step, _ in losses(again)] == [1, 2, 3, 4]
    assert [point.step for point in logs.history(tmp_path) if point.name == "train/loss"] == [1, 2, 3, 4]
    skipped = " (latest.pt)" if damaged else ""
    note = f"no checkpoint of the earlier attempt can be loaded{skipped}: training starts again at step 0"
    assert note in rows(again)[-1].notes


@pytest.mark.slow
def test_restart_at_step_0_on_another_host_has_a_note(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, 1)
    files.prepare(2)
    files.process(2).write_text("{}")  # as the supervisor of the second attempt leaves it; the first one is elsewhere
    note = "an earlier attempt was on another host or in another runs folder, and none of its checkpoints is here"
    assert f"{note}: training starts again at step 0" in rows(train(tiny(epochs=1), files.dir))[-1].notes
    files = RunFiles(tmp_path, 2)
    for attempt in (1, 2):  # the first one ended here before its first step
        files.prepare(attempt)
        files.process(attempt).write_text("{}")
    assert not [note for note in rows(train(tiny(epochs=1), files.dir))[-1].notes if "earlier" in note]


def test_first_start_at_step_0_has_no_note(tmp_path: Path) -> None:
    assert not [note for note in rows(train(tiny(epochs=1), tmp_path))[-1].notes if "step 0" in note]


def test_resuming_without_a_loadable_checkpoint_is_refused(tmp_path: Path) -> None:
    train(tiny(epochs=1), tmp_path / "first", steps=2)
    damage(tmp_path / "first" / "checkpoints" / "latest.pt")
    (tmp_path / "empty").mkdir()
    for name in ("first", "empty"):
        with pytest.raises(Refused, match=f"{name} has no checkpoint that can be loaded. Give another one"):
            train(tiny(epochs=1, resume=str(tmp_path / name)), tmp_path / "second")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 64}, "smaller than one step of 64"),
        ({"samples": 2, "batch_size": 2}, "1 pair to train on: .* one step of 2 pairs: give more, or hold out fewer"),
        ({"warmup": "100"}, "never reaches the learning rate"),
        (
            {"lr_scheduler": "const-cooldown", "epochs_cooldown": 3},
            "a cooldown of 12 steps is longer than the training of 8: take fewer epochs of cooldown",
        ),
        ({"classes": ("one", "two")}, "10 classes, but 2 names"),
    ],
)
def test_impossible_trainings_are_refused_before_they_start(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        training(tiny(**fields), tmp_path)


def test_steps_follow_the_request(tmp_path: Path) -> None:
    """Peak rates of 0.001 and, for the text tower, 0.004; 1 step of warm-up, then a cosine over 3 steps."""
    lr_text, cosine = 4e-3, [1.0, 1.0, 0.75, 0.25]
    trainer = training(
        tiny(epochs=1, warmup="1", lr_text=lr_text, precision="amp_bf16", val_fraction=0, samples=32), tmp_path
    )
    optimizer, norms, rates, autocasts = trainer.setup.optimizer, list[float](), set[tuple[float, ...]](), list[bool]()

    def record(*_: object) -> None:
        norms.append(float(sum((item.grad**2).sum() for item in trainer.setup.model.parameters())) ** 0.5)
        rates.add(
            tuple(group["lr"] for group in optimizer.param_groups if group["tower"] == "text" and group["params"])
        )

    optimizer.register_step_pre_hook(record)
    trainer.setup.model.register_forward_pre_hook(lambda *_: autocasts.append(torch.is_autocast_enabled("cpu")))
    events = list(trainer.run())
    values = {(event.name, event.step): event.value for event in events if isinstance(event, Metric)}
    assert autocasts == [True] * 4
    for step, factor in enumerate(cosine, 1):
        assert values["train/lr", step] == pytest.approx(1e-3 * factor)
        assert values["train/lr_text", step] == pytest.approx(lr_text * factor)
        assert values["train/grad_norm", step] == pytest.approx(norms[step - 1])
    assert sorted(rates) == [pytest.approx((lr_text * factor,) * 2) for factor in (0.25, 0.75, 1.0)]
    (row,) = rows(events)
    assert row.lr == pytest.approx(1e-3 * 0.25), "the rate of the last step"
    assert row.logit_scale == pytest.approx(np.exp(trainer.setup.model.logit_scale.item()))


def test_prepared_training_has_the_requested_rates_towers_and_teacher(tmp_path: Path) -> None:
    """Two steps of warm-up to a rate of 0.001; then, over the last 4 of 7 steps, a quadratic cooldown to 0.0001."""
    teacher = training(tiny(seed=5), tmp_path).setup.model
    torch.save(teacher.state_dict(), tmp_path / "teacher.pt")
    fields = {"lr_scheduler": "const-cooldown", "epochs_cooldown": 1, "lr_cooldown_power": 2, "lr_cooldown_end": 1e-4}
    fields |= {"loss": "distill", "distill_model": "config:tiny", "distill_pretrained": str(tmp_path / "teacher.pt")}
    found = training(tiny(**fields, warmup="2", epochs=None, steps=7, lock_image=True), tmp_path).setup
    rates = [5e-4, 1e-3, 1e-3, *(9e-4 * (1 - step / 4) ** 2 + 1e-4 for step in range(4))]
    assert [found.lr(step) for step in range(7)] == pytest.approx(rates)
    towers = {name.partition(".")[0] for name, item in found.model.named_parameters() if item.requires_grad}
    assert ("visual" in towers, "transformer" in towers) == (False, True)
    batch = next(found.batches.of(0))
    with torch.no_grad():
        wanted = teacher.eval()(*batch)["image_features"]
    torch.testing.assert_close(found.objective.beside(*batch)["dist_image_features"], wanted)
    assert not [note for note in found.made.notes if "teacher" in note]
    untrained = training(tiny(**fields | {"distill_pretrained": ""}), tmp_path).setup
    assert "the teacher config:tiny has random weights (set distill_pretrained)" in untrained.made.notes


def test_prepared_training_draws_as_requested(tmp_path: Path) -> None:
    again = training(tiny(resampled=True), tmp_path / "again").setup.batches._order.drawn(0)
    assert len(set(again)) < len(again), "32 of 32 pairs with replacement: all differ once in 5e12 draws"
    table = captioned(tmp_path)
    fields = {"data": f"digits::{table}", "samples": None, "data_weights": (1e-12, 1)}
    weighted = training(tiny(**fields), tmp_path / "weighted").setup
    drawn = [weighted.pairs.train.source(index) for index in weighted.batches._order.drawn(0)]
    assert drawn
    assert not [source for source in drawn if source.startswith("digits:")]


def test_seed_decides_pairs_split_order_weights_and_crops(tmp_path: Path) -> None:
    setups = [
        training(tiny(seed=seed, overfit=True), tmp_path / str(number)).setup for number, seed in enumerate("011")
    ]
    found = []
    for prepared in setups:
        train, val = (
            [pairs.source(index) for index in range(len(pairs))] for pairs in (prepared.pairs.train, prepared.pairs.val)
        )
        images, repeated = (next(prepared.batches.of(epoch))[0] for epoch in (0, 1))
        assert not torch.equal(images, repeated), "the same images are cropped anew in each epoch"
        order, weight = prepared.batches._order.drawn(0).tolist(), prepared.model.visual.proj.tolist()
        found.append([{*train, *val}, {*val}, order, weight, images.tolist()])
    assert found[1] == found[2]
    assert not [one for one, other in zip(found[0], found[1], strict=True) if one == other]
    table = {"data": str(captioned(tmp_path)), "samples": None}
    first, second = (setup.hold(tiny(**table, seed=seed), tmp_path / "same").val or () for seed in (0, 1))
    assert {first.source(index) for index in (0, 1)} != {second.source(index) for index in (0, 1)}


@pytest.mark.slow
def test_training_selects_its_gpu_before_the_first_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory belongs to the current device: the thread that fills it would use memory of the first GPU."""
    calls: list[str] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", calls.append)
    monkeypatch.setattr(setup.precision, "set_tf32", lambda device: None)  # it holds for the whole process
    monkeypatch.setattr(setup.weights, "create", lambda *_, **__: calls.append("model"))
    with pytest.raises(AttributeError):  # the replaced function returns no model
        prepare(tiny(device="cuda:1", precision="fp32"), Place(device="cuda:1"), tmp_path)
    assert calls == ["cuda:1", "model"]


def test_training_computes_in_tf32_after_an_evaluation_in_the_same_process() -> None:
    """Evaluations turn TF32 off, in convolutions too."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    with variants.switches(Numbers("float32"), training=True):  # restores what set_tf32 changes
        precision.set_tf32("cpu")
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
        precision.set_tf32("cuda:0")
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)


@pytest.mark.slow
def test_repeated_batch_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"overfit": True, "epochs": None, "steps": 60, "lr": 3e-3, "val_frequency": 0, "zeroshot_frequency": 0}
    trainer = training(tiny(**fields), tmp_path)
    # each step is an epoch, and its checkpoints would take longer than the step
    monkeypatch.setattr(trainer, "_save", lambda name: None)
    curve = losses(list(trainer.run()))
    assert len(curve) == 60
    assert curve[-1][1] < curve[0][1] / 2


@pytest.mark.slow
def test_single_class_has_no_zero_shot_accuracy(tmp_path: Path) -> None:
    """It would be 100 % for any model, and choose the best checkpoint."""
    table = captioned(tmp_path)
    head, *lines = table.read_text().splitlines()
    table.write_text("\n".join([f"{head},kind", *(f"{line},digit" for line in lines)]))
    fields = {"data": str(table), "samples": None, "batch_size": 4, "val_fraction": 0.5, "epochs": 1}
    (row,) = rows(train(tiny(**fields, csv_class_key="kind"), tmp_path / "run"))
    assert (row.zeroshot_top1, row.best_metric) == (None, "image_to_text_r1")
    with pytest.raises(Refused, match=f"zero-shot needs at least two classes, and {table} has only 'digit'"):
        training(tiny(zeroshot_data=str(table), csv_class_key="kind"), tmp_path / "other")


@pytest.mark.slow
def test_zero_shot_is_measured_on_the_class_column_of_a_table(tmp_path: Path) -> None:
    table = captioned(tmp_path)
    lines = table.read_text().splitlines()
    kinds = ["kind", *(("even", "odd")[index % 2] for index in range(len(lines) - 1))]
    table.write_text("\n".join(f"{line},{kind}" for line, kind in zip(lines, kinds, strict=True)))
    fields = {"data": str(table), "samples": None, "batch_size": 4, "val_fraction": 0.5, "epochs": 1}
    epochs = rows(train(tiny(**fields, csv_class_key="kind"), tmp_path / "run"))
    assert epochs[0].zeroshot_top1 is not None
    held = setup.hold(tiny(**fields, csv_class_key="kind"), tmp_path / "run")
    assert held.classes == ("even", "odd")
    assert not setup.hold(tiny(**fields), tmp_path / "other").classes


@pytest.mark.slow
def test_zero_shot_can_have_data_other_than_the_held_out_pairs(tmp_path: Path) -> None:
    table = captioned(tmp_path)
    digits = datasets.open_pairs("digits")
    for index in range(20):
        (tmp_path / "classes" / f"the_{digits.label(index)}").mkdir(parents=True, exist_ok=True)
        digits.image(index).save(tmp_path / "classes" / f"the_{digits.label(index)}" / f"{index}.png")
    fields = {"data": str(table), "samples": None, "batch_size": 4, "val_fraction": 0.5, "epochs": 1}
    fields |= {"zeroshot_data": str(tmp_path / "classes"), "templates": ("{}", "a {}")}
    row = rows(train(tiny(**fields), tmp_path / "run"))[-1]
    assert (row.best, row.best_metric) == (True, "zeroshot_top1")
    assert row.image_to_text_r1 is not None, "captions of the held-out pairs differ"
    assert (row.zeroshot_images, row.zeroshot_classes) == (20, len(list((tmp_path / "classes").iterdir())))
    assert row.val_pairs == len(setup.hold(tiny(**fields), tmp_path / "held").val or ())
    assert any(note.startswith("zero-shot accuracy is measured on 20 images") for note in row.notes)
    # the same accuracy by open_clip's classifier
    trained = training(tiny(**fields), tmp_path / "again").setup
    trained.model.load_state_dict(load_weights(tmp_path / "run", "best.pt"))
    trained.model.eval()
    folder = datasets.open_pairs(str(tmp_path / "classes"))
    prompts = ("{}".format, "a {}".format)
    classifier = open_clip.build_zero_shot_classifier(trained.model, trained.made.tokenizer, folder.classes, prompts)
    images = torch.stack([trained.made.preprocess_val(folder.image(index)) for index in range(20)])
    with torch.no_grad():
        logits = trained.model.encode_image(images, normalize=True) @ classifier  # type: ignore[operator]
    right = logits.argmax(1) == torch.tensor([folder.label(index) or 0 for index in range(20)])
    assert row.zeroshot_top1 == pytest.approx(right.float().mean().item())
    Path(folder.source(0)).write_bytes(b"broken since")
    list(validation.validate(trained, 1, Progress(done=0), last=True))
    assert len(trained.pairs.zeroshot or ()) == 19
    assert any(note.startswith("1 of 20 images left out as unreadable") for note in trained.pairs.notes)
    with pytest.raises(Refused, match="zero-shot needs a class for each image"):
        setup.hold(tiny(**{**fields, "zeroshot_data": str(table)}), tmp_path / "other")
    held = setup.hold(tiny(**fields | {"data": fields["zeroshot_data"]}), tmp_path / "shared")
    assert f"{len(held.train)} of 19 zero-shot images also used for training" in held.notes
    (tmp_path / "labelled.csv").write_text("filename,label\nclasses/the_0/0.png,zero\nclasses/the_1/1.png,one\n")
    held = setup.hold(tiny(**{**fields, "zeroshot_data": str(tmp_path / "labelled.csv")}), tmp_path / "found")
    assert held.classes == ("one", "zero"), "the column of classes is found by its common name"
    table.write_text(table.read_text().replace("filepath", "photo", 1).replace("title", "words", 1))
    fields |= {"csv_img_key": "photo", "csv_caption_key": "words", "zeroshot_data": str(tmp_path / "labelled.csv")}
    held = setup.hold(tiny(**fields), tmp_path / "columns")
    assert held.classes == ("one", "zero"), "its columns have other names than those of the training data"


@pytest.mark.slow
def test_captions_longer_than_the_context_are_counted(tmp_path: Path) -> None:
    table = captioned(tmp_path)
    fields = {"data": str(table), "samples": None, "batch_size": 4, "val_fraction": 0}
    longer = "cut at 8 tokens: set a larger text length (--context-length)"
    # start, scan, 0, of, the, digit, 0, end: 8 tokens, and 9 for the scans 10 and 11
    assert [note for note in rows(train(tiny(**fields), tmp_path / "run"))[-1].notes if "tokens" in note] == [
        f"2 of 12 captions {longer}"
    ]
    (tmp_path / "other").mkdir()
    notes = training(tiny(**fields, context_length=9), tmp_path / "other").setup.made.notes
    assert not [note for note in notes if "tokens" in note]
    table.write_text("filepath,title\n" + "\n".join(f"{index}.png,a{' b' * index}" for index in range(2001)))
    examined = [f"{index}.png" for index in range(0, 2001, 3)]
    pairs = datasets.open_pairs(str(table))
    built = training(tiny(**fields | {"data": "digits"}), tmp_path / "third").setup.made
    # a caption has as many tokens as letters, and two more
    counts = f"{len(examined) - 2} of {len(examined)} captions examined"
    assert setup.note_on_cut_captions(pairs, built) == f"{counts} {longer}"


@pytest.mark.slow
def test_broken_images_of_a_table_are_left_out(tmp_path: Path) -> None:
    table = captioned(tmp_path)
    (tmp_path / "3.png").write_bytes(b"no image")
    (tmp_path / "7.png").unlink()
    fields = {"data": str(table), "samples": None, "batch_size": 4, "val_fraction": 0.2, "epochs": 1}
    epochs = rows(train(tiny(**fields), tmp_path / "run"))
    assert epochs[0].samples_seen == 8
    note = next(note for note in epochs[0].notes if "unreadable" in note)
    assert note.startswith("2 of 12 images")
    assert "3.png" in note
    (tmp_path / "0.png").write_bytes(b"broken since")
    reloaded = setup.hold(tiny(**fields), tmp_path / "run")
    assert len(reloaded.train) + len(reloaded.val or ()) == 10, "a later attempt leaves out the same images"
    latest = tmp_path / "run" / "checkpoints" / "epoch_1.pt"
    for origin in (latest, tmp_path / "run"):
        resumed = setup.hold(tiny(**fields, resume=str(origin)), tmp_path / origin.name)
        assert len(resumed.train) + len(resumed.val or ()) == 10, "a run that resumes it does so too"
    (tmp_path / "val").mkdir()
    folders = write_digit_folders(tmp_path / "classes", zero=(0, 10), one=(1, 11))
    others = {"val_data": str(captioned(tmp_path / "val")), "zeroshot_data": str(folders)}
    before = setup.hold(tiny(**fields, **others), tmp_path / "before")
    for path in (tmp_path / "val" / "3.png", folders / "zero" / "0.png"):
        path.write_bytes(b"broken since")
    resumed = setup.hold(tiny(**fields, **others, resume=str(tmp_path / "before")), tmp_path / "after")
    assert len(resumed.val or ()) == len(before.val or ()) == 12
    assert len(resumed.zeroshot or ()) == len(before.zeroshot or ()) == 4


@pytest.mark.slow
def test_held_out_image_that_breaks_later_is_left_out_with_a_note(tmp_path: Path) -> None:
    table = captioned(tmp_path)
    spec = tiny(data=str(table), samples=None, batch_size=4, val_fraction=0.3, epochs=2)
    trainer = training(spec, tmp_path / "run")
    val = trainer.setup.pairs.val
    assert val is not None
    broken = val.source(1)
    Path(broken).write_bytes(b"broken since")
    first, second = rows(list(trainer.run()))
    unknown = "it is no image of a known format (JPEG, PNG, WEBP, BMP, GIF, TIFF)"
    left_out = f"1 of {len(val)} images left out as unreadable: {broken} ({unknown})"
    assert first.notes.count(left_out) == second.notes.count(left_out) == 1
    written = (tmp_path / "run" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["num_samples"] for line in written] == [len(val) - 1] * 2


@pytest.mark.slow
def test_progress_is_reported_between_log_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PROGRESS_S", 0)
    begun = time.perf_counter()
    events = train(tiny(log_every_n_steps=10, val_at_start=True), tmp_path)
    start, *epochs = rows(events)
    assert 0 < start.seconds < epochs[0].seconds < epochs[1].seconds < time.perf_counter() - begun
    assert all(0 < (row.data_share or 0) < 1 for row in epochs)
    progress = [event for event in events if isinstance(event, Progress)]
    assert list(dict.fromkeys(event.done for event in progress)) == list(range(9))
    estimates = {event.done: event.seconds_left for event in progress}
    assert estimates[5] == pytest.approx(3 * estimates[7]), "three steps are left after step 5, one after step 7"
    mean_s = {event.step: event.value for event in events if isinstance(event, Metric) and event.name == "train/step_s"}
    assert estimates[4] == pytest.approx(mean_s[1] + 3 * mean_s[4]), "the validation before step 1 is not repeated"


@pytest.mark.slow
def test_accumulated_batches_train_as_the_whole_batch(tmp_path: Path) -> None:
    fields = {"log_every_n_steps": 2, "val_every_steps": 2, "val_frequency": 2, "zeroshot_frequency": 2}
    whole = train(tiny(**fields), tmp_path / "whole")
    parts = train(tiny(batch_size=4, accum_freq=2, **fields), tmp_path / "parts")
    assert [step for step, _ in losses(parts)] == [step for step, _ in losses(whole)] == [1, 3, 4, 5, 7, 8]
    assert np.allclose([loss for _, loss in losses(parts)], [loss for _, loss in losses(whole)], atol=1e-5)
    assert [(row.epoch, row.step, row.samples_seen) for row in rows(parts)] == [
        (0, 2, 16),
        (1, 4, 32),
        (1, 6, 48),
        (2, 8, 64),
    ]
    measured = [row.clip_val_loss is not None and row.zeroshot_top1 is not None for row in rows(parts)]
    assert measured == [True, False, True, True], "within each epoch, and after every second"
    assert [row.train_loss for row in rows(parts)] == pytest.approx([row.train_loss for row in rows(whole)], abs=1e-5)
    values = {(event.name, event.step): event.value for event in parts if isinstance(event, Metric)}
    for step in (1, 8):
        assert values["train/samples_per_s", step] == pytest.approx(8 / values["train/step_s", step])


@pytest.mark.slow
def test_rows_have_the_share_of_the_cpus_that_others_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters are read once before the first step and once per row: others use 0.2 and 4 of 20 CPU-seconds."""
    times = iter([(0, 5, 9), (10, 20, 24.2), (20, 30, 38.2), (20, 30, 38.2)])
    roots: list[int] = []

    def snapshot(root: int) -> Usage:
        roots.append(root)
        return Usage(*next(times), cpus=2, switches=0)

    monkeypatch.setattr(contention, "snapshot", snapshot)
    calm, disturbed = rows(train(tiny(), tmp_path))
    assert (calm.neighbour_share, disturbed.neighbour_share) == (pytest.approx(0.01), pytest.approx(0.2))
    assert (meter.DISTURBED in calm.notes, meter.DISTURBED in disturbed.notes) == (False, True)
    meter.Meter(SimpleNamespace(place=Place(world_size=2)))  # type: ignore[arg-type]
    assert roots == [os.getpid()] * 3 + [os.getppid()], "torchrun is the parent of all processes of a training"


@pytest.mark.slow
def test_stopped_validation_of_an_epoch_is_repeated_on_continuing(tmp_path: Path) -> None:
    whole = train(tiny(), tmp_path / "whole")
    events, last = training(tiny(), tmp_path / "stopped").run(), 0
    for event in events:
        if isinstance(event, Progress) and last == 4:
            break  # the first progress after the last step of the epoch: it validates
        last = event.step if isinstance(event, Metric) and event.name == "train/memory_mb" else last
    next(events)
    close(events)
    continued = train(tiny(), tmp_path / "stopped")
    assert [row.image_to_text_r1 for row in rows(continued)] == [row.image_to_text_r1 for row in rows(whole)]
    assert (tmp_path / "stopped" / "results.jsonl").read_text() == (tmp_path / "whole" / "results.jsonl").read_text()
    metrics, expected = ([entry for entry in run if isinstance(entry, Metric)] for run in (continued, whole))
    names = [(entry.step, entry.name) for entry in metrics]
    assert len(names) == len(set(names)) == len(expected), "each point of a curve exists exactly once"


def test_nan_loss_ends_the_training_and_keeps_good_checkpoints(tmp_path: Path) -> None:
    train(tiny(epochs=1), tmp_path)
    diverging = training(tiny(epochs=2), tmp_path)
    events = diverging.run()
    next(events)
    with torch.no_grad():
        diverging.setup.model.visual.proj.fill_(float("nan"))  # type: ignore[union-attr,operator]
    with pytest.raises(Diverged, match=r"smaller learning rate than 0\.001"):
        list(events)
    saved = checkpoints.load_latest(tmp_path / "checkpoints")
    assert saved is not None
    assert all(torch.isfinite(tensor).all() for tensor in saved[0]["state_dict"].values())


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (2.0, float("inf"))])
def test_step_whose_loss_or_gradient_is_not_finite_is_named(tmp_path: Path, loss: float, norm: float) -> None:
    steps = meter.Meter(training(tiny(), tmp_path).setup)
    progress = TrainingProgress(step=7)
    for step in (5, 6, 7):
        values = (loss, norm) if step == 6 else (1.0, 1.0)
        result = StepResult({"loss": torch.tensor(values[0])}, torch.tensor(values[1]), torch.tensor(1.0))
        steps.add(progress, result, data_s=0, seconds=1)
    with pytest.raises(Diverged, match=f"step 6 has loss {loss:g} and gradient norm {norm:g}: take"):
        steps.read(progress)
    assert progress.loss_sum == 1.0, "step 5"


@pytest.mark.slow
def test_endless_overflow_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "MOST_OVERFLOWED", 6)
    fields: dict[str, object] = {"val_frequency": 0, "zeroshot_frequency": 0}
    once, always = training(tiny(**fields), tmp_path / "once"), training(tiny(**fields), tmp_path / "always")
    once.setup.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-30)  # one step is skipped
    assert len(losses(list(once.run()))) == 8
    assert once.setup.scaler.get_scale() < 2.0**127
    again = training(tiny(**fields), tmp_path / "again").setup
    again.scaler = torch.amp.GradScaler("cpu")
    resuming.restore(again, checkpoints.load(tmp_path / "once" / "checkpoints" / "epoch_2.pt"))
    assert again.scaler.state_dict() == once.setup.scaler.state_dict()
    always.setup.scaler = torch.amp.GradScaler("cpu")
    with torch.no_grad():
        always.setup.model.visual.proj.fill_(float("nan"))  # type: ignore[union-attr,operator]
    with pytest.raises(Diverged, match=r"step 6 has .* all of the last 6 steps have overflowed.* another precision"):
        list(always.run())


@pytest.mark.slow
def test_overflowed_step_is_left_out_of_the_loss_of_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = training(tiny(val_frequency=0, zeroshot_frequency=0), tmp_path)
    trainer.setup.scaler = torch.amp.GradScaler("cpu")
    step, values = loop.train_step, []

    def overflowing(*args: Any, **options: Any) -> StepResult:
        result = step(*args, **options)
        values.append(float("nan") if len(values) == 1 else result.losses["loss"].item())
        return StepResult({"loss": torch.tensor(values[-1])}, torch.tensor(1.0), torch.tensor(1.0))

    monkeypatch.setattr(loop, "train_step", overflowing)
    first, second = rows(list(trainer.run()))
    assert first.train_loss == pytest.approx((values[0] + values[2] + values[3]) / 3)
    assert second.train_loss == pytest.approx(sum(values[4:]) / 4)
    assert first.best
    assert second.best == (second.train_loss < first.train_loss)


@pytest.mark.slow
def test_stop_request_during_validation_ends_it_early(tmp_path: Path) -> None:
    whole, stop = train(tiny(epochs=1), tmp_path / "whole"), threading.Event()
    trainer = Training(prepare(tiny(epochs=1), Place(), tmp_path), tmp_path, "here", stopped=stop.is_set)
    events, ticks = [], 0
    for event in trainer.run():
        events.append(event)
        ticks += trainer.progress.step == 4 and isinstance(event, Progress)
        if ticks == 2:  # the first is the progress of the step
            stop.set()
    assert ticks == 3, "the last progress reports the end"
    assert not rows(events)
    assert (tmp_path / "checkpoints" / "latest.pt").is_file()
    continued = train(tiny(epochs=1), tmp_path)
    assert [row.image_to_text_r1 for row in rows(continued)] == [row.image_to_text_r1 for row in rows(whole)]


def write_digit_folders(folder: Path, **classes: tuple[int, ...]) -> Path:
    """Write class folders with the digits of these indices, and return their folder."""
    digits = datasets.open_pairs("digits")
    for name, indices in classes.items():
        (folder / name).mkdir(parents=True)
        for index in indices:
            digits.image(index).save(folder / name / f"{index}.png")
    return folder


def test_held_out_folders_use_their_own_classes(tmp_path: Path) -> None:
    learned = write_digit_folders(tmp_path / "train", one=(1, 11, 21), two=(2, 12, 22), zero=(0, 10, 20))
    held_out = write_digit_folders(tmp_path / "val", two=(32, 42), zero=(30, 36))
    spec = tiny(data=str(learned), val_data=str(held_out), samples=None, batch_size=4, epochs=1)
    assert setup.hold(spec, tmp_path / "run").classes == ("two", "zero")


def test_best_metric_that_is_never_measured_is_refused(tmp_path: Path) -> None:
    measured = {*validation.RETRIEVAL, validation.GENERATIVE, "train_loss", "zeroshot_top1", "zeroshot_top5"}
    assert {*METRICS} == measured, "METRICS in engine/specs/train.py lists every metric that can select the best"
    for name in ("zeroshot_top2", "zeroshot_top1"):
        frequency = 0 if name == "zeroshot_top1" else 1
        with pytest.raises(Refused, match="Use one of"):
            train(tiny(best_metric=name, zeroshot_frequency=frequency), tmp_path)


def test_top_5_accuracy_of_five_classes_is_refused_as_best_metric(tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data", dict.fromkeys("abcde", 4))
    ranks = [f"{way}_{name}" for way in ("image_to_text", "text_to_image") for name in ("mean_rank", "median_rank")]
    recalls = [f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)]
    with pytest.raises(Refused, match="'zeroshot_top5' is not measured") as refused:
        train(tiny(data=str(data), samples=None, best_metric="zeroshot_top5"), tmp_path / "run")
    choices = str(refused.value).partition("Use one of ")[2].split(", ")
    assert choices[:2] == ["zeroshot_top1", "image_to_text_r1"]
    assert sorted(choices) == sorted(["zeroshot_top1", *ranks, *recalls, "clip_val_loss", "train_loss"])


def test_image_that_breaks_later_is_replaced_by_the_next(tmp_path: Path) -> None:
    table = captioned(tmp_path)
    pairs = datasets.open_pairs(str(table))
    drawn = Drawn(pairs, lambda image: torch.tensor(np.asarray(image)), open_clip.SimpleTokenizer(context_length=8), 0)
    whole = drawn[0, 4]
    (tmp_path / "3.png").write_bytes(b"broken since")
    assert torch.equal(drawn[0, 3][0], whole[0])
