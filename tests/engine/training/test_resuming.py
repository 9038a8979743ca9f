"""A training is resumed with the same data, and only fields that do not make it another training may change."""

import shutil
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engine import atomic
from engine.results import Event, Metric, Progress
from engine.specs import Refused
from engine.training import checkpoints, logs, resuming
from engine.training.distributed import Place
from engine.training.loop import Training
from engine.training.setup import prepare
from tests.support.training import captioned, losses, rows, tiny, train, training


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training that was stopped after 5 of 8 steps."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    train(tiny(), folder, steps=5)
    return folder


def resume(stopped: Path, folder: Path, **fields: object) -> list[Event]:
    return train(tiny(resume=str(stopped), **fields), folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": 1}, "seed was 0 and is now 1"),
        ({"val_fraction": 0.1}, "val_fraction was 0.2 and is now 0.1"),
        ({"samples": 80}, "samples was 40 and is now 80"),
        ({"data": "synthetic"}, "data was digits and is now synthetic"),
        ({"batch_size": 4, "accum_freq": 2}, "batch_size was 8 and is now 4, accum_freq was 1 and is now 2"),
        ({"overfit": True}, "overfit was False and is now True"),
        ({"image_size": 48}, "image_size was the default and is now 48"),
        ({"model": "digits-clip"}, "model was config:tiny and is now digits-clip"),
        ({"wd": 0.1}, "wd was 0.2 and is now 0.1"),  # the value in the state of the optimizer would silently win
    ],
)
def test_changes_to_the_training_are_refused(
    stopped: Path, tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(Refused, match=f"latest.pt cannot be continued exactly: {message}"):
        resume(stopped, tmp_path, **fields)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["fewer", "captions", "held_out"])
def test_changed_data_are_refused(tmp_path: Path, change: str) -> None:
    """The split and the schedule depend on the data, so held-out pairs would be trained on."""
    (tmp_path / "val").mkdir()
    data, val_data = captioned(tmp_path, 24), captioned(tmp_path / "val", 8)
    fields = {"data": str(data), "val_data": str(val_data) if change == "held_out" else "", "samples": None}
    train(tiny(**fields), tmp_path / "first", steps=1)
    resumed = tiny(**fields, resume=str(tmp_path / "first"))
    assert rows(train(resumed, tmp_path / "unchanged"))
    if change == "held_out":
        captioned(tmp_path / "val", 9)
    else:
        captioned(tmp_path, *((20,) if change == "fewer" else (24, "photo {index} of a {digit}")))
    messages = {
        "fewer": r"it gave 19 pairs to train on and 5 held out, and now gives 16 pairs to train on and 4 held out",
        "captions": r"now gives 19 pairs to train on and 5 held out, but different ones\. Restore the data",
        "held_out": r"it gave 24 pairs to train on and 8 held out, and now gives 24 pairs to train on and 9 held out",
    }
    with pytest.raises(
        Refused, match=rf"cannot be continued exactly, because {data} has changed: .*{messages[change]}"
    ):
        train(resumed, tmp_path / "changed")


def test_longer_training_continues_with_a_note(stopped: Path, tmp_path: Path) -> None:
    events = resume(stopped, tmp_path, epochs=3, log_every_n_steps=2, keep_last=0, save_frequency=2)
    assert [row.step for row in rows(events)] == [4, 8, 12]
    assert [row.checkpoint for row in rows(events)[1:]] == ["checkpoints/epoch_2.pt", "checkpoints/epoch_3.pt"]
    assert [note for note in rows(events)[-1].notes if note.startswith("continued with")] == [
        "continued with epochs 3 instead of 2"
    ]


def test_fields_that_change_the_zero_shot_task_are_noted(tmp_path: Path) -> None:
    """Accuracies before and after such a change are those of different tasks."""
    before = tiny().model_dump(mode="json")
    changed = tiny(zeroshot_data=str(tmp_path), templates=("a {}",), classes=("a", "b"))
    notes = resuming.changes(changed, tmp_path / "latest.pt", before)
    assert sorted(note.split()[2] for note in notes) == ["classes", "templates", "zeroshot_data"]


