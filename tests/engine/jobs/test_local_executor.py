"""The local executor and the warm process for a scheduler, without processes: what they start, stop and conclude."""

import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

from engine.jobs.attempt import warm
from engine.jobs.attempt.warm import WarmProcess
from engine.jobs.executors import local
from engine.jobs.executors.local import PATIENCE_LEASES, Executor
from engine.jobs.hosts import this_host
from engine.jobs.processes import Identity, Processes, read_json
from engine.settings import Settings
from engine.specs import ProfileSpec
from engine.store import Attempt, Exit, Store, queue
from engine.store.files import RunFiles

DEAD = Identity(os.getpid(), -1.0)


class Process:
    """Stands for a started process. `code` is its exit code once it has ended."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.written: list[bytes] = []
        self.stdin = SimpleNamespace(write=self.written.append, flush=lambda: None)

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def attempt(store: Store) -> Attempt:
    store.enqueue(ProfileSpec(models=("timm:resnet18",)))
    attempt = queue.claim(store.database, this_host())
    assert attempt
    return attempt


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Process]]:
    """Start no process, and return a list that gets the command of each, with its stand-in."""
    started = list[tuple[str, Process]]()

    def start(_settings: Settings, *arguments: str, **_: Any) -> Process:
        started.append((" ".join(arguments), Process()))
        return started[-1][1]

    monkeypatch.setattr(local, "start_engine", start)
    monkeypatch.setattr(warm, "start_engine", start)
    return started


def test_attempt_is_alive_while_any_of_its_processes_lives(
    settings: Settings, attempt: Attempt, started: list[tuple[str, Process]]
) -> None:
    executor = Executor(settings.model_copy(update={"preload": ""}))
    executor.start(attempt)
    ((command, process),) = started
    assert (command, executor.alive(attempt)) == ("work 1", True), "it has no record yet"
    process.code = 0
    assert not executor.alive(attempt)
    executor.tend()
    assert executor._cold == {}, "waited for, so that no zombie is left"
    files = RunFiles(settings.runs_dir, attempt.run_id)
    for supervisor, worker in ((Identity.mine(), DEAD), (DEAD, Identity.mine()), (DEAD, DEAD)):
        Processes(supervisor, worker, group=True, folder=files.folder_id).write(files.process(1))
        assert executor.alive(attempt) == (supervisor != worker)


def test_slot_is_kept_until_the_worker_of_a_killed_supervisor_has_ended(
    settings: Settings, attempt: Attempt, started: list[tuple[str, Process]], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, files = Executor(settings), RunFiles(settings.runs_dir, attempt.run_id)
    executor.start(attempt)
    signals = list[signal.Signals]()
    monkeypatch.setattr(Processes, "signal_worker", lambda _processes, number: signals.append(number))
    Processes(DEAD, Identity.mine(), group=True, folder=files.folder_id).write(files.process(1))
    assert (executor.exit(attempt), signals, files.exit(1).exists()) == (None, [signal.SIGKILL], False)
    Processes(DEAD, Identity(1, -1.0), group=True, folder=files.folder_id).write(files.process(1))
    assert executor.exit(attempt) == Exit(note="its supervisor was killed, and the worker with it")
    assert files.exit(1).exists()


def test_attempt_without_a_process_that_is_stopped_gets_none(
    settings: Settings, attempt: Attempt, started: list[tuple[str, Process]]
) -> None:
    executor, files = Executor(settings), RunFiles(settings.runs_dir, attempt.run_id)
    executor.start(attempt)
    for _ in range(2):
        executor.stop(attempt, force=False)
    assert files.process(1).exists(), "so that no supervisor starts"
    assert (read_json(files.exit(1)) or {})["note"] == "it was cancelled before its process started"
    files.exit(1).unlink()
    executor.stop(attempt, force=True)
    assert not files.exit(1).exists(), "a supervisor that is just starting has taken the attempt"


def test_requests_to_a_dead_warm_process_are_started_cold_once(
    settings: Settings, attempt: Attempt, started: list[tuple[str, Process]], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, files = Executor(settings), RunFiles(settings.runs_dir, attempt.run_id)
    executor.start(attempt)
    ((command, process),) = started
    assert (command, process.written) == ("warm", [b"1\n"])
    assert executor.alive(attempt)
    process.code = 1
    executor.tend()
    assert [command for command, _ in started] == ["warm", "work 1", "warm"]
    started[-1][1].code = 1
    executor.start(attempt)
    Processes(Identity.mine(), DEAD, group=True, folder=files.folder_id).write(files.process(1))
    started[-1][1].code = 1
    executor.tend()
    assert [command for command, _ in started].count("work 1") == 1, "it has a process already"
    started[1][1].code = 0
    executor.start(attempt)
    assert executor.alive(attempt)
    later = time.monotonic() + PATIENCE_LEASES * settings.lease_s + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    executor.tend()
    assert not executor.alive(attempt), "the warm process hangs"


def test_warm_process_is_replaced_until_its_fourth_death(
    settings: Settings, started: list[tuple[str, Process]], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = WarmProcess(settings)
    for _ in range(4):
        assert process.ask(7)
        started[-1][1].code = 1
    assert (process.ensure(), process.ask(7), len(started)) == (False, False, 4)

    def fail(_data: bytes) -> None:
        raise BrokenPipeError

    dying = WarmProcess(settings)
    assert dying.ensure()
    started[-1][1].stdin.write = fail
    assert not dying.ask(7), "it has died since"
    monkeypatch.setattr("sys.platform", "darwin")
    assert not WarmProcess(settings).ensure()
