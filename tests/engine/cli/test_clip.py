"""The commands `train`, `evaluate`, `search` and `resume`, sweeps, and the export of models."""

import csv
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from engine.__main__ import main
from engine.cli.here import EndedBadly, conclude
from engine.jobs.lifecycle import fingerprint
from engine.results import Device, EvaluateRow, Machine, TrainRow
from engine.settings import Settings
from engine.specs import Spec, TrainSpec
from engine.specs.evaluate import EvaluateSpec
from engine.store import State, Store
from engine.store.files import RunFiles
from engine.tasks import evaluate
from tests.support.clip import queue_evaluate, queue_train, record, train_row, write_checkpoints
from tests.support.training import TINY


@pytest.mark.parametrize(("command", "spec"), [("train", TrainSpec), ("evaluate", EvaluateSpec)])
@pytest.mark.parametrize("before", [[], ["submit"]])
def test_help_lists_every_field(
    command: str, spec: type[Spec], before: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*before, command, "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    for name in set(spec.model_fields) - {"configs"}:
        assert f"--{name.replace('_', '-')}" in shown
    positions = [
        shown.index(f"  --{flag} ") for flag in (["data", "model", "image-mean", "lr"] if command == "train" else [])
    ]
    assert positions == sorted(positions), "data and model come first"
    assert "tuple[" not in shown
    for unwanted in ("(default: )", "(default: ())", "(default: None)", "(default factory"):
        assert unwanted not in shown


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["train", "--epochs", "2", "--steps", "5"], "give epochs or steps, not both"),
        (["submit", "train", "--data", "::"], "--data: must be a path or a name, or several separated by ::"),
        (["submit", "evaluate", "--more-data", " :: "], "--more-data: must be a path or a name"),
        (["train", "--data", "/nowhere/pairs.csv"], "nothing can be read at '/nowhere/pairs.csv'"),
        (["train", "--data", "/nowhere/*.tar"], "Several shards are written as '{00..07}.tar', or give their folder."),
        (["evaluate", "--model", "99"], "there is no run 99"),
        (["evaluate", "--model", f"{2**63}"], f"there is no run {2**63}"),
        (["resume", f"{2**63}"], f"there is no run {2**63}"),
        (["evaluate", "--tasks", "guessing"], "tasks: must be 'retrieval'"),
        (["resume", "/nowhere"], "neither a checkpoint with its manifest"),
        (["resume", "run7"], "nor a folder of such checkpoints, nor the id of a run\n"),
        (["search", "99", "a seven"], "there is no run 99"),
        (["search", "1", "a seven", "--top", "0"], "top: must be at least 1"),
    ],
)
def test_bad_usage_prints_the_reason_and_exits_with_2(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: list[str], answer: str
) -> None:
    assert main(arguments) == 2
    assert answer in capsys.readouterr().err
    assert store.runs() == []


@pytest.mark.parametrize(
    ("flag", "file", "content", "answer"),
    [
        (
            "classes",
            "names.json",
            '["a {} cat", "a {} dog"]',
            "is a JSON file. Use a text file with one entry per line",
        ),
        (
            "templates",
            "names.JSON",
            '["a {} cat", "a {} dog"]',
            "is a JSON file. Use a text file with one entry per line",
        ),
        ("classes", "names.txt", "\n", "is empty. Use one entry per line"),
    ],
)
def test_file_without_an_entry_per_line_is_refused(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, file: str, content: str, answer: str
) -> None:
    names = tmp_path / file
    names.write_text(content)
    assert main(["evaluate", f"--{flag}", str(names)]) == 2
    assert f"{names} {answer}" in capsys.readouterr().err
    assert store.runs() == []


