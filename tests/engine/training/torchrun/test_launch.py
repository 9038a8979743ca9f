"""Trainings of several processes, and how they are started, stopped and killed."""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from engine.results import Event, Metric, Progress
from engine.settings import ROOT
from engine.specs import Refused
from engine.training import checkpoints, setup
from engine.training.distributed import PATIENCE, Place, joined
from engine.training.torchrun import launch
from engine.training.torchrun.__main__ import _exit_with
from engine.training.torchrun.across import SHARED, check_shared
from tests.support.training import close, losses, rows, tiny, train

pytestmark = pytest.mark.slow
PATIENCE_S = 60
TRAIN_SCRIPT = """
import sys
from pathlib import Path
from engine.training.torchrun import launch
job = launch.Job.model_validate_json(Path(sys.argv[1]).read_bytes())
for event in launch.train_in_processes(job.spec, job.run_dir, "here"):
    print(event, flush=True)
"""


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the launcher and the processes of a training."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder / launch.JOB) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


WRITE_SCRIPT = """
import sys, time
from pathlib import Path
from engine.results import Metric, Progress
from engine.training.torchrun import launch
folder = Path(sys.argv[1])
launch.write(Progress(done=0, note="ein \\u5b57"), folder)
launch.write(Metric(step=1, name="train/loss", value=2.0), folder)
while not (folder / "heard").exists():
    time.sleep(0.01)
launch.write(Progress(done=1, note="two"), folder)
"""


@pytest.mark.usefixtures("ascii_locale")
def test_only_progress_is_repeated_while_nothing_new_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = subprocess.Popen

    def writer(*_: object, **options: Any) -> subprocess.Popen[bytes]:
        return popen([sys.executable, "-c", WRITE_SCRIPT, str(tmp_path)], **options)

    monkeypatch.setattr(launch.subprocess, "Popen", writer)
    events: list[Event] = []
    for event in launch.train_in_processes(tiny(nproc=2, templates=["{} 字"]), tmp_path, "here"):
        events.append(event)
        if any(isinstance(item, Metric) for item in events[:-3]):
            (tmp_path / "heard").touch()
    assert [event.value for event in events if isinstance(event, Metric)] == [2.0]
    notes = [event.note for event in events if isinstance(event, Progress)]
    assert list(dict.fromkeys(notes)) == ["starting 2 processes", "ein 字", "two"]
    assert notes.count("ein 字") > 1, "the caller can stop the training at any event"


class Ending:
    """Processes that write their last event in two pieces, each just before they are asked whether they have ended."""

    def __init__(self, job: launch.Job, code: int, *errors: Exception) -> None:
        line = f"Metric {Metric(step=1, name='train/loss', value=2.0).model_dump_json()}\n"
        self._file, self._pieces, self._codes = job.run_dir / launch.EVENTS, [line[:20], line[20:]], [code, None]
        for error in errors:
            launch.write_failure(error, job.run_dir)

    def poll(self) -> int | None:
        with self._file.open("a") as file:
            file.write(self._pieces.pop(0))
        return self._codes.pop()

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("errors", "wanted", "message"),
    [
        ([Refused("no class names"), RuntimeError("a peer has left")], Refused, "^no class names$"),
        (
            [RuntimeError("out of disk"), Refused("no class names")],
            launch.TrainingFailed,
            "^RuntimeError: out of disk$",
        ),
        ([], launch.TrainingFailed, "one of 2 processes has ended: the end of the log says more"),
    ],
)
def test_last_event_and_first_failure_of_this_attempt_are_reported(
    tmp_path: Path, errors: list[Exception], wanted: type[Exception], message: str
) -> None:
    """A worker that was killed leaves the events and the failure of its attempt in the folder."""
    launch.write(Progress(done=7), tmp_path)
    launch.write_failure(Refused("an earlier attempt"), tmp_path)
    events = list[Event]()
    with pytest.raises(wanted, match=message):
        events.extend(launch.train_in_processes(tiny(nproc=2), tmp_path, "here", lambda job: Ending(job, 1, *errors)))
    assert [event for event in events if event != Progress(done=0, note="starting 2 processes")] == [
        Metric(step=1, name="train/loss", value=2.0)
    ]
    assert not (tmp_path / launch.EVENTS).exists()


