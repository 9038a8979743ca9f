"""Do the work of one attempt: load the task by name, iterate over it, and store each event as it comes."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import file_digest
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from engine.datasets import DataProblem, columns_used
from engine.jobs import disk, named_files
from engine.jobs.attempt import failures
from engine.jobs.attempt.supervisor import Copies, supervise
from engine.jobs.hosts import NODE
from engine.names import refuse_code
from engine.process import HostLost
from engine.results import Artifact, Environment, Event, Progress, Row
from engine.roots import expand_home, open_within
from engine.settings import Settings
from engine.specs import Refused, Spec
from engine.specs.base import CLUSTER, device_on_node
from engine.store import (
    Attempt,
    Busy,
    Cause,
    Run,
    StaleAttempt,
    State,
    Store,
    StoredArtifact,
    Unavailable,
    attempts,
    open_store,
)
from engine.store.copies import mirror, remote
from engine.store.files import RunFiles

log = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]
T = TypeVar("T")

STORE_WAIT_S = 600.0
"""Wait at most this many seconds for a store that is locked or out of reach: longer than a backup or a failover."""
STORE_RETRY_S = 1.0
"""Seconds between two tries."""


class Stop:
    """A request to end the work, with its reason. Set by signals and by the heartbeat, read between events."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.stale = False
        self.cancelled = False
        self.loading = False
        """True while this process imports libraries, when there is nothing to save yet."""

    def __bool__(self) -> bool:
        return self.signal is not None or self.stale or self.cancelled

    def on_signal(self, number: int, _frame: object) -> None:
        """Note a signal. The task continues to its next event, so that no step is left half done."""
        self.signal = number


def main(settings: Settings, run_id: int) -> None:
    """Run `python -m engine work RUN_ID`: do the run's current attempt. Errors: Refused when it has none."""

    def look_up() -> tuple[Attempt | None, Run | None]:
        with closing(open_store(settings)) as store:  # closed before the fork: processes must not share connections
            return attempts.current(store.database, run_id), store.run(run_id) if settings.artifacts_url else None

    attempt, mirrored = retry_while_unreachable(look_up, Stop())
    if attempt is None:
        raise Refused(f"run {run_id} has no attempt under way; the scheduler makes one when its turn comes")
    files = RunFiles(settings.runs_dir, run_id)
    if mirrored and NODE in attempt.host:  # this node has its own runs folder, so the run's folder is made here
        files.prepare(attempt.number)
    copies = Copies(settings, mirrored, attempt) if mirrored else None
    supervise(files, attempt, settings, lambda: work(settings, attempt), copies)


