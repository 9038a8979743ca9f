"""What a training that is gone on with may be asked for otherwise, and what not."""

import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engine import atomic
from engine.results import Event, Metric, Progress
from engine.specs import Refused
from engine.training import done, logs
from tests.support.training import losses, rows, tiny, train


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that was stopped after 5 of 8 steps."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    train(tiny(), folder, steps=5)
    return folder


def go_on(stopped: Path, folder: Path, **fields: object) -> list[Event]:
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
        ({"wd": 0.1}, "wd was 0.2 and is now 0.1"),  # what an optimizer has kept would silently win
    ],
)
def test_another_training_is_no_continuation(
    stopped: Path, tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(Refused, match=f"latest.pt cannot be continued exactly: {message}"):
        go_on(stopped, tmp_path, **fields)


def test_a_longer_training_goes_on_and_says_that_it_is_longer(stopped: Path, tmp_path: Path) -> None:
    events = go_on(stopped, tmp_path, epochs=3, log_every_n_steps=2, keep_last=0)
    assert [row.step for row in rows(events)] == [4, 8, 12]
    assert [note for note in rows(events)[-1].notes if note.startswith("continued with")] == [
        "continued with epochs 3 instead of 2"
    ]


def test_the_same_data_are_the_same_however_written(tmp_path: Path) -> None:
    before = tiny(data=str(tmp_path / "pairs.csv"), resume="").model_dump(mode="json")
    assert done.changes(tiny(data=f"{tmp_path}/./pairs.csv"), tmp_path / "latest.pt", before) == []
    with pytest.raises(Refused, match="data was"):
        done.changes(tiny(data=str(tmp_path / "others.csv")), tmp_path / "latest.pt", before)


def test_what_an_older_manifest_does_not_tell_is_no_change(tmp_path: Path) -> None:
    assert done.changes(tiny(), tmp_path / "latest.pt", {"seed": 0, "a_flag_of_old": 3}) == []


@pytest.mark.slow
def test_nothing_left_to_train_is_said(tmp_path: Path) -> None:
    whole = train(tiny(), tmp_path / "whole")
    for fields in ({}, {"epochs": 1}):
        with pytest.raises(Refused, match=r"best\.pt has 8 steps behind it and \d are asked for, so nothing is left"):
            go_on(tmp_path / "whole", tmp_path / "second", **fields)
    again = train(tiny(), tmp_path / "whole")  # a later attempt of the same run only has to tell what was found
    assert losses(again) == losses(whole)
    assert len(rows(again)) == 2


def test_curves_are_carried_over_whole_or_not_at_all(
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


def test_tensorboard_shows_each_step_once_after_a_kill(tmp_path: Path) -> None:
    spec = tiny(tensorboard=True)
    train(spec, tmp_path, steps=6)
    (tmp_path / "checkpoints" / "latest.pt").unlink()  # as if killed: the newest checkpoint is that of step 4
    assert losses(train(spec, tmp_path))
    board = EventAccumulator(str(tmp_path / logs.TENSORBOARD)).Reload()
    assert [event.step for event in board.Scalars("train/loss")] == list(range(1, 9))


def test_a_resumed_training_tells_how_far_it_is_before_its_first_line_of_the_log(tmp_path: Path) -> None:
    spec = tiny(log_every_n_steps=3)  # lines at steps 1, 4, 5 and 8
    train(spec, tmp_path, steps=4)
    continued = train(spec, tmp_path)
    news = next(index for index, event in enumerate(continued) if isinstance(event, Metric) and event.step > 4)
    assert {event.done for event in continued[:news] if isinstance(event, Progress)} == {4}
