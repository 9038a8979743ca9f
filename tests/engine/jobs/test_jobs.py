"""Unit tests of `engine.jobs`. tests/faults tests its parts together."""

import errno
import fcntl
import logging
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import psutil
import pytest

from engine import jobs, process
from engine.jobs import disk, foreground, lifecycle, processes
from engine.jobs import scheduler as scheduler_module
from engine.jobs.attempt import failures, worker
from engine.jobs.attempt.supervisor import _pump
from engine.jobs.attempt.worker import Stop, _heartbeat, log_event
from engine.jobs.executors.local import Executor
from engine.jobs.hosts import GIVE_UP_LEASES, NODE, host_name, this_host
from engine.jobs.lifecycle import environment, fingerprint
from engine.jobs.log import BoundedLog, FailureLog
from engine.jobs.processes import Identity, Processes, read_json, write_json
from engine.jobs.scheduler import Scheduler
from engine.jobs.submit import check
from engine.jobs.wake import Wake, nudge
from engine.names import ModelNotFound
from engine.results import Device, Machine, Progress
from engine.settings import ROOT, Settings
from engine.specs import BenchmarkSpec, DeviceSpec, EvaluateSpec, ProfileSpec, RecurrentSpec, Refused, Spec, TrainSpec
from engine.specs.base import CLUSTER
from engine.store import Attempt, Busy, Cause, Exit, State, Store, Unavailable, attempts, leases, queue
from engine.store.files import RunFiles
from engine.store.leases import Lease

SPEC = ProfileSpec(models=("open_clip:ViT-B-32",), batch_size=8)

SHARED_MEMORY = (
    "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File ...\n"
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)\n"
)
"""Message of torch in a container with 64 MB of shared memory."""


def with_cause(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def while_handling(error: BaseException, earlier: BaseException) -> BaseException:
    error.__context__ = earlier
    return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("no"), Cause.ERROR),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), Cause.ERROR),
        (ValueError("a model called out of memory"), Cause.ERROR),
        (Refused("no such device"), Cause.REFUSED),
        (TimeoutError("too long"), Cause.TIMEOUT),
        (MemoryError(), Cause.OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Cause.OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), Cause.OUT_OF_MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), Cause.OUT_OF_MEMORY),
        (RuntimeError("std::bad_alloc"), Cause.OUT_OF_MEMORY),
        (RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed. "), Cause.OUT_OF_MEMORY),
        (RuntimeError("DataLoader worker (pid 4711) is killed by signal: Segmentation fault. "), Cause.ERROR),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            Cause.OUT_OF_MEMORY,
        ),
        (OSError(errno.ENOSPC, "No space left on device"), Cause.DISK_FULL),
        (OSError(errno.EFBIG, "File too large"), Cause.DISK_FULL),
        (RuntimeError("basic_ios::clear: iostream error: No space left on device"), Cause.DISK_FULL),
        (
            RuntimeError("[enforce fail at inline_container.cc:626] . PytorchStreamWriter: file write failed"),
            Cause.DISK_FULL,
        ),
        (ValueError("database or disk is full"), Cause.DISK_FULL),
        (ValueError("write error: Disk quota exceeded"), Cause.DISK_FULL),
        (RuntimeError(SHARED_MEMORY), Cause.OUT_OF_MEMORY),
        (with_cause(RuntimeError("could not save"), OSError(errno.EDQUOT, "quota")), Cause.DISK_FULL),
        (with_cause(ValueError("loader failed"), MemoryError()), Cause.OUT_OF_MEMORY),
        (while_handling(ValueError("no batch"), MemoryError()), Cause.OUT_OF_MEMORY),
    ],
)
def test_exception_is_classified_by_its_cause(error: BaseException, cause: Cause) -> None:
    assert failures.of_exception(error) == cause