@pytest.mark.slow
def test_earlier_epochs_are_not_the_best_of_another_zero_shot_task(stopped: Path, tmp_path: Path) -> None:
    same = rows(resume(stopped, tmp_path / "same"))
    assert same[0].best
    changed = rows(resume(stopped, tmp_path / "changed", templates=("scan {}",)))
    assert [row.best for row in changed] == [False, True]
    assert any(note.startswith("earlier epochs are not compared for the best") for note in changed[-1].notes)
    progress, before = resuming.TrainingProgress(stale=2), tiny().model_dump(mode="json")
    assert resuming.forget_best(progress, tiny(templates=("scan {}",)), before, "clip_val_loss") == []
    assert progress.stale == 2, "the loss does not depend on the templates"
    assert resuming.forget_best(progress, tiny(templates=("scan {}",)), before, "zeroshot_top1")
    assert progress.stale == 0, "the patience begins anew"


@pytest.mark.parametrize("name", ["", "checkpoints/latest.pt", "checkpoints/best.pt"])
def test_best_model_so_far_is_kept_by_the_training_that_continues(stopped: Path, tmp_path: Path, name: str) -> None:
    """Otherwise no file holds the epoch that its rows call the best, and another one is evaluated as the best."""
    spec = tiny(resume=str(stopped / name))
    events = list(Training(prepare(spec, Place(), tmp_path), tmp_path, "here", stopped=lambda: True).run())
    assert [row.best for row in rows(events)] == [True]
    ours, theirs = (checkpoints.load(folder / "checkpoints" / "best.pt") for folder in (tmp_path, stopped))
    assert ours["vitals"]["done"]["step"] == 4
    assert all(torch.equal(ours["state_dict"][key], value) for key, value in theirs["state_dict"].items())


def test_attempt_killed_while_it_copies_the_best_model_loses_no_curves(stopped: Path, tmp_path: Path) -> None:
    def killed(*_: object) -> list[str]:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resuming, "carry_best", killed)
        with pytest.raises(KeyboardInterrupt):
            resume(stopped, tmp_path)
    assert [step for step, _ in losses(resume(stopped, tmp_path))] == list(range(1, 9))


def test_epoch_whose_model_is_lost_is_not_the_best(stopped: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stopped, tmp_path / "stopped")
    (folder / "checkpoints" / "best.pt").unlink()
    continued = rows(resume(folder, tmp_path / "continued"))
    assert [row.best for row in continued] == [False, True]
    assert any("the best of them, of epoch 1, is not beside latest.pt" in note for note in continued[-1].notes)


def test_same_data_in_another_notation_are_no_change(tmp_path: Path) -> None:
    before = tiny(data=str(tmp_path / "pairs.csv"), resume="").model_dump(mode="json")
    assert resuming.changes(tiny(data=f"{tmp_path}/./pairs.csv"), tmp_path / "latest.pt", before) == []
    with pytest.raises(Refused, match="data was"):
        resuming.changes(tiny(data=str(tmp_path / "others.csv")), tmp_path / "latest.pt", before)


def test_fields_missing_from_an_older_manifest_are_no_change(tmp_path: Path) -> None:
    assert resuming.changes(tiny(), tmp_path / "latest.pt", {"seed": 0, "a_flag_of_old": 3}) == []
    assert resuming.changes(tiny(image_size=48), tmp_path / "latest.pt", {"image_size": 48}) == [], "a number before"


def test_long_values_are_shortened_in_the_refusal(tmp_path: Path) -> None:
    before = tiny().model_dump(mode="json") | {"configs": {"tiny": {"embed_dim": "1" * 100}}}
    with pytest.raises(Refused, match=r"configs was .{97}\.\.\. and is now .{97}\.\.\.\. Ask"):
        resuming.changes(tiny(), tmp_path / "latest.pt", before)


