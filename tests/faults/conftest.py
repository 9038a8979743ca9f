"""Fixtures with real schedulers, warm processes, supervisors and workers. Their runs misbehave on request."""

import importlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import engine.tasks
from engine import jobs
from engine.jobs.lifecycle import fingerprint, lease_name
from engine.jobs.processes import Identity, Processes
from engine.results import Device, Machine
from engine.settings import ROOT, Settings
from engine.store import Run, State, Store, leases, open_store
from engine.store.files import RunFiles

KINDS = Path(__file__).parent / "kinds"
LONG_S = 240.0
"""Default timeout of waits in seconds: generous, for a loaded machine."""


def until(condition: Callable[[], Any], name: str = "", seconds: float = LONG_S) -> Any:
    """Wait until `condition` returns a true value and return that value. name: shown in the error after a timeout."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"timed out waiting for {name or condition}"
        time.sleep(0.05)
    return found


@dataclass(frozen=True)
class House:
    """A store, its settings, and access to the engine processes that use it."""

    settings: Settings
    store: Store
    kinds: Any
    """The module `trial_kinds`: specs of runs that misbehave on request."""

    def submit(self, **fields: Any) -> int:
        return jobs.submit(self.store, self.settings, self.kinds.TrialSpec(**fields))

    def submit_retried(self, **fields: Any) -> int:
        return jobs.submit(self.store, self.settings, self.kinds.RetriedSpec(**fields))

    def end(self, run_id: int) -> Run:
        """Wait until a run has ended and its exit record exists, and return the run."""
        until(lambda: self.store.run(run_id).state.ended, f"the end of {self.store.run(run_id)}")
        run = self.store.run(run_id)
        if run.attempt:
            until(lambda: self.files(run_id).exit(run.attempt).is_file(), f"the exit record of run {run_id}")
        return run

    def steps(self, run_id: int, count: int) -> list[Any]:
        """Wait until a run has `count` rows, and return its rows."""
        until(lambda: len(self.store.rows(run_id)) >= count, f"row {count} of run {run_id}")
        return list(self.store.rows(run_id))

    def files(self, run_id: int) -> RunFiles:
        return RunFiles(self.settings.runs_dir, run_id)

    def processes(self, run_id: int, attempt: int = 1) -> Processes:
        found: Processes = until(lambda: Processes.read(self.files(run_id).process(attempt)), "process.json")
        return found

    def exit(self, run_id: int, attempt: int = 1) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.files(run_id).exit(attempt).read_text())
        return record

    def scheduler(self, other_than: int = 0) -> Identity:
        """Wait for a live process with the scheduler's lease, and return it. other_than: pid of a process to ignore."""

        def holder() -> Identity | None:
            lease = leases.read(self.store.database, lease_name())
            found = lease and Identity.read(lease.holder)
            return found if found and found.pid != other_than and found.alive() else None

        return until(holder, "a scheduler")  # type: ignore[no-any-return]

    def open_runs(self) -> list[Run]:
        return self.store.runs(states=[State.STARTING, State.RUNNING, State.STOPPING, State.VANISHED])

    def running(self) -> list[psutil.Process]:
        """Return every live process with this runs folder in its environment, except this process."""
        runs_dir, found = str(self.settings.runs_dir), []
        for process in psutil.process_iter():
            try:
                ours = process.pid != os.getpid() and process.environ().get("VITALS_RUNS_DIR") == runs_dir
                if ours and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
        return found

    def named(self, *words: str) -> list[psutil.Process]:
        """Return the running processes with one of `words` (`scheduler`, `warm`) as an argument of their command."""
        found = []
        for process in self.running():
            try:
                if set(words) & set(process.cmdline()):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return found

    def settled(self) -> Identity:
        """Wait until exactly one scheduler process is left, and return it."""
        until(lambda: [process.pid for process in self.named("scheduler")] == [self.scheduler().pid], "one scheduler")
        return self.scheduler()

    def warm(self) -> psutil.Process:
        """Wait for the warm process and return it. It is a child of the scheduler; its forks are not."""

        def find_warm_process() -> psutil.Process | None:
            schedulers = {process.pid for process in self.named("scheduler")}
            return next((process for process in self.named("warm") if process.ppid() in schedulers), None)

        return until(find_warm_process, "a warm process")  # type: ignore[no-any-return]


@contextmanager
def open_house(settings: Settings, empty_store: Path) -> Iterator[House]:
    """Yield a house with an open store. Fail at the end if a run or a process is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(KINDS)]))
        patch.syspath_prepend(KINDS)
        patch.setattr(engine.tasks, "__path__", [*engine.tasks.__path__, str(KINDS / "tasks")])
        kinds = importlib.import_module("trial_kinds")
        settings = settings.model_copy(update={"preload": "json", "min_free_gb": 0.0, "log_limit_mb": 1.0})
        if not settings.database_url:
            settings.make_runs_dir()
            shutil.copy(empty_store, settings.runs_dir)
        store = open_store(settings)
        machine = Machine(
            host=socket.gethostname(),
            platform="",
            cpu="",
            threads=1,
            memory_gb=1,
            devices=tuple(Device(name=name, model="") for name in ("cpu", *(f"cuda:{number}" for number in range(4)))),
            date="",
        )
        store.save_machine(machine, fingerprint())  # a probe would import torch for every test
        house = House(settings, store, kinds)
        yield house
        open_runs = house.open_runs()
        deadline = time.monotonic() + 15
        while (remaining := house.running()) and time.monotonic() < deadline:
            jobs.stop_scheduler(settings)  # repeated, because a scheduler may just be starting
            time.sleep(0.1)
        store.close()
        for process in remaining:
            process.send_signal(signal.SIGKILL)
        assert not open_runs
        assert not remaining, "processes are left"


@pytest.fixture
def house(settings: Settings, empty_store: Path) -> Iterator[House]:
    """Yield a house for one test."""
    with open_house(settings, empty_store) as house:
        yield house


@pytest.fixture(scope="module")
def house_of_module(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[House]:
    """Yield a house for `shared_house`."""
    runs_dir = tmp_path_factory.mktemp("house") / "runs"
    with open_house(Settings(runs_dir=runs_dir, lease_s=3, idle_exit_s=60, stop_grace_s=2), empty_store) as house:
        yield house


@pytest.fixture
def shared_house(house_of_module: House) -> Iterator[House]:
    """Yield a house whose scheduler and warm process serve all tests of a module that harm only their own runs.

    Fail after the test if one of its runs is open, or if one of its processes is left.
    """
    jobs.ensure_scheduler(house_of_module.settings)
    kept = {house_of_module.scheduler().pid, house_of_module.warm().pid}
    yield house_of_module
    assert not house_of_module.open_runs()
    until(lambda: {process.pid for process in house_of_module.running()} == kept, "the end of other processes", 15)