def work(settings: Settings, attempt: Attempt) -> int:
    """Do one attempt in this process, which does nothing else, and return the exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, force=True)
    logging.getLogger("engine").setLevel(logging.INFO)  # libraries log only warnings
    stop = Stop()
    signal.signal(signal.SIGTERM, stop.on_signal)
    signal.signal(signal.SIGINT, stop.on_signal)
    store = retry_while_unreachable(lambda: open_store(settings), stop)
    try:
        code = execute(store, settings, attempt, stop, log_event, alone=True)
    finally:
        store.close()
    if code is None:  # an outside signal, not a cancellation, ended the task: exit as if killed by that signal
        assert stop.signal is not None
        signal.signal(stop.signal, signal.SIG_DFL)
        os.kill(os.getpid(), stop.signal)
        return 128 + stop.signal
    return code


def log_event(event: Event) -> None:
    """Log an event that a reader of the log should see."""
    match event:
        case Progress(done=done, total=total, note=note) if note:
            log.info("%s", f"{done} of {total} done, now {note}" if total else note)
        case Row(status=status, error=error) if status != "ok":
            log.warning("%s:%s: %s: %s", event.library, event.model, status, error)


def execute(
    store: Store,
    settings: Settings,
    attempt: Attempt,
    stop: Stop,
    on_event: OnEvent = lambda event: None,
    *,
    allow_code: bool = False,
    alone: bool = False,
) -> int | None:
    """Do an attempt and record its end. Return an exit code; None when a signal from outside ended it.

    allow_code: accept modules of the user's own, as only a run in the foreground may. Queued runs that name one are
    refused here too. alone: this process does nothing else, so SIGTERM may end it while it has no results.
    """
    run = retry_while_unreachable(lambda: store.run(attempt.run_id), stop)
    files = RunFiles(settings.runs_dir, run.id)
    try:
        retry_while_unreachable(lambda: attempts.begin(store.database, attempt), stop)
        with _heartbeat(store, attempt, settings.lease_s / 3, stop):
            retry_while_unreachable(lambda: mirror.begin(settings, run, attempt.number), stop)
            retry_while_unreachable(lambda: named_files.check_again(store, settings, run), stop)
            if not allow_code:
                refuse_code(run.spec)
            disk.refuse_shortage(settings)
            with _ended_by_sigterm(stop) if alone else _loading(stop):
                import_module(f"engine.tasks.{run.spec.kind}")
            latest: Event | None = None
            rows, complete = 0, False
            with closing(_events(run, files, settings)) as events:
                for event in events:
                    if event != latest:  # tasks repeat an event to show that they are alive and to be stopped
                        latest = event
                        _record(store, attempt, event, rows, stop)
                        rows += isinstance(event, Row)
                        on_event(event)
                    if stop:
                        break
                else:
                    complete = True
        return _end(store, attempt, stop, complete=complete)
    except StaleAttempt as stale:
        log.warning("%s", stale)
        return failures.STALE
    except HostLost as lost:  # the run is queued again, or cancelled, when this attempt is closed
        log.warning("%s", lost)
        return failures.HOST_LOST
    except BaseException as error:  # noqa: BLE001  any exception of a task, SystemExit too, fails its run
        if isinstance(error, KeyboardInterrupt) and stop.signal and not stop.cancelled:
            return None  # SIGTERM while libraries were imported
        return _fail(store, attempt, run, error, stop)


@contextmanager
def _loading(stop: Stop) -> Iterator[None]:
    """Mark that libraries are imported, so that a signal ends the run at once. Errors: KeyboardInterrupt."""
    stop.loading = True
    try:
        if stop:  # it came before
            raise KeyboardInterrupt
        yield
    finally:
        stop.loading = False


@contextmanager
def _ended_by_sigterm(stop: Stop) -> Iterator[None]:
    """Let SIGTERM end this process at once, as for an import that takes seconds. Later, `stop` notes it again."""
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if stop.signal == signal.SIGTERM:  # it came before
        os.kill(os.getpid(), signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def retry_while_unreachable(action: Callable[[], T], stop: Stop) -> T:
    """Return action(). Repeat it while the store is locked, or the store or the copies of files cannot be reached.

    Errors: Busy or Unreachable after STORE_WAIT_S, or at once when the run should stop; other Unavailable errors.
    """
    deadline = time.monotonic() + STORE_WAIT_S
    while True:
        try:
            return action()
        except (Busy, remote.Unreachable) as error:
            if stop or time.monotonic() > deadline:
                raise
            log.warning("no answer, trying again: %s", error)
        time.sleep(STORE_RETRY_S)


def _record(store: Store, attempt: Attempt, event: Event, rows_before: int, stop: Stop) -> None:
    """Store an event exactly once, even if the connection is lost after the database has committed it."""
    tries = 0

    def store_event() -> None:
        nonlocal tries
        tries += 1
        if tries > 1 and attempts.count_rows(store.database, attempt) > rows_before:
            return  # only rows need this check: a second copy of another event replaces the first
        attempts.record(store.database, attempt, [event])

    retry_while_unreachable(store_event, stop)


def _events(run: Run, files: RunFiles, settings: Settings) -> Generator[Event]:
    """Yield the task's events, with the settings used in its environment. Closing this lets the task save its work."""
    task = import_module(f"engine.tasks.{run.spec.kind}")
    spec = run.spec
    device = getattr(spec, "device", "")
    if device.startswith(CLUSTER) and device != f"{CLUSTER}meta":  # a profile spreads cluster:meta itself
        spec = spec.model_copy(update={"device": device_on_node(device)})
    if torch := sys.modules.get("torch"):  # a fork of the warm process may have other CPUs, and torch does not notice
        torch.set_num_threads(import_module("engine.measure.environment").threads())
    used = None
    with closing(task.run(spec, files.dir)) as events:
        for event in events:
            if isinstance(event, Environment):
                used = _used_settings(settings, spec) if used is None else used
                event = event.model_copy(update={"settings": used | event.settings})
            yield _with_hash(event, files.dir) if isinstance(event, Artifact) else event