@pytest.mark.parametrize(
    ("worker_exit", "cause", "message"),
    [
        (Exit(-9), Cause.KILLED, "killed by SIGKILL"),
        (Exit(-35), Cause.KILLED, "killed by signal 35"),
        (Exit(77), Cause.KILLED, "another node of the run was lost"),
        (Exit(-9, out_of_memory=True), Cause.OUT_OF_MEMORY, "try batch size 4 instead of 8"),
        (Exit(-11), Cause.KILLED, "killed by SIGSEGV"),
        (Exit(-9, note="killed by the scheduler"), Cause.KILLED, "killed by the scheduler"),
        (Exit(71), Cause.OUT_OF_MEMORY, "out_of_memory; its log has the reason; try batch size 4 instead of 8"),
        (Exit(73), Cause.TIMEOUT, "the worker ended with timeout"),
        (Exit(137), Cause.OUT_OF_MEMORY, "memory ran out"),
        (Exit(72), Cause.DISK_FULL, "the worker ended with disk_full"),
        (Exit(1), Cause.ERROR, "left with code 1"),
        (Exit(None, note="its supervisor was killed"), Cause.KILLED, "its supervisor was killed"),
    ],
)
def test_exit_of_a_worker_is_classified(worker_exit: Exit, cause: Cause, message: str) -> None:
    found, error = failures.of_exit(worker_exit, SPEC)
    assert found == cause
    assert message in error


def test_exit_is_classified_without_a_readable_spec() -> None:
    assert process.how_ended(0) == "exit code 0"
    assert failures.of_exit(Exit(71), None) == (
        Cause.OUT_OF_MEMORY,
        "the worker ended with out_of_memory; its log has the reason",
    )


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        (BenchmarkSpec(models=("timm:resnet18",), batch_size=9), "; try batch size 4 instead of 9"),
        (BenchmarkSpec(models=("timm:resnet18",), batch_size="sweep"), ""),
        (RecurrentSpec(mini_batch=64), "; try batch size 32 instead of 64"),
        (RecurrentSpec(mini_batch=1), ""),
        (DeviceSpec(), ""),
    ],
)
def test_out_of_memory_message_has_a_smaller_batch_size(spec: Spec, advice: str) -> None:
    assert failures.message(MemoryError("no"), Cause.OUT_OF_MEMORY, spec) == f"MemoryError: no{advice}"
    assert failures.message(ValueError("no"), Cause.ERROR, spec) == "ValueError: no"
    assert failures.message(Refused("no"), Cause.REFUSED, spec) == "no"


def test_log_is_bounded_and_keeps_the_newest_output(settings: Settings) -> None:
    files = RunFiles(settings.runs_dir, 1)
    files.prepare()
    with closing(BoundedLog(files, 1000)) as log:
        for number in range(1000):
            log.write(f"line {number:04}\n".encode())
        log.write(b"x" * 5000 + b"\nthe end")
    assert 500 <= files.log.stat().st_size + files.older_log.stat().st_size <= 1000
    assert files.log_tail(1) == "the end"
    with closing(BoundedLog(files, 1000)) as log:
        log.write(b", or not")
        assert files.log_tail(1) == "the end, or not"
        files.log.unlink()
        log.write(b"after the file was deleted")
    assert files.log.read_text() == "after the file was deleted"


