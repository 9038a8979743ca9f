"""Supervise one attempt until it ends: copy its output to the bounded log, wait, and record its exit.

The supervisor has a session of its own and outlives the process that started it. It forks the worker and never uses
torch itself: a fork of the warm process has the libraries already; in a fresh process the worker imports them.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from engine.jobs.log import BoundedLog
from engine.jobs.processes import Identity, Processes
from engine.jobs.wake import nudge
from engine.process import die_with_parent, oom_kills
from engine.settings import Settings
from engine.store import Attempt, Exit
from engine.store.files import RunFiles

LOOK_S = 0.2
RESERVED_BYTES = 4096


def supervise(files: RunFiles, attempt: Attempt, settings: Settings, work: Callable[[], int]) -> None:
    """Run `work` in a child process until it ends. `work` returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these signals are for the worker
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not _claim(files.process(attempt.number)):
        return  # another supervisor has this attempt
    exit_path = files.exit(attempt.number)
    part = exit_path.with_name(exit_path.name + ".part")
    # reserves disk space for the exit record, in case the worker fills the disk
    part.write_bytes(b" " * RESERVED_BYTES)
    out, into = os.pipe()
    go, start = os.pipe()
    kills = oom_kills()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        os.close(start)
        _become_worker(into, go, work)
    os.close(into)
    os.close(go)
    Processes(Identity.mine(), Identity.of(pid), group=True).write(files.process(attempt.number))
    os.write(start, b"!")  # only now: a worker must be on record before it works
    with closing(BoundedLog(files, int(settings.log_limit_mb * 1e6))) as log:
        code = _pump(pid, out, log)
    end = Exit(code=code, out_of_memory=oom_kills() > kills)
    with part.open("r+b") as file:
        file.write(json.dumps(asdict(end)).encode())
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    part.replace(exit_path)
    nudge(settings.runs_dir)


def _claim(path: Path) -> bool:
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True


def _become_worker(into: int, go: int, work: Callable[[], int]) -> None:
    """Run the worker in the forked child. Never returns."""
    code = 1
    try:
        die_with_parent()  # Linux only; on other systems the scheduler ends a worker without a supervisor
        os.setsid()  # leads its own group, so that it can be ended with its children and without its supervisor
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, into), (2, into)):
            os.dup2(source, target)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the last line survives SIGKILL
        if os.read(go, 1):  # empty if the supervisor has ended
            code = work()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  no exception may reach the stack frames of the forked parent
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _pump(pid: int, out: int, log: BoundedLog) -> int:
    """Copy output to the log until the worker ends, kill the rest of its group, and return the worker's exit code."""
    worker_group = Identity.of(pid)
    status: int | None = None
    open_ = True
    while status is None:
        if open_ and select.select([out], [], [], LOOK_S)[0]:
            data = os.read(out, 1 << 16)
            open_ = bool(data)
            log.write(data)
        elif not open_:
            time.sleep(LOOK_S / 10)  # the worker has closed its output, most likely because it ends
        done, wait_status = os.waitpid(pid, os.WNOHANG)
        status = wait_status if done else None
    worker_group.send_group(signal.SIGKILL)
    while open_ and select.select([out], [], [], 0)[0] and (data := os.read(out, 1 << 16)):
        log.write(data)
    return os.waitstatus_to_exitcode(status)
