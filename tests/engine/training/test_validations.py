"""Validation before the first step and within epochs, and early stopping."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.datasets import captions_repeat
from engine.datasets.formats.digits import Scan
from engine.results import Metric, Progress
from engine.results.clip import mean_pairs_per_s
from engine.specs import Refused
from engine.specs.train import METRICS
from engine.training import checkpoints, loop, resuming
from engine.training.setup import hold
from engine.training.validation import best_score, metric_fields, score, validate
from tests.support.clip import train_row
from tests.support.training import CONSTANT_METRIC, captioned, close, losses, rows, tiny, train, training


def state(folder: Path, name: str) -> dict[str, object]:
    return {key: value.tolist() for key, value in checkpoints.load(folder / "checkpoints" / name)["state_dict"].items()}


def return_value(work: Iterator[object]) -> dict[str, float]:
    """Run a generator to its end, and return its value."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return dict(ended.value)


@pytest.mark.slow
def test_initial_weights_have_a_row(tmp_path: Path) -> None:
    few = {"val_fraction": 0.1}
    work = validate(training(tiny(**few), tmp_path / "before").setup, 0, Progress(done=0), last=True)
    wanted = metric_fields(return_value(work))
    events = train(tiny(epochs=1, val_at_start=True, **few), tmp_path / "run")
    first, second = rows(events)
    assert (first.epoch, first.step, first.train_loss, first.lr, first.checkpoint) == (0, 0, None, None, "")
    assert {name: getattr(first, name) for name in wanted} == wanted
    assert first.val_batch_size == second.val_batch_size == 4, "all held-out pairs; a training batch has 8"
    assert not first.best
    assert second.best
    assert [item.step for item in events if isinstance(item, Metric) and item.name == "val/clip_val_loss"] == [0, 4]
    train(tiny(epochs=1, **few), tmp_path / "other")
    assert state(tmp_path / "run", "epoch_1.pt") == state(tmp_path / "other", "epoch_1.pt"), (
        "validation does not change the steps"
    )


@pytest.mark.slow
def test_loader_processes_also_load_the_images_of_validations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (expected,) = rows(train(tiny(epochs=1), tmp_path / "one"))

    def image(scan: Scan, _roots: object) -> None:
        pytest.fail(f"image {scan.place} was loaded in the training process")

    prepared = training(tiny(epochs=1, workers=1), tmp_path / "two")
    monkeypatch.setattr(Scan, "image", image)
    (row,) = rows(list(prepared.run()))
    for name in ("train_loss", "clip_val_loss", "image_to_text_r1", "zeroshot_top1"):
        assert getattr(row, name) == getattr(expected, name) is not None


def test_zero_shot_is_not_measured_on_features_that_are_not_finite(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = training(tiny(val_fraction=0.1), tmp_path).setup
    setup.reader.made.model.visual.proj.data.fill_(math.nan)
    work = validate(setup, 0, Progress(done=0), last=True)
    assert not [name for name in return_value(work) if "zeroshot" in name]
    assert "4 of 4 images are not finite" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 3, 5, 6, 7, 8])
def test_mean_speed_is_that_of_the_logged_steps(tmp_path: Path, steps: int) -> None:
    events = train(tiny(val_every_steps=3, val_at_start=True, epochs=None, steps=steps), tmp_path)
    seconds = [event.value for event in events if isinstance(event, Metric) and event.name == "train/step_s"]
    assert len(seconds) == steps
    last = rows(events)[-1]
    assert last.seconds > sum(seconds) + 1e-6, "with validations"
    waits = [event.value for event in events if isinstance(event, Metric) and event.name == "train/data_s"]
    epoch = (steps - 1) // 4 * 4
    assert last.data_share == pytest.approx(sum(waits[epoch:]) / sum(seconds[epoch:]))
    assert mean_pairs_per_s(rows(events)) == pytest.approx(rows(events)[-1].samples_seen / sum(seconds))
    until_three = [row for row in rows(events) if row.step <= 3]  # a cancelled training ends with such rows
    if steps > 3:
        assert mean_pairs_per_s(until_three) == pytest.approx(until_three[-1].samples_seen / sum(seconds[:3]))
    assert mean_pairs_per_s([row for row in until_three if not row.step]) is None


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 3, 7])
def test_continued_training_with_validations_equals_an_unstopped_one(tmp_path: Path, steps: int) -> None:
    spec = tiny(val_every_steps=3, val_at_start=True, patch_dropout=0.5, save_frequency=0, keep_last=0)
    whole = train(spec, tmp_path / "whole")
    assert [(row.epoch, row.step) for row in rows(whole)] == [(0, 0), (0, 3), (1, 4), (1, 6), (2, 8)]
    plain = train(tiny(patch_dropout=0.5), tmp_path / "plain")
    assert losses(plain) == losses(whole)
    train(spec, tmp_path / "stopped", steps=steps)
    continued = train(spec, tmp_path / "stopped")
    pairs = zip(rows(continued), rows(whole), strict=True)
    differing = {name for one, other in pairs for name, value in one if value != getattr(other, name)}
    assert differing <= {"seconds", "samples_per_s", "data_share", "neighbour_share", "peak_memory_mb", "notes"}
    assert (tmp_path / "stopped" / "results.jsonl").read_text() == (tmp_path / "whole" / "results.jsonl").read_text()
    assert state(tmp_path / "stopped", "epoch_2.pt") == state(tmp_path / "whole", "epoch_2.pt")


