"""Supervise one attempt until it ends: copy its output to the bounded log, wait, and record its exit.

The supervisor has a session of its own and outlives the process that started it. It forks the worker and never uses
torch itself: a fork of the warm process has the libraries already; in a fresh process the worker imports them.
"""

import json
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from datetime import datetime

from engine.jobs.hosts import host_name
from engine.jobs.log import BoundedLog, FailureLog
from engine.jobs.processes import Identity, Processes
from engine.jobs.wake import nudge
from engine.process import die_with_parent, oom_kills
from engine.settings import Settings
from engine.store import Attempt, Exit, Run, Unavailable, attempts, open_store
from engine.store.copies import mirror
from engine.store.files import RunFiles

logger = logging.getLogger(__name__)

LOOK_S = 0.2
"""Check at least this often, in seconds, whether the worker has ended, also while it prints nothing."""
RESERVED_BYTES = 4096
"""Disk space reserved for the exit record, in case the worker fills the disk."""
COPY_S, COPY_SHARE = 5.0, 0.1
"""Copy files after this many seconds, and for at most this share of the time: large checkpoints take long."""
COPY_RETRY_S, COPY_GIVE_UP_S = 10.0, 300.0
"""Seconds between two tries of the last copy, and in total. Its run has ended, and its files stay here in any case."""


class Copies:
    """Copies an attempt's files below VITALS_ARTIFACTS_URL, from a thread.

    The files of a timing are copied at its end only, because nothing may disturb it.
    """

    def __init__(self, settings: Settings, run: Run, attempt: Attempt) -> None:
        self._settings, self._run, self._attempt = settings, run, attempt
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._copy_repeatedly, name="copies", daemon=True)

    def start(self) -> None:
        """Start copying changed files again and again, unless the run is a timing."""
        if not self._run.spec.exclusive:
            self._thread.start()

    def _copy_repeatedly(self) -> None:
        failures, pause = FailureLog(logger, f"copying the files of run {self._run.id}"), COPY_S
        while not self._ended.wait(pause):
            begun = time.monotonic()
            with failures.catching():
                mirror.push(self._settings, self._run, self._attempt.number)
            pause = max(COPY_S, (time.monotonic() - begun) / COPY_SHARE)

    def finish(self, end: Exit) -> Exception | None:
        """Copy what is left, with the attempt's end. Return the error if that failed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            mirror.push(self._settings, self._run, self._attempt.number, asdict(end))
        except Exception as error:  # noqa: BLE001  Unreachable, or an error of the disk
            return error
        return None

    def finish_with_retries(self, end: Exit, output: BoundedLog) -> None:
        """Try for some minutes to finish. If that fails, the log and a warning of the run say so."""
        deadline = time.monotonic() + COPY_GIVE_UP_S
        while problem := self.finish(end):
            if time.monotonic() > deadline:
                text = self.warn(problem)
                output.write(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S} WARNING {text}\n".encode())
                return
            time.sleep(COPY_RETRY_S)

    def warn(self, problem: Exception) -> str:
        """Add a warning to the run that its last copy failed, or log an error without the store. Return the warning."""
        folder, host = RunFiles(self._settings.runs_dir, self._run.id).dir, host_name(self._attempt.host)
        text = (
            f"its files are only in {folder} on {host}, because they could not be copied: {problem}. "
            f"Copy them on that host with `python -m engine runs upload {self._run.id}`"
        )
        try:
            with closing(open_store(self._settings)) as store:
                attempts.warn(store.database, self._attempt, text)
        except Unavailable as error:
            logger.error("a warning of run %d is not stored: %s", self._run.id, error)
        return text


def supervise(
    files: RunFiles, attempt: Attempt, settings: Settings, work: Callable[[], int], copies: Copies | None = None
) -> None:
    """Run `work` in a child process until it ends. `work` returns the exit code.

    copies: copies the attempt's files to VITALS_ARTIFACTS_URL, if that is set. The last copy is tried before the exit
    is recorded, so that the next attempt finds the files on any host.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these signals are for the worker
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        files.process(attempt.number).open("x").close()
    except FileExistsError:
        return  # another supervisor has this attempt
    exit_path = files.exit(attempt.number)
    part = exit_path.with_name(exit_path.name + ".part")
    part.write_bytes(b" " * RESERVED_BYTES)
    output_reader, output_writer = os.pipe()
    start_reader, start_writer = os.pipe()
    kills = oom_kills()
    pid = os.fork()
    if pid == 0:
        os.close(output_reader)
        os.close(start_writer)
        _become_worker(output_writer, start_reader, work)
    os.close(output_writer)
    os.close(start_reader)
    processes = Processes(Identity.mine(), Identity.of(pid), group=True, folder=files.folder_id)
    processes.write(files.process(attempt.number))
    os.write(start_writer, b"!")  # only now: a worker must be on record before it works
    with closing(BoundedLog(files, int(settings.log_limit_mb * 1e6))) as output:
        if copies:
            copies.start()
        code = _pump(pid, output_reader, output)
        end = Exit(code=code, out_of_memory=oom_kills() > kills)
        problem = copies.finish(end) if copies else None
        with part.open("r+b") as file:
            file.write(json.dumps(asdict(end)).encode())
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        part.replace(exit_path)
        nudge(settings.runs_dir)
        if copies and problem:
            copies.finish_with_retries(end, output)


def _become_worker(output: int, start: int, work: Callable[[], int]) -> None:
    """Run the worker in the forked child. Never returns."""
    code = 1
    try:
        die_with_parent()  # Linux only; on other systems the scheduler ends a worker without a supervisor
        os.setsid()  # leads its own group, so that it can be ended with its children and without its supervisor
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, target)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the last line survives SIGKILL
        if os.read(start, 1):  # empty if the supervisor has ended
            code = work()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  no exception may reach the stack frames of the forked parent
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _pump(pid: int, output: int, log: BoundedLog) -> int:
    """Copy output to the log until the worker ends, kill the rest of its group, and return the worker's exit code."""
    worker_group = Identity.of(pid)
    status: int | None = None
    is_open = True
    while status is None:
        if is_open and select.select([output], [], [], LOOK_S)[0]:
            data = os.read(output, 1 << 16)
            is_open = bool(data)
            log.write(data)
        elif not is_open:
            time.sleep(LOOK_S / 10)  # the worker has closed its output, most likely because it ends
        done, wait_status = os.waitpid(pid, os.WNOHANG)
        status = wait_status if done else None
    worker_group.send_group(signal.SIGKILL)
    while is_open and select.select([output], [], [], 0)[0] and (data := os.read(output, 1 << 16)):
        log.write(data)
    return os.waitstatus_to_exitcode(status)