def test_several_files_of_class_names_are_all_read(
    store: Store, no_scheduler: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, lines in {"a.txt": "cat\ndog\n", "b.txt": "bird\n"}.items():
        (tmp_path / name).write_text(lines)
    command = ["submit", "evaluate"]
    for value in (tmp_path / "a.txt", "fish", tmp_path / "b.txt"):
        command += ["--classes", str(value)]
    assert main(command) == 0
    (run,) = store.runs()
    assert isinstance(run.spec, EvaluateSpec)
    assert run.spec.classes == ("cat", "dog", "fish", "bird")
    assert main([*command, "--classes", str(tmp_path / "c.txt")]) == 2
    assert f"no file at {tmp_path / 'c.txt'}" in capsys.readouterr().err


def test_problem_of_a_configuration_names_no_flag_that_cannot_be_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text(json.dumps(TINY | {"vision_cfg": 5}))
    assert main(["submit", "evaluate", "--model", str(tmp_path / "bad.json")]) == 2
    assert capsys.readouterr().err == "error: configs: bad: vision_cfg is 5, but must be an object\n"


def test_student_and_teacher_may_both_be_files(store: Store, no_scheduler: None, tmp_path: Path) -> None:
    for name in ("small", "large"):
        (tmp_path / f"{name}.json").write_text(json.dumps(TINY))
    files = ["--model", str(tmp_path / "small.json"), "--distill-model", str(tmp_path / "large.json")]
    assert main(["submit", "train", "--loss", "distill", *files]) == 0
    spec = store.runs()[0].spec
    assert isinstance(spec, TrainSpec)
    assert (spec.model, spec.distill_model, set(spec.configs)) == ("config:small", "config:large", {"small", "large"})


@pytest.fixture
def tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the flags of a training that takes a second and has its model configuration in a file."""
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path))
    (folder := tmp_path / "my models (v2) & 'more'").mkdir()
    (folder / "tiny.json").write_text(json.dumps(TINY))
    flags = "--samples 40 --batch-size 8 --log-every-n-steps 1 --no-tensorboard --threads 1"
    return ["--model", str(folder / "tiny.json"), *flags.split()]


@pytest.mark.slow
def test_training_is_evaluated_by_its_run_number(
    store: Store,
    tmp_path: Path,
    tiny_model: list[str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "templates.txt").write_text("the digit {}\n{}\n")
    table = tmp_path / "epochs.csv"
    more_flags = ["--templates", str(tmp_path / "templates.txt"), "--output", str(table)]
    assert main(["train", *tiny_model, "--epochs", "2", *more_flags]) == 0
    assert "epoch 2, step" in capsys.readouterr().err
    assert "Train Epoch: 1 [" in caplog.text, "as in the log of a queued run"
    run = store.runs()[0]
    rows = [row for row in store.rows(run.id) if isinstance(row, TrainRow)]
    assert run.state is State.FINISHED
    assert isinstance(run.spec, TrainSpec)
    assert run.spec.templates == ("the digit {}", "{}")
    with table.open() as file:
        first, *epochs = csv.DictReader(file)
    assert (first["step"], first["train_loss"]) == ("0", ""), "the initial weights"
    assert [float(line["train_loss"]) for line in epochs] == [row.train_loss for row in rows[1:]]
    assert main(["evaluate", "--model", str(run.id), "--tasks", "retrieval,zeroshot,linear-probe"]) == 0
    row_of_task = {row.task: row for row in store.rows(store.runs()[0].id) if isinstance(row, EvaluateRow)}
    assert set(row_of_task) == {"retrieval", "zeroshot", "linear-probe"}
    assert row_of_task["retrieval"].images == 8, "the pairs held out by the training"
    best = [row for row in rows if row.best][-1]
    assert row_of_task["retrieval"].image_to_text_r1 == best.image_to_text_r1


@pytest.mark.slow
def test_evaluate_prints_custom_ranks_and_a_note_on_untrained_weights(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "evaluate --data synthetic --samples 16 --no-held-out --tasks retrieval --recall-k 3,5"
    assert main(command.split()) == 0
    shown = capsys.readouterr()
    (row,) = (row for row in store.rows(store.runs()[0].id) if isinstance(row, EvaluateRow))
    assert row.recalls["image_to_text_r3"] > 0
    assert f"image to text R@3 {row.recalls['image_to_text_r3']:.4g}" in shown.err
    assert f"image to text R@5 {row.image_to_text_r5:.4g}" in shown.err
    assert "untrained" in shown.err
    assert {"image_to_text_r3", "text_to_image_r3"} <= set(shown.out.split())


@pytest.mark.slow
def test_search_finds_images_of_an_evaluation_only(
    store: Store, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank all 8 images by a text on the terminal and in a file. A training has no images to search."""
    tiny = {"model": "config:tiny", "configs": {"tiny": TINY}, "samples": 8}
    run_id, training = queue_evaluate(store, **tiny), queue_train(store)
    spec = store.run(run_id).spec
    assert isinstance(spec, EvaluateSpec)
    folder = RunFiles(settings.runs_dir, run_id).dir
    folder.mkdir(parents=True)
    list(evaluate.run(spec, folder))
    assert main(["search", str(run_id), "the digit seven", "--top", "3"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["index", "source", "label", "similarity"]
    assert len(shown) == 4
    table = tmp_path / "hits.csv"
    assert main(["search", str(run_id), "the digit seven", "--output", str(table)]) == 0
    with table.open() as file:
        lines = list(csv.DictReader(file))
    assert sorted(int(line["index"]) for line in lines) == list(range(8))
    assert [line["index"] for line in lines[:3]] == [line.split()[0] for line in shown[1:]]
    cosines = [float(line["similarity"]) for line in lines]
    assert cosines == sorted(cosines, reverse=True)
    capsys.readouterr()
    assert main(["search", str(training), "the digit seven"]) == 2
    output = capsys.readouterr()
    assert not output.out
    assert f"run {training} (train) has no images to search: only an evaluation has them" in output.err


@pytest.mark.slow
def test_killed_training_continues_from_its_checkpoint(
    store: Store, tiny_model: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The curve of a killed and continued run must equal that of an uninterrupted run.

    Both attempts are forked from the warm process, which imports PyTorch once.
    """
    monkeypatch.setenv("VITALS_PRELOAD", "engine.tasks.train")
    # the imports of the warm process may take longer than eight short leases
    monkeypatch.setenv("VITALS_LEASE_S", "15")
    machine = Machine(
        host=socket.gethostname(),
        platform="",
        cpu="",
        threads=1,
        memory_gb=1,
        devices=(Device(name="cpu", model=""),),
        date="",
    )
    store.save_machine(machine, fingerprint())  # a probe would import PyTorch too
    no_validation = ["--val-frequency", "0", "--zeroshot-frequency", "0"]
    flags = [*tiny_model, "--epochs", "10", "--save-every-steps", "2", "--save-frequency", "0", *no_validation]
    assert main(["train", *flags]) == 0
    assert main(["submit", "train", *flags]) == 0
    run_id = store.runs()[0].id
    files = RunFiles(Settings().runs_dir, run_id)
    wait(lambda: any(metric.step >= 6 for metric in store.metrics(run_id)))
    os.kill(json.loads(files.process().read_text())["worker"]["pid"], signal.SIGKILL)
    wait(lambda: store.run(run_id).state.ended)
    run = store.run(run_id)
    assert run.state is State.FINISHED, run.error
    assert files.process(2).is_file(), "there was a second attempt"

    def curve(number: int) -> list[tuple[int, float]]:
        return [(metric.step, metric.value) for metric in store.metrics(number) if metric.name == "train/loss"]

    assert curve(run_id) == curve(run_id - 1)
    notes = [row.notes for row in store.rows(run_id) if isinstance(row, TrainRow)][-1]
    assert any("continued from" in note for note in notes)
    assert main(["stop"]) == 0


def wait(condition: object, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("arguments", ["--device cuda:77", "--device npu:77 --precision fp32"])
def test_training_on_a_missing_device_prints_only_the_reason(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    assert main(["train", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: this machine has no device '{arguments.split()[1]}'; it has ")


@pytest.mark.parametrize(("command", "spec"), [("train", TrainSpec), ("evaluate", EvaluateSpec)])
def test_entries_of_a_repeated_flag_are_combined(
    store: Store, no_scheduler: None, command: str, spec: type[Spec]
) -> None:
    entries = {
        "classes": ("a, b", "c"),
        "templates": ("{}, seen", "the {}"),
        "more_models": ("ViT-B-32", "RN50,openai"),
        "more_data": ("digits", "synthetic"),
        "held_out_data": ("digits", "synthetic"),
    }
    known_entries = {name: values for name, values in entries.items() if name in spec.model_fields}
    flags = [
        word
        for name, values in known_entries.items()
        for value in values
        for word in (f"--{name.replace('_', '-')}", value)
    ]
    assert main(["submit", command, *flags]) == 0
    run = store.run(1)
    assert {name: getattr(run.spec, name) for name in known_entries} == known_entries


def test_sweep_is_queued_as_tagged_runs(store: Store, no_scheduler: None, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ["--sweep", "lr=1e-3,1e-4 seed=0,1", "--lr-cooldown-power", "2", "--name", "try"]
    assert main(["submit", "train", "--epochs", "1", *sweep]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1] == "queued as run 2: lr=0.001 seed=1"
    assert printed.err.startswith("--lr-cooldown-power has no effect: ")
    runs = {run.id: run for run in store.runs()}
    found = {number: (run.name, run.spec.lr, run.spec.seed, run.tags) for number, run in runs.items()}  # type: ignore[attr-defined]
    assert found == {
        1: ("try lr=0.001 seed=0", 0.001, 0, ("sweep-1",)),
        2: ("try lr=0.001 seed=1", 0.001, 1, ("sweep-1",)),
        3: ("try lr=0.0001 seed=0", 0.0001, 0, ("sweep-1",)),
        4: ("try lr=0.0001 seed=1", 0.0001, 1, ("sweep-1",)),
    }


def test_sweep_beyond_the_queue_limit_is_cancelled(
    store: Store, no_scheduler: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VITALS_QUEUE_LIMIT", "2")
    assert main(["submit", "train", "--sweep", "seed=0,1,2"]) == 2
    assert "2 runs in the queue, at most 2 may wait" in capsys.readouterr().err
    assert {run.state for run in store.runs()} == {State.CANCELLED}


@pytest.mark.slow
def test_model_is_exported_with_its_card(
    store: Store, tmp_path: Path, tiny_model: list[str], capsys: pytest.CaptureFixture[str], registry: None
) -> None:
    deciding = ["--best-metric", "text_to_image_r10"]
    assert main(["train", *tiny_model, "--epochs", "1", "--name", "tried | out", *deciding]) == 0
    assert "text_to_image_r10" in capsys.readouterr().out.partition("\n")[0].split()
    run = store.runs()[0]
    assert main(["runs", "export-model", str(run.id), str(tmp_path / "out")]) == 0
    assert "open_clip_model.safetensors" in capsys.readouterr().out
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: open_clip\n")
    row = store.rows(run.id)[-1]
    assert isinstance(row, TrainRow)
    for part in (
        "# tried | out\n",
        "Trained on digits. Held out: 20 % of it.",
        "| Epoch 1, step 4 |",
        "| Text → image R@10 |",
        "| samples | `40` |",
    ):
        assert part in card
    assert f"| version of torch | {run.environment.versions['torch']} |" in card  # type: ignore[union-attr]
    assert main(["runs", "export-model", str(run.id), str(tmp_path / "out")]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert main(["runs", "export-model", str(run.id), str(tmp_path / "x"), "--checkpoint", "no.pt"]) == 2
    assert "has no checkpoint 'no.pt'; it has best.pt, epoch_1.pt" in capsys.readouterr().err


def test_training_without_a_checkpoint_is_not_said_to_be_resumable(store: Store, settings: Settings) -> None:
    messages = []
    for names in ([], ["latest.pt"]):
        run_id = queue_train(store)
        write_checkpoints(RunFiles(settings.runs_dir, run_id).dir, *names)
        record(store, run_id, [train_row(1)], state=State.FAILED)
        with pytest.raises(EndedBadly) as ended:
            conclude(store.run(run_id), store.rows(run_id))
        messages.append(str(ended.value))
    assert ["resume" in message for message in messages] == [False, True]