def test_process_takes_the_accelerator_with_its_number_on_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sixth process is the second on its node. Other processes may validate for hours while it waits."""
    calls: dict[str, Any] = {}
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "6"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: calls.update(index=index))
    group = torch.distributed
    monkeypatch.setattr(
        group, "init_process_group", lambda backend, timeout: calls.update(backend=backend, timeout=timeout)
    )
    monkeypatch.setattr(group, "get_rank", lambda: 5)
    monkeypatch.setattr(group, "get_world_size", lambda: 6)
    monkeypatch.setattr(group, "destroy_process_group", lambda: None)
    with joined("cuda") as place:
        assert place == Place(rank=5, world_size=6, device="cuda:1")
    assert calls == {"index": 1, "backend": "nccl", "timeout": PATIENCE}
    assert timedelta(hours=12) <= PATIENCE


def test_two_processes_stopped_in_a_validation_continue_and_train_as_one(tmp_path: Path) -> None:
    single = train(tiny(), tmp_path / "alone")
    (folder := tmp_path / "two").mkdir()
    spec = tiny(batch_size=4, nproc=2, gather_with_grad=True, local_loss=True)
    images = "::".join(["digits"] * 4)  # 7,188: their validation takes longer than a signal
    validating = spec.model_copy(update={"val_every_steps": 3, "zeroshot_data": images})
    setup.hold(validating, folder)  # as the task does
    stopped, events = list[Event](), launch.train_in_processes(validating, folder, "here")
    for event in events:
        stopped.append(event)
        if len(losses(stopped)) == 3 and (folder / "checkpoints" / "latest.pt.json").is_file():
            break  # saved after step 3, before it validates
    began = time.monotonic()
    close(events)
    assert time.monotonic() - began < launch.GRACE_S, "no process had to be killed"
    assert rows(stopped) == []
    assert not (folder / "results.jsonl").exists()
    assert processes_of(folder) == []
    assert checkpoints.load(folder / "checkpoints" / "latest.pt")["vitals"]["done"]["step"] == 3
    continued = list(launch.train_in_processes(spec, folder, "here"))
    assert losses(continued)[:3] == losses(stopped)
    assert [step for step, _ in losses(continued)] == list(range(1, 9))
    assert [loss for _, loss in losses(continued)] == pytest.approx([loss for _, loss in losses(single)], abs=1e-5)
    assert rows(continued)[-1].zeroshot_top1 == rows(single)[-1].zeroshot_top1
    values = {(event.name, event.step): event.value for event in continued if isinstance(event, Metric)}
    assert values["train/samples_per_s", 8] == pytest.approx(8 / values["train/step_s", 8])
    seconds = sum(values["train/step_s", step] for step in range(5, 9))
    assert rows(continued)[-1].samples_per_s == pytest.approx(32 / seconds)


def test_training_stopped_at_its_first_event_leaves_no_process(tmp_path: Path) -> None:
    events = launch.train_in_processes(tiny(nproc=2), tmp_path, "here")
    assert next(events) == Progress(done=0, note="starting 2 processes")
    close(events)
    assert processes_of(tmp_path) == []


def test_process_that_ends_too_late_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 0)
    events = launch.train_in_processes(tiny(batch_size=4, nproc=2, epochs=500, val_frequency=0), tmp_path, "here")
    next(event for event in events if len(processes_of(tmp_path)) == 3)
    close(events)
    assert processes_of(tmp_path) == []


def test_launcher_is_killed_before_its_tree_and_all_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that outlives a process reports it as failed."""
    calls = list[str]()

    def end_meanwhile() -> None:
        raise psutil.NoSuchProcess(2)

    tree = [SimpleNamespace(kill=end_meanwhile), SimpleNamespace(kill=lambda: calls.append("kill a descendant"))]
    launcher: Any = SimpleNamespace(pid=1, kill=lambda: calls.append("kill"), wait=lambda: calls.append("wait"))
    fake = SimpleNamespace(
        NoSuchProcess=psutil.NoSuchProcess,
        Process=lambda _pid: SimpleNamespace(children=lambda recursive=False: tree if recursive else []),
        wait_procs=lambda found, timeout: calls.append(f"wait for {len(found)}, {timeout} s"),
    )
    monkeypatch.setattr(launch, "psutil", fake)
    launch._kill(launcher)
    assert calls == ["kill", "kill a descendant", f"wait for 2, {launch.GONE_S} s", "wait"]


@pytest.mark.parametrize("killed", ["the calling process", "the launcher"])
def test_no_process_outlives_its_caller_or_launcher(tmp_path: Path, killed: str) -> None:
    """One process is enough: each watches both on its own."""
    spec = tiny(nproc=1, epochs=500, val_frequency=0)
    job = launch.Job(spec=spec, run_dir=tmp_path, device_name="here", parent=1)
    (tmp_path / "asked.json").write_text(job.model_dump_json())
    waiting = subprocess.Popen(
        [sys.executable, "-c", TRAIN_SCRIPT, str(tmp_path / "asked.json")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert waiting.stdout is not None
    next(line for line in waiting.stdout if "train/loss" in line)
    if killed == "the launcher":
        waiting.send_signal(signal.SIGSTOP)  # else it would end with the launcher
        next(process for process in processes_of(tmp_path) if "torch.distributed.run" in process.cmdline()).kill()
    else:
        waiting.kill()
    deadline = time.monotonic() + PATIENCE_S
    while (remaining := processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    waiting.kill()
    waiting.stdout.close()
    waiting.wait()
    assert remaining == []


def test_process_exits_if_another_ended_before_it_was_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="1"):
        _exit_with(os.getpid(), ended.pid)


def test_further_nodes_must_share_the_runs_folder(tmp_path: Path) -> None:
    (tmp_path / SHARED).write_text("this training")
    check_shared(tmp_path, "this training")
    for folder, token in ((tmp_path / "elsewhere", "this training"), (tmp_path, "a later attempt")):
        with pytest.raises(Refused, match="needs a runs folder that they share"):
            check_shared(folder, token)