@pytest.mark.slow
def test_checkpoint_of_open_clips_own_training_is_continued_after_its_last_epoch(tmp_path: Path) -> None:
    """It has no manifest and none of our progress, and its names begin with `module.` if DDP has trained it."""
    whole = train(tiny(save_frequency=1, keep_last=0), tmp_path / "whole")
    state = checkpoints.load(tmp_path / "whole" / "checkpoints" / "epoch_1.pt")
    del state["vitals"]
    state["state_dict"] = {f"module.{name}": value for name, value in state["state_dict"].items()}
    torch.save(state, tmp_path / "epoch_1.pt")
    continued = train(tiny(resume=str(tmp_path / "epoch_1.pt")), tmp_path / "continued")
    assert losses(continued) == losses(whole)[4:]
    (row,) = rows(continued)
    assert (row.epoch, row.step, row.samples_seen) == (2, 8, 64)
    assert any(note.startswith("the checkpoint is from open_clip's own training") for note in row.notes)
    accumulating = training(tiny(batch_size=4, accum_freq=2), tmp_path / "two").setup
    accumulating.place = Place(world_size=2)
    progress, _ = resuming.restore(accumulating, state)
    assert (progress.step, progress.samples) == (4, 64), "4 steps of 2 batches of 4 pairs in 2 processes"
    torch.save({"state_dict": state["state_dict"], "epoch": 1}, tmp_path / "weights.pt")
    with pytest.raises(Refused, match="only weights, so no training can continue from it: use --pretrained instead"):
        train(tiny(resume=str(tmp_path / "weights.pt")), tmp_path / "refused")
    with pytest.raises(Refused, match="of open_clip's own training, the file instead of the folder"):
        train(tiny(resume=str(tmp_path)), tmp_path / "refused")
    other_optimizer = state | {"optimizer": {"state": {}, "param_groups": []}}
    with pytest.raises(Refused, match=r"is of another training: .* different number of parameter groups"):
        resuming.restore(accumulating, other_optimizer)
    del state["state_dict"]["module.visual.proj"]
    with pytest.raises(Refused, match=r'is of another training: Missing key\(s\) in state_dict: "visual.proj"'):
        resuming.restore(accumulating, state)


@pytest.mark.parametrize("name", ["", "checkpoints/latest.pt"])
def test_run_stopped_before_its_next_step_has_its_own_checkpoint_and_curves(
    stopped: Path, tmp_path: Path, name: str
) -> None:
    spec = tiny(resume=str(stopped / name))
    assert losses(list(Training(prepare(spec, Place(), tmp_path), tmp_path, "here", stopped=lambda: True).run()))
    state, _, _ = checkpoints.load_latest(tmp_path / "checkpoints") or ({}, None, None)
    assert state["vitals"]["done"]["step"] == 5
    assert [point.step for point in logs.history(tmp_path) if point.name == "train/loss"] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_validation_of_the_last_step_is_left_to_do(tmp_path: Path) -> None:
    train(tiny(epochs=1), tmp_path / "stopped", steps=4)
    assert [row.step for row in rows(resume(tmp_path / "stopped", tmp_path / "second", epochs=1))] == [4]


@pytest.mark.slow
def test_nothing_left_to_train_is_refused(tmp_path: Path) -> None:
    whole = train(tiny(), tmp_path / "whole")
    for fields in ({}, {"epochs": 1}):
        with pytest.raises(Refused, match=r"best\.pt has 8 steps behind it and \d are asked for, so nothing is left"):
            resume(tmp_path / "whole", tmp_path / "second", **fields)
    again = train(tiny(), tmp_path / "whole")  # a later attempt of the same run only reports the results
    assert losses(again) == losses(whole)
    assert len(rows(again)) == 2


def test_curves_are_copied_completely_or_not_at_all(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(stopped, tmp_path / "stopped")
    before = (folder / logs.HISTORY).read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        logs.carry(folder, folder, 5, 1, validated=True)
    assert (folder / logs.HISTORY).read_text() == before
    assert not list(atomic.leftovers(folder))


@pytest.mark.slow
def test_tensorboard_shows_each_step_once_after_a_kill(tmp_path: Path) -> None:
    spec = tiny(tensorboard=True)
    train(spec, tmp_path, steps=6)
    (tmp_path / "checkpoints" / "latest.pt").unlink()  # as if killed: the newest checkpoint is that of step 4
    assert losses(train(spec, tmp_path))
    board = EventAccumulator(str(tmp_path / logs.TENSORBOARD)).Reload()
    assert [event.step for event in board.Scalars("train/loss")] == list(range(1, 9))


@pytest.mark.slow
def test_resumed_training_reports_progress_before_its_first_log_line(tmp_path: Path) -> None:
    spec = tiny(log_every_n_steps=3)  # lines at steps 1, 4, 5 and 8
    train(spec, tmp_path, steps=4)
    continued = train(spec, tmp_path)
    first_metric = next(index for index, event in enumerate(continued) if isinstance(event, Metric) and event.step > 4)
    assert {event.done for event in continued[:first_metric] if isinstance(event, Progress)} == {4}