@pytest.mark.slow
def test_validation_stopped_within_an_epoch_is_repeated_on_continuing(tmp_path: Path) -> None:
    spec = tiny(val_every_steps=3, epochs=1, best_metric="train_loss")
    events, after = training(spec, tmp_path).run(), 0
    for event in events:
        after += isinstance(event, Progress) and event.done == 3
        if after == 2:  # the first is the progress of the step
            break
    close(events)
    found = [(row.step, row.best) for row in rows(train(spec, tmp_path))]
    assert found == [(3, False), (4, True)], "the loss of a part of an epoch is not the best"


@pytest.mark.slow
def test_constant_metric_stops_early_and_a_larger_patience_continues(tmp_path: Path) -> None:
    unstopped = train(tiny(**CONSTANT_METRIC), tmp_path / "never")
    early = train(tiny(**CONSTANT_METRIC, patience=2), tmp_path / "early")
    assert [(row.epoch, row.best) for row in rows(early)] == [(1, True), (2, False), (3, False)]
    assert rows(early)[-1].checkpoint == "checkpoints/epoch_3.pt"
    assert early[-1] == Progress(done=12, total=12)
    note = (
        "stopped early at step 12 of 24: image_to_text_r1 was not better in 2 validations in a row. An equal value "
        "with a lower held-out loss becomes the best model, but does not count as better"
    )
    assert note in rows(early)[-1].notes
    assert [row.epoch for row in rows(train(tiny(**CONSTANT_METRIC, patience=1), tmp_path / "first"))] == [1, 2]
    assert len(rows(train(tiny(**CONSTANT_METRIC, patience=2), tmp_path / "early"))) == 3, (
        "a later attempt has nothing to do"
    )
    with pytest.raises(Refused, match="stopped early: its last 2 validations"):
        train(tiny(**CONSTANT_METRIC, patience=2, resume=str(tmp_path / "early")), tmp_path / "refused")
    longer = train(tiny(**CONSTANT_METRIC, resume=str(tmp_path / "early")), tmp_path / "longer")
    assert losses(longer) == losses(unstopped)


@pytest.mark.slow
@pytest.mark.parametrize(("recent_s", "written"), [(600, 1), (-1, 4)])
def test_young_checkpoint_is_not_written_again_before_a_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recent_s: float, written: int
) -> None:
    """latest.pt is written before the first of four validations, or before each. Each epoch has its own file."""
    monkeypatch.setattr(loop, "RECENT_S", recent_s)
    names, real = list[str](), checkpoints.save
    monkeypatch.setattr(
        checkpoints, "save", lambda folder, name, *rest, **k: names.append(name) or real(folder, name, *rest, **k)
    )
    train(tiny(overfit=True, epochs=4), tmp_path)
    assert names.count("latest.pt") == written
    assert [name for name in names if name.startswith("epoch")] == [f"epoch_{number}.pt" for number in (1, 2, 3, 4)]


def test_note_on_an_early_stop_by_the_loss_omits_equal_values() -> None:
    note = resuming.note_on_early_stop(resuming.TrainingProgress(step=1200, stale=1), 4000, "clip_val_loss")
    assert note == "stopped early at step 1,200 of 4,000: clip_val_loss was not better in 1 validation in a row"


def test_validation_within_epochs_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="val_every_steps has nothing to measure"):
        train(tiny(val_every_steps=3, val_fraction=0), tmp_path)