def test_log_on_a_full_disk_drops_output_and_goes_on(settings: Settings) -> None:
    files = RunFiles(settings.runs_dir, 1)
    files.prepare()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(BoundedLog(files, 1000)) as log:
        log.write(b"before\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (7, hard))
        try:
            log.write(b"nobody will read this\n")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.write(b"after\n")
    assert files.log.read_bytes() == b"before\nafter\n"


@pytest.mark.skipif(sys.platform != "linux", reason="a larger pipe needs Linux")
def test_all_output_of_a_worker_that_has_ended_is_logged(settings: Settings) -> None:
    files = RunFiles(settings.runs_dir, 1)
    files.prepare()
    output, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(writer, bytes(200_000) + b"the end")
    with subprocess.Popen(["sleep", "0"], start_new_session=True) as ended, closing(BoundedLog(files, 10**6)) as log:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert _pump(ended.pid, output, log) == 0
    os.close(writer)
    os.close(output)
    assert files.log.read_bytes() == bytes(200_000) + b"the end"


def test_process_is_identified_by_pid_and_start_time() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        identity = Identity.of(process.pid)
        assert Identity.read(str(identity)) == identity
        assert identity.alive()
        other = Identity(identity.pid, identity.started - 1)
        assert not other.alive()
        other.send(signal.SIGKILL)
        other.send_group(signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        identity.send_group(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not identity.alive(), "a zombie is not alive"
        assert process.wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        Identity.of(process.pid)


def test_full_shared_memory_is_named_with_a_remedy() -> None:
    text = failures.message(RuntimeError(SHARED_MEMORY), Cause.OUT_OF_MEMORY, TrainSpec(data="digits"))
    assert "--shm-size" in text
    assert "workers 0" in text
    assert "Traceback" not in text


def test_identity_survives_a_change_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside Linux, start times come from psutil, which shifts its public ones by changes of the clock."""
    monkeypatch.setattr(processes, "LINUX", False)
    before, boot_time = Identity.mine(), psutil.boot_time()
    monkeypatch.setattr("psutil._psplatform.boot_time", lambda: boot_time + 60)
    assert before.alive()
    assert Identity.mine() == before


def test_group_of_zombies_counts_as_ended_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS refuses to signal a group of zombies. Elsewhere, a refusal means that the group is another user's."""

    def refuse(_group: int, _number: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    with pytest.raises(PermissionError):
        Identity.mine().send_group(signal.SIGKILL)
    monkeypatch.setattr(process, "sys", SimpleNamespace(platform="darwin"))
    Identity.mine().send_group(signal.SIGKILL)


def test_incomplete_record_is_none_and_invalid_record_an_error(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert read_json(path) is None
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    path.write_text('{"a": ')
    assert read_json(path) is None
    assert Processes.read(path) is None
    for other in ("[1]", "{}", '{"supervisor": 1, "worker": {}, "group": true}'):
        path.write_text(other)
        with pytest.raises(ValueError, match=r"record\.json does not hold"):
            Processes.read(path)


def test_scheduler_survives_when_another_one_reads_its_pipe_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment there are two, when a newer one replaces it, or two containers share a runs folder."""
    with closing(Wake(tmp_path)) as wake, closing(Wake(tmp_path)) as other:
        nudge(tmp_path)
        select_now = select.select

        def select_and_lose(*arguments: Any) -> Any:
            found = select_now(*arguments)
            monkeypatch.setattr(select, "select", select_now)
            assert other.wait(0)
            return found

        monkeypatch.setattr(select, "select", select_and_lose)
        assert wake.wait(5)


def test_nudge_wakes_a_waiting_scheduler(tmp_path: Path) -> None:
    nudge(tmp_path)
    with closing(Wake(tmp_path)) as wake:
        for _ in range(100_000 // 4096 + 1):
            nudge(tmp_path)
        begin = time.monotonic()
        assert wake.wait(60)
        assert time.monotonic() - begin < 30
        assert not wake.wait(0.01)


def test_woken_scheduler_stays_and_idle_one_exits(settings: Settings, store: Store) -> None:
    short_idle = settings.model_copy(update={"idle_exit_s": 0.05, "lease_s": 0.15, "min_free_gb": 1e9})
    name, identity = lifecycle.lease_name(), str(Identity.mine())
    assert leases.take(store.database, name, identity, "code", short_idle.lease_s, None)
    scheduler = Scheduler(store, Executor(short_idle.model_copy(update={"preload": ""})), short_idle, "code")
    ends = []
    for _ in range(3):
        time.sleep(0.06)
        assert scheduler._turn(woken=True)
        lease = leases.read(store.database, name)
        assert lease is not None
        ends.append(lease.expires_at)
    assert ends[0] < ends[1] < ends[2], "the lease is renewed after a third of its time"
    waiting = store.enqueue(SPEC)  # it cannot start, because the disk has less space than asked for
    time.sleep(0.06)
    assert scheduler._turn(woken=False)
    store.request_cancel(waiting)
    assert not scheduler._turn(woken=False)
    assert leases.read(store.database, name) is None


class RecordingExecutor:
    """Fake executor, or cluster of one node, that records the runs it should start."""

    def __init__(self) -> None:
        self.offers = {f"a{NODE}1": {"cluster:cpu": ("cpu",)}}
        self.started: list[int] = []

    def tend(self) -> None:
        pass

    def start(self, attempt: Attempt) -> None:
        self.started.append(attempt.run_id)

    def exit(self, attempt: Attempt) -> Exit | None:
        raise ValueError(f"the record of run {attempt.run_id} cannot be read")


def test_scheduler_stays_for_a_run_on_the_cluster(settings: Settings, store: Store) -> None:
    settings = settings.model_copy(update={"idle_exit_s": 0.01})
    assert leases.take(store.database, lifecycle.lease_name(), str(Identity.mine()), "code", settings.lease_s, None)
    scheduler = Scheduler(store, RecordingExecutor(), settings, "code", RecordingExecutor())  # type: ignore[arg-type]
    store.enqueue(DeviceSpec(device="cluster:cpu"))
    for _ in range(2):  # it starts the run, and watches it
        time.sleep(0.02)
        assert scheduler._turn(woken=False)
    (attempt,) = attempts.open_attempts(store.database)
    attempts.close(store.database, attempt, Exit(0), Cause.ERROR, "")
    time.sleep(0.02)
    assert not scheduler._turn(woken=False)


def test_scheduler_takes_a_lease_that_its_starter_takes_for_it_meanwhile(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, holder, take = lifecycle.lease_name(), str(Identity.mine()), leases.take

    def take_second(*arguments: Any) -> bool:
        monkeypatch.setattr(leases, "take", take)
        assert take(*arguments)
        return take(*arguments)

    monkeypatch.setattr(leases, "take", take_second)
    assert scheduler_module._take_lease(store, settings, name, holder, "code")


def test_lease_in_a_copied_file_has_no_holder(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a file can be copied. A scheduler with a database server may have a runs folder of another name."""
    monkeypatch.setattr(lifecycle, "_serves", lambda _settings, _pid: False)
    lease = Lease("local", str(Identity.mine()), "code", time.time() + 60)
    assert lifecycle._holder(settings, lease) is None
    on_server = settings.model_copy(update={"database_url": "postgresql://host/vitals"})
    assert lifecycle._holder(on_server, lease) == Identity.mine()


@pytest.mark.parametrize("own_disks", [False, True])
def test_runs_wait_on_a_full_disk_and_start_when_it_has_space(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch, own_disks: bool
) -> None:
    """Nodes of a cluster also write to this disk, unless run files are copied from separate disks of the nodes."""
    if own_disks:
        settings = settings.model_copy(update={"artifacts_url": "s3://bucket/runs"})
    local_executor, cluster = RecordingExecutor(), RecordingExecutor()
    scheduler = Scheduler(store, local_executor, settings, "code", cluster)  # type: ignore[arg-type]
    local = [store.enqueue(SPEC), store.enqueue(SPEC.model_copy(update={"device": "cpu"}))]
    remote = store.enqueue(DeviceSpec(device="cluster:cpu"))
    usage = shutil.disk_usage(settings.runs_dir)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=int(0.4e9)))
        for _ in range(2):
            scheduler._claim()
        assert (local_executor.started, cluster.started) == ([], [remote] * own_disks)
        assert scheduler._watch() == own_disks, "an attempt on the cluster keeps the scheduler"
        assert store.run(remote).state == (State.STARTING if own_disks else State.QUEUED), "it may be readable soon"
        reason = f"0.40 GB are free in {settings.runs_dir}, and VITALS_MIN_FREE_GB asks for 1 GB. Delete runs, or"
        assert disk.shortage(settings, this_host()).startswith(reason)
        assert bool(disk.shortage(settings, "cluster:cpu")) != own_disks
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=int(2e9)))
    scheduler._claim()
    assert (local_executor.started, cluster.started) == (local, [remote])


class WatchedExecutor:
    """Fake executor of one attempt, whose condition the test sets. Records whether each stop was forced."""

    def __init__(self) -> None:
        self.end: Exit | Exception | None = None
        self.living = True
        self.stops: list[bool] = []

    def exit(self, attempt: Attempt) -> Exit | None:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end

    def alive(self, attempt: Attempt) -> bool:
        return self.living

    def stop(self, attempt: Attempt, *, force: bool) -> None:
        self.stops.append(force)


def test_attempts_have_the_promised_time_before_they_are_given_up(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease has 3 s, and a worker 2 s to stop. Turns that took long, as while the machine slept, count as 2 s."""
    clock = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)

    def watched(host: str = "", *, begun: bool = True) -> tuple[int, WatchedExecutor, Callable[..., State]]:
        run_id, executor = store.enqueue(SPEC), WatchedExecutor()
        attempt = queue.claim(store.database, host or this_host())
        assert attempt is not None
        if begun:
            attempts.begin(store.database, attempt)
        scheduler = Scheduler(store, executor, settings, "code")  # type: ignore[arg-type]

        def state_after(*turns_s: float) -> State:
            nonlocal clock
            for seconds in turns_s:
                clock += seconds
                scheduler._watch()
            return store.run(run_id).state

        assert state_after(1) == State.STARTING
        return run_id, executor, state_after

    run_id, executor, state_after = watched(begun=False)
    executor.living = False
    assert state_after(3600, 1) == State.STARTING, "silent for 3 s"
    assert state_after(1) == State.QUEUED, "its process never started"
    store.request_cancel(run_id)

    run_id, executor, state_after = watched()
    assert (state_after(1, 1, 1), executor.stops) == (State.STARTING, [])
    assert (state_after(1), executor.stops) == (State.VANISHED, [])
    executor.end = Busy("/x", "is locked", "Wait")
    with pytest.raises(Busy):
        state_after(1)
    executor.end = None
    assert (state_after(*[1] * (3 * GIVE_UP_LEASES - 5)), executor.stops) == (State.VANISHED, [])
    assert (state_after(1), executor.stops) == (State.VANISHED, [True])
    executor.end = Exit(-signal.SIGKILL)
    assert state_after(1) == State.FAILED
    assert "it had not reported for" in store.run(run_id).error

    run_id, executor, state_after = watched()
    store.request_cancel(run_id)
    assert (state_after(1, 1, 1, 1), executor.stops) == (State.STOPPING, [False])
    assert (state_after(1), executor.stops) == (State.STOPPING, [False, True])
    executor.end = Exit(-signal.SIGKILL)
    assert state_after(1) == State.CANCELLED

    run_id, _, state_after = watched("elsewhere#0123456789ab")
    assert state_after(*[1] * 3 * GIVE_UP_LEASES) == State.STARTING
    assert state_after(1) == State.VANISHED


def test_host_is_probed_once_a_day_and_after_a_boot(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes: list[tuple[object, ...]] = []
    monkeypatch.setattr(scheduler_module, "detach", lambda process: None)
    monkeypatch.setattr(scheduler_module, "start_engine", lambda _settings, *given: probes.append(given))
    now, day = time.time(), 86_400
    monkeypatch.setattr(psutil, "boot_time", lambda: now - 10 * day)
    watcher = Scheduler(store, RecordingExecutor(), settings, "code")  # type: ignore[arg-type]
    watcher._start_probe()
    assert probes == [("probe",)], "it has never been probed"
    host = host_name(this_host())
    machine = Machine(host=host, platform="p", cpu="c", threads=1, memory_gb=1, devices=(), date="d")
    with monkeypatch.context() as patch:
        patch.setattr(scheduler_module, "import_module", lambda _name: SimpleNamespace(probe=lambda: machine))
        patch.setattr(scheduler_module, "fingerprint", lambda: "code")
        scheduler_module.probe(settings)
    watcher._start_probe()
    assert len(probes) == 1
    for later, boot in ((now + day - 60, now - day), (now + day + 60, now - day), (now + 120, now + 60)):
        monkeypatch.setattr(time, "time", lambda later=later: later)
        monkeypatch.setattr(psutil, "boot_time", lambda boot=boot: boot)
        watcher._start_probe()
    assert len(probes) == 3, "after a day, and after a boot"


@pytest.mark.parametrize("other", ["a file", "a folder", "a link"])
def test_file_in_place_of_the_pipe_is_moved_and_not_written(tmp_path: Path, other: str) -> None:
    path, target = tmp_path / "scheduler.pipe", tmp_path / "somebody's file"
    target.write_text("theirs")
    match other:
        case "a file":
            path.write_text("mine")
        case "a folder":
            path.mkdir()
        case "a link":
            path.symlink_to(target)
    nudge(tmp_path)
    with closing(Wake(tmp_path)) as wake:
        begun = time.monotonic()
        wake.wait(0.2)
        assert time.monotonic() - begun >= 0.2, "it sleeps and does not spin"
        nudge(tmp_path)
        wake.wait(60)
    (moved,) = tmp_path.glob("scheduler.pipe.before-*")
    assert target.read_text() == "theirs"
    assert other != "a file" or moved.read_text() == "mine"


def test_large_log_is_moved_once_and_replaces_the_previous_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "LOG_BYTES", 3)
    log, older = tmp_path / "scheduler.log", tmp_path / "scheduler.older.log"
    lifecycle.rotate(log)  # there is none yet
    for content in ("aaa", "bbbb", "cccc"):
        log.write_text(content)
        lifecycle.rotate(log)
        assert log.exists() == (content == "aaa")
    assert older.read_text() == "cccc"
    rename = Path.replace

    def rename_second(path: Path, target: Path) -> Path:
        rename(path, target)  # as another process, which starts a scheduler too
        return rename(path, target)

    log.write_text("dddd")
    monkeypatch.setattr(Path, "replace", rename_second)
    lifecycle.rotate(log)
    assert older.read_text() == "dddd"


def test_fingerprint_changes_with_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lifecycle, "ROOT", tmp_path)
    module = tmp_path / "engine" / "module.py"
    module.parent.mkdir()
    module.write_text("1")
    before = fingerprint()
    assert fingerprint() == before
    module.write_text("2")
    changed = fingerprint()
    assert changed != before
    module.rename(module.with_name("renamed.py"))
    assert (renamed := fingerprint()) not in (before, changed)
    monkeypatch.setattr(lifecycle, "version", lambda _package: "0.1")
    assert (updated := fingerprint()) != renamed, "the warm process has the old library in memory"
    monkeypatch.setattr(sys, "version", "4.0")
    assert fingerprint() != updated


@pytest.mark.slow
def test_fingerprint_is_equal_in_every_process() -> None:
    code = "from engine.jobs.lifecycle import fingerprint; print(fingerprint())"
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == fingerprint()


def test_child_process_gets_the_settings_from_its_environment(settings: Settings) -> None:
    changed = settings.model_copy(update={"queue_limit": 7, "log_limit_mb": 0.5, "preload": ""})
    code = "from engine.settings import Settings; print(Settings().model_dump_json())"
    command = [sys.executable, "-c", code]
    child = subprocess.run(command, env=environment(changed), cwd="/", capture_output=True, text=True, check=True)
    assert Settings.model_validate_json(child.stdout) == changed


def test_model_newer_than_the_catalogue_is_accepted(settings: Settings, store: Store, tmp_path: Path) -> None:
    newer = ProfileSpec(models=("timm:resnet_of_next_year",))
    catalog = tmp_path / "catalog"
    shutil.copytree(settings.catalog_dir, catalog)
    older = settings.model_copy(update={"catalog_dir": catalog})
    with pytest.raises(ModelNotFound):
        check(store, older, newer)
    (catalog / "versions.json").write_text('{"timm": "0.0.1"}')
    check(store, older, newer)


def test_unknown_models_and_absent_devices_are_refused_at_submission(settings: Settings, store: Store) -> None:
    with pytest.raises(ModelNotFound, match="closest: open_clip:ViT-B-32"):
        jobs.submit(store, settings, ProfileSpec(models=("ViT-B-23",)))
    with pytest.raises(ModelNotFound, match=r"^'all' is no CLIP model\. Give a model of open_clip"):
        jobs.submit(store, settings, TrainSpec(model="all"))
    with pytest.raises(ModelNotFound, match=r"^'ViT-B-33' is no CLIP model\. .* \(closest: ViT-B-32,"):
        jobs.submit(store, settings, TrainSpec(model="ViT-B-33"))
    with pytest.raises(ModelNotFound, match=r"configuration of your own \(config:mine, config:other\)$"):
        jobs.submit(store, settings, TrainSpec(model="mine", configs={"mine": {}, "other": {}}))
    with pytest.raises(ModelNotFound, match=r"configuration of your own \(FILE.json; in the form, an added file\)$"):
        jobs.submit(store, settings, TrainSpec(model="config:mine"))
    for known in ("ViT-B/32", "open_clip:ViT-B-32", "digits-clip"):
        check(store, settings, EvaluateSpec(model=known))
    check(store, settings, ProfileSpec(models=("config:own", "ViT-B-32"), configs={"own": {}}))
    cuda = ProfileSpec(models=("ViT-B-32",), device="cuda")
    check(store, settings, cuda)  # the devices of the machine are not probed yet
    cpu = Device(name="cpu", model="c")
    machine = Machine(host="h", platform="p", cpu="c", threads=1, memory_gb=1, devices=(cpu,), date="d")
    store.save_machine(machine)
    with pytest.raises(Refused, match="h has no device 'cuda:0'; it has meta, cpu"):
        jobs.submit(store, settings, cuda)
    gpu = Device(name="cuda:0", model="g")
    store.save_machine(machine.model_copy(update={"devices": (cpu, gpu)}))
    check(store, settings, cuda)
    assert store.runs() == [], "refused requests are not stored"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_training_on_columns_that_a_table_lacks_is_refused(settings: Settings, store: Store, suffix: str) -> None:
    settings.runs_dir.mkdir(parents=True, exist_ok=True)
    path = settings.runs_dir / f"pairs.{suffix}"
    frame = pd.DataFrame({"picture": ["a.png"], "a long, winding, text": ["a cat"]})
    frame.to_csv(path, sep="\t", index=False) if suffix == "csv" else frame.to_parquet(path)
    right = {"data": str(path), "csv_img_key": "picture", "csv_caption_key": "a long, winding, text"}
    check(store, settings, TrainSpec.model_validate(right))
    check(store, settings, TrainSpec.model_validate(right | {"data": f"digits::{path}"}))
    only_held_out = {"data": "digits", "val_data": str(path)}
    for wrong in ({"csv_img_key": "image"}, {"csv_caption_key": "txt"}, only_held_out | {"csv_img_key": ""}):
        with pytest.raises(Refused, match=r"(needs one|has no) column .*Its columns.* are 'picture.*text'"):
            jobs.submit(store, settings, TrainSpec.model_validate(right | wrong))


@pytest.mark.parametrize(
    "spec", [RecurrentSpec(precision="tf32"), BenchmarkSpec(models=("timm:resnet18",), variants=("cudagraphs",))]
)
def test_unsupported_request_is_refused_but_old_runs_stay_readable(
    settings: Settings, store: Store, spec: Spec
) -> None:
    with pytest.raises(Refused, match="another device than cpu"):
        check(store, settings, spec)
    assert store.run(store.enqueue(spec)).spec == spec  # as an earlier version stored it


def test_deleting_a_run_deletes_its_files(settings: Settings, store: Store) -> None:
    run_id = store.enqueue(SPEC)
    files = RunFiles(settings.runs_dir, run_id)
    files.prepare()
    files.log.write_text("hello")
    with pytest.raises(Refused, match="cancel it first"):
        jobs.delete_run(store, settings, run_id)
    assert files.log.is_file()
    store.request_cancel(run_id)
    assert store.run(run_id).state == State.CANCELLED
    jobs.delete_run(store, settings, run_id)
    assert not files.dir.exists()
    jobs.delete_run(store, settings, store_cancelled_run(store))
    linked = RunFiles(settings.runs_dir, store_cancelled_run(store))
    other_disk = settings.runs_dir.with_name("another disk")
    other_disk.mkdir()
    linked.dir.symlink_to(other_disk)
    jobs.delete_run(store, settings, linked.run_id)
    assert not other_disk.exists()
    assert not linked.dir.is_symlink()


def store_cancelled_run(store: Store) -> int:
    run_id = store.enqueue(SPEC)
    store.request_cancel(run_id)
    return run_id


@pytest.mark.slow
def test_foreground_run_names_only_runs_that_still_hold_its_slots(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, notes = DeviceSpec(), list[str]()
    store.enqueue(spec)
    holder = queue.claim(store.database, this_host())
    assert holder is not None

    def end_holder(_settings: Settings) -> None:
        assert holder is not None
        attempts.close(store.database, holder, Exit(0), Cause.ERROR, "")

    monkeypatch.setattr(foreground, "ensure_scheduler", end_holder)
    assert foreground._claim(store, settings, spec, "", lambda event: notes.append(repr(event))).run_id == 2
    assert notes == []


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL], ids=["nohup", "terminal"])
def test_foreground_run_under_nohup_goes_on_after_its_terminal_was_closed(before: signal.Handlers) -> None:
    former = signal.signal(signal.SIGHUP, before)
    try:
        with foreground._interrupts(Stop()):
            assert (signal.getsignal(signal.SIGHUP) == before) == (before == signal.SIG_IGN)
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, former)


def test_foreground_run_does_not_wait_on_a_disk_that_has_filled(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.enqueue(DeviceSpec())
    assert queue.claim(store.database, this_host())
    usage, waits, notes = shutil.disk_usage(settings.runs_dir), iter(range(3)), list[str]()

    def wait(_seconds: float) -> None:
        if next(waits) == 1:
            monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=0))

    monkeypatch.setattr(foreground, "ensure_scheduler", lambda _settings: None)
    monkeypatch.setattr(time, "sleep", wait)
    with pytest.raises(disk.DiskFull, match="too little disk space"):
        foreground._claim(store, settings, DeviceSpec(), "", lambda event: notes.append(repr(event)))
    assert len(notes) == 1, "a note is shown once"


def test_heartbeat_keeps_a_cancellation_from_the_terminal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.enqueue(SPEC)
    attempt = queue.claim(store.database, this_host())
    assert attempt is not None
    stop = Stop()
    stop.cancelled = True  # by Ctrl+C, so the store does not know it
    beats = list[bool]()
    monkeypatch.setattr(attempts, "heartbeat", lambda *_: beats.append(True))
    with _heartbeat(store, attempt, 0.01, stop):
        while not beats:
            time.sleep(0.01)
    assert stop.cancelled


def test_worker_uses_the_threads_of_its_own_cpus(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork of the warm process may have other CPUs than torch found when it was imported."""
    threads = list[int]()
    module = SimpleNamespace(threads=lambda: 3, run=lambda _spec, _folder: (event for event in ()))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_num_threads=threads.append))
    monkeypatch.setattr(worker, "import_module", lambda _name: module)
    run = store.run(store.enqueue(SPEC))
    assert list(worker._events(run, RunFiles(settings.runs_dir, run.id), settings)) == []
    assert threads == [3]