def _used_settings(settings: Settings, spec: Spec) -> dict[str, Any]:
    """Return the values used for fields left empty, as far as they follow from the spec and its data, and the SHA-256
    of each file that the spec names.

    Folders and shards are not hashed, because that would read all of their images.
    """
    values = spec.resolved
    if spec.kind in ("train", "evaluate"):
        with suppress(DataProblem):  # the task reports it
            values |= columns_used(spec, settings.roots)
    for name, path in named_files.named_paths(spec):
        label = f"SHA-256 of {name.replace('_', ' ')}"
        with suppress(FileNotFoundError), open_within(expand_home(path), settings.roots) as file:
            digest = file_digest(file, "sha256").hexdigest()
            values[label] = f"{values[label]}, {digest}" if label in values else digest
    return values


def _with_hash(artifact: Artifact, run_dir: Path) -> StoredArtifact:
    path = run_dir / artifact.name
    if not path.resolve().is_relative_to(run_dir.resolve()):
        raise ValueError(f"artifact {artifact.name!r} lies outside its run's folder")
    with path.open("rb") as file:
        sha256 = file_digest(file, "sha256").hexdigest()
    return StoredArtifact(name=artifact.name, kind=artifact.kind, size=path.stat().st_size, sha256=sha256)


def _end(store: Store, attempt: Attempt, stop: Stop, *, complete: bool) -> int | None:
    """Record the end of a run without an error. Return an exit code; None when a signal from outside stopped it.

    complete: whether the task has ended by itself. Then a signal that came later changes nothing.
    """
    if complete:
        state = State.FINISHED
    elif stop.cancelled or retry_while_unreachable(lambda: attempts.heartbeat(store.database, attempt), stop):
        state = State.CANCELLED
    else:
        return None
    retry_while_unreachable(lambda: attempts.finish(store.database, attempt, state), stop)
    return 0


def _fail(store: Store, attempt: Attempt, run: Run, error: BaseException, stop: Stop) -> int:
    cause = failures.of_exception(error)
    ours = isinstance(error, OSError) and type(error) is not OSError  # such as NotSaved: its message names the place
    if cause == Cause.STORE_UNAVAILABLE or (cause == Cause.DISK_FULL and ours):
        log.error("run %s failed: %s", run.id, failures.message(error, cause, run.spec))
    elif cause != Cause.REFUSED and not (stop.cancelled and isinstance(error, KeyboardInterrupt)):
        log.error("run %s failed: %s", run.id, cause, exc_info=error)
    state = State.CANCELLED if stop.cancelled else State.FAILED
    try:
        text = failures.message(error, cause, run.spec)
        reason = () if state == State.CANCELLED else (cause, text)
        retry_while_unreachable(lambda: attempts.finish(store.database, attempt, state, *reason), stop)
    except Unavailable as unavailable:  # the exit code still names the cause, here and below
        log.error("run %s could not record its end: %s", run.id, unavailable)
    except Exception:  # no memory, stale
        log.exception("run %s could not record its end", run.id)
    return failures.EXIT_CODES[cause]


@contextmanager
def _heartbeat(store: Store, attempt: Attempt, seconds: float, stop: Stop) -> Iterator[None]:
    """Send heartbeats from a thread every `seconds`, and set `stop` when the run should stop."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(seconds):
            try:
                stop.cancelled = attempts.heartbeat(store.database, attempt) or stop.cancelled
            except StaleAttempt:
                stop.stale = True
                return
            except Exception as error:  # noqa: BLE001  a store that is out of reach for a while must not end the run
                log.warning("no heartbeat: %s", error)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