def test_equal_recall_is_decided_by_the_held_out_loss() -> None:
    scores = [
        score("image_to_text_r1", train_row(1, image_to_text_r1=recall, clip_val_loss=loss))
        for recall, loss in ((0.4, 1.0), (0.5, None), (0.5, 2.0), (0.5, 1.9))
    ]
    assert scores == [(0.4, -1.0), (0.5, -math.inf), (0.5, -2.0), (0.5, -1.9)]
    assert scores == sorted(scores, key=lambda pair: pair or ())
    assert score("image_to_text_r1", train_row(1, image_to_text_r1=None)) is None
    chosen = [train_row(epoch, image_to_text_r1=0.1 * epoch, clip_val_loss=1.0, best=epoch < 3) for epoch in (1, 2, 3)]
    assert best_score("image_to_text_r1", [row.model_dump(mode="json") for row in chosen]) == (0.2, -1.0)


@pytest.mark.parametrize("metric", METRICS)
def test_only_losses_and_ranks_are_better_if_smaller(metric: str) -> None:
    low, high = (score(metric, train_row(1, **{"clip_val_loss": 1.0, metric: value})) or () for value in (0.2, 0.9))
    assert (low > high) == metric.endswith(("loss", "mean_rank", "median_rank"))


@pytest.mark.slow
def test_held_out_loss_chooses_the_best_epoch_if_captions_repeat(tmp_path: Path) -> None:
    table = captioned(tmp_path, 32, "an {parity} digit")
    classes = {"classes": ("even", "odd")}  # names without a class for each image measure no zero-shot accuracy
    spec = tiny(data=str(table), epochs=3, **classes)
    epochs = rows(train(spec, tmp_path / "run"))
    assert any(captions_repeat(row.notes) for row in epochs)
    assert {row.best_metric for row in epochs} == {"clip_val_loss"}
    held_out = [row.clip_val_loss or math.inf for row in epochs]
    assert [row.best for row in epochs] == [loss < min([math.inf, *held_out[:n]]) for n, loss in enumerate(held_out)]


@pytest.mark.parametrize(
    ("column", "fields", "reason"),
    [
        ("digit", {"csv_class_key": "class"}, "all images are of 'digit'"),
        (
            "",
            {"classes": ("even", "odd")},
            "images have no class: give class folders, the class column of a CSV (csv_class_key)",
        ),
        ("", {"templates": ("a {}",)}, "images have no class"),
    ],
)
def test_asked_zero_shot_accuracy_that_is_not_measured_is_noted(
    tmp_path: Path, column: str, fields: dict[str, object], reason: str
) -> None:
    """With one class, accuracy is no measure either, so repeated captions still get their warning."""
    table = captioned(tmp_path, 32, "an {parity} digit")
    first, *lines = table.read_text().splitlines()
    table.write_text("\n".join([f"{first},class", *(f"{line},{column or 'x'}" for line in lines)]))
    spec = tiny(data=str(table), **fields)
    held = hold(spec, tmp_path / "run")
    assert any(note.startswith(f"zero-shot accuracy is not measured: {reason}") for note in held.notes)
    assert captions_repeat(held.notes)
    unasked = hold(tiny(data=str(table)), tmp_path / "run")
    assert not any("not measured" in note for note in unasked.notes)


@pytest.mark.slow
def test_continuing_with_another_metric_compares_by_the_new_one(tmp_path: Path) -> None:
    first = train(tiny(epochs=1), tmp_path / "first")
    path = tmp_path / "first" / "checkpoints" / "epoch_1.pt"
    state = checkpoints.load(path)
    fields = {"epoch": 1, "step": 4, "spec": tiny(epochs=1).model_dump(mode="json")}
    state["vitals"]["done"]["best"] = (1.0, -0.5)  # as older versions wrote it
    checkpoints.save(path.parent, path.name, state, about=fields)
    first_row, second_row = rows(train(tiny(epochs=2, zeroshot_frequency=0), tmp_path / "first"))
    assert first_row == rows(first)[0]
    assert (first_row.best_metric, second_row.best_metric) == ("zeroshot_top1", "image_to_text_r1")
    assert second_row.zeroshot_top1 is None
    before, after = ((row.image_to_text_r1 or 0, -(row.clip_val_loss or math.inf)) for row in (first_row, second_row))
    assert second_row.best == (after > before)