def test_progress_without_a_total_is_logged_as_its_note(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_event(Progress(done=0, note="starting 2 processes"))
        log_event(Progress(done=1, total=2, note="timm:resnet18"))
    assert [record.getMessage() for record in caplog.records] == [
        "starting 2 processes",
        "1 of 2 done, now timm:resnet18",
    ]


def test_run_folder_of_an_earlier_store_is_moved(settings: Settings) -> None:
    files = RunFiles(settings.runs_dir, 1)
    files.prepare()
    files.log.write_text("of another life")
    files.prepare()
    assert not files.log.exists()
    (moved,) = settings.runs_dir.glob("1.before-*")
    assert (moved / "log.txt").read_text() == "of another life"
    shutil.rmtree(moved)


def test_repeated_failure_of_a_loop_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(logging.getLogger("a loop"), "the work")
    for number in range(3):
        with failures.catching():
            raise ValueError("the same")
        with failures.catching():
            raise Unavailable("/x", f"is away for reason {number // 2}", "Wait")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "the work failed: the same",
        "the work failed: the store /x is away for reason 0. Wait",
        "the work failed: the store /x is away for reason 1. Wait",
    ]
    assert caplog.text.count("Traceback") == 1, "errors of the store have a cause and a remedy and need no traceback"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nodes": 3}, "each model is timed on one: ask for at most 2"),
        ({"models": "timm:test_*", "nodes": 3}, "3 nodes were asked for, and cluster:gpu:H100 is on 2 nodes: ask for"),
        ({"device": "cluster:gpu", "nodes": 2}, "the same GPUs: choose one of cluster:gpu:A100, cluster:gpu:H100"),
        ({}, ""),
    ],
)
def test_request_for_unavailable_or_mixed_nodes_is_refused(
    store: Store, settings: Settings, fields: dict[str, Any], message: str
) -> None:
    counts = {"cluster:gpu": (12, 3), "cluster:gpu:A100": (4, 1), "cluster:gpu:H100": (8, 2)}
    devices = tuple(
        Device(name=name, model=f"on {nodes} nodes", count=count, nodes=nodes)
        for name, (count, nodes) in counts.items()
    )
    cluster = Machine(host=CLUSTER, platform="", cpu="", threads=1, memory_gb=1, devices=devices, date="")
    store.save_machine(cluster, fingerprint())
    settings = settings.model_copy(update={"ray_address": "http://127.0.0.1:1"})
    spec = BenchmarkSpec(
        **{"models": "timm:test_vit,timm:test_resnet", "device": "cluster:gpu:H100", "nodes": 2} | fields
    )
    with pytest.raises(Refused, match=message) if message else nullcontext():
        check(store, settings, spec)


@pytest.mark.parametrize("device", ["cluster:gpu", "cluster:gpu:A100"])
def test_runs_can_take_all_accelerators_of_a_cluster_of_one_type(store: Store, settings: Settings, device: str) -> None:
    names = ("cluster:gpu", "cluster:gpu:A100")
    devices = tuple(Device(name=name, model="on 2 nodes", count=4, nodes=2) for name in names)
    cluster = Machine(host=CLUSTER, platform="", cpu="", threads=1, memory_gb=1, devices=devices, date="")
    store.save_machine(cluster, fingerprint())
    settings = settings.model_copy(update={"ray_address": "http://127.0.0.1:1"})
    check(store, settings, BenchmarkSpec(models=("timm:test_vit", "timm:test_resnet"), device=device, nodes=2))
    check(store, settings, TrainSpec(device=device, nproc=4))
    with pytest.raises(Refused, match=f"^5 processes need a {device} each, and the cluster has 4 on 2 nodes"):
        check(store, settings, TrainSpec(device=device, nproc=5))
