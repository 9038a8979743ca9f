"""Start, replace and stop the scheduler. At most one runs per host: the holder of the lease."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

from engine.jobs import disk
from engine.jobs.hosts import this_host
from engine.jobs.processes import Identity
from engine.jobs.wake import nudge
from engine.settings import ROOT, Settings
from engine.store import ACTIVE, Filter, Store, Unavailable, attempts, leases, migrations, open_store, queue
from engine.store.database import Database
from engine.store.leases import Lease

STOP_S = 20.0
"""Wait at most this many seconds after SIGTERM, then send SIGKILL."""
HEALTH_BUSY_S = 1.0
"""Wait at most this many seconds for a locked store in a health check. Monitors expect an answer in a few seconds."""
LOG = "scheduler.log"
"""Log of the scheduler and of the processes that it starts."""
LOG_BYTES = 1_000_000
"""Rotate a log that is larger than this."""


def lease_name() -> str:
    """Return the name of the lease of this host's scheduler."""
    return f"local@{this_host()}"


def fingerprint() -> str:
    """Return a hash of our code and of the versions of Python and the libraries that a warm process keeps in memory."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted((ROOT / "engine").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(path.read_bytes())
    for package in ("torch", "torchvision", "timm", "open_clip_torch"):
        with suppress(PackageNotFoundError):
            digest.update(f"{package} {version(package)}".encode())
    return digest.hexdigest()


def runs_this_code(settings: Settings, lease: Lease | None, code: str) -> bool:
    """Return whether a live scheduler with this code fingerprint holds the lease."""
    return lease is not None and lease.fingerprint == code and _held(settings, lease)


def _held(settings: Settings, lease: Lease | None) -> bool:
    """Return whether the lease has not expired and its holder lives."""
    return bool(lease and not lease.expired and _holder(settings, lease))


def _holder(settings: Settings, lease: Lease) -> Identity | None:
    """Return the live process that holds a lease; None if it is dead, or if a damaged store no longer names it.

    None too if the lease was copied with its SQLite file: its holder then serves another runs folder.
    """
    try:
        holder = Identity.read(lease.holder)
    except (ValueError, TypeError):
        return None
    if not holder.alive() or (not settings.database_url and _serves(settings, holder.pid) is False):
        return None
    return holder


def _serves(settings: Settings, pid: int) -> bool | None:
    """Return whether a scheduler has the runs folder of these settings; None if unknown or if it is no scheduler."""
    try:
        process = psutil.Process(pid)
        if process.cmdline()[-3:] != ["-m", "engine", "scheduler"]:
            return None
        folder = process.environ().get("VITALS_RUNS_DIR")
        return Path(process.cwd(), folder).samefile(settings.runs_dir) if folder else None
    except (psutil.Error, OSError):  # it has ended, belongs to another user, or its folder was renamed
        return None


def ensure_scheduler(settings: Settings, store: Store | None = None) -> None:
    """Wake the scheduler if one with this code runs, else start one. store: the open store of these settings."""
    code = fingerprint()
    with nullcontext(store) if store else closing(open_store(settings)) as opened:
        lease = leases.read(opened.database, lease_name())
        if runs_this_code(settings, lease, code):
            nudge(settings.runs_dir)
        else:
            start_scheduler(settings, opened, code, lease)


def start_scheduler(settings: Settings, store: Store, code: str, seen: Lease | None) -> None:
    """Start a scheduler, and take the lease for it, so that nobody starts another one while it loads.

    If that fails, or a live scheduler with other code holds the lease, the new scheduler takes it itself.
    """
    rotate(settings.runs_dir / LOG)
    process = start_engine(settings, "scheduler")
    if not _held(settings, seen):
        with suppress(Unavailable, ProcessLookupError):
            holder = str(Identity.of(process.pid))
            leases.take(store.database, lease_name(), holder, code, settings.lease_s, seen)
    detach(process)


def rotate(log: Path) -> None:
    """Rename a log larger than LOG_BYTES to `.older.log`, which replaces the previous one."""
    with suppress(FileNotFoundError):  # there is none yet, or another process has just renamed it
        if log.stat().st_size > LOG_BYTES:
            log.replace(log.with_suffix(".older.log"))


def stop_scheduler(settings: Settings) -> bool:
    """End the scheduler and its warm process; return False when there was none. Active runs continue to their end.

    This also ends a scheduler that the lease does not name: one that cannot reach the store since the password has
    changed neither learns that another has taken over nor exits.
    """
    schedulers = set()
    for pid in psutil.pids():
        if _serves(settings, pid):
            with suppress(ProcessLookupError):  # it has ended since
                schedulers.add(Identity.of(pid))
    with suppress(Unavailable), closing(open_store(settings)) as store:
        lease = leases.read(store.database, lease_name())
        if lease and (holder := _holder(settings, lease)):
            schedulers.add(holder)
    for scheduler in schedulers:
        scheduler.send(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while scheduler.alive():
            if time.monotonic() > deadline:
                scheduler.send(signal.SIGKILL)
            time.sleep(0.02)
    return bool(schedulers)


@dataclass(frozen=True)
class Health:
    """The condition of store and scheduler, without paths and names, so that anybody may read it."""

    status: Literal["ok", "unavailable"]
    store: str
    """`ok`, or the problem."""
    scheduler: str
    """`working`; `idle` when none is alive and no run needs one; otherwise the problem."""
    disk: str = "unknown"
    """`ok`, or the problem."""
    queued: int | None = None
    active: int | None = None
    """Runs that are starting, running, stopping or vanished."""
    oldest_wait_s: float | None = None
    """Seconds since the oldest queued run was created, or its last attempt ended; None when nothing waits."""
    lease_left_s: float | None = None
    """Seconds until this host's scheduler must renew its lease; negative when it is late; None without a scheduler."""
    free_gb: float | None = None
    devices: tuple[str, ...] = ()
    """Devices that the last probe found."""


def look_at_health(settings: Settings) -> Health:
    """Check the store, this host's scheduler and the disk, without a long wait for a locked store."""
    try:
        with closing(Store(Database(settings.store_url, busy_s=HEALTH_BUSY_S), settings.queue_limit)) as store:
            database = store.database
            if database.sqlite and not Path(database.place).is_file():  # opening would create the file
                return Health(status="unavailable", store="there is no store yet", scheduler="unknown")
            migrations.check(database)
            lease = leases.read(database, lease_name())
            queued, oldest_wait_s = queue.waiting(database)
            active, machine = store.count(Filter(states=ACTIVE)), store.machine()
            local_attempts = [attempt for attempt in attempts.open_attempts(database) if attempt.host == this_host()]
    except Unavailable as error:  # also for a URL that cannot be used
        return Health(status="unavailable", store=error.cause, scheduler="unknown")
    except PermissionError as error:
        cause = f"the runs folder cannot be read ({error.strerror})"
        return Health(status="unavailable", store=cause, scheduler="unknown")
    working = _held(settings, lease)
    without = "there are open runs, and no scheduler is alive" if queued or local_attempts else "idle"
    scheduler = "working" if working else without
    full = bool(disk.shortage(settings))
    return Health(
        status="ok" if (working or scheduler == "idle") and not full else "unavailable",
        store="ok",
        scheduler=scheduler,
        disk=f"less than {settings.min_free_gb:g} GB are free, so no run starts" if full else "ok",
        queued=queued,
        active=active,
        oldest_wait_s=oldest_wait_s,
        lease_left_s=lease.expires_at - time.time() if lease else None,
        free_gb=disk.free_gb(settings),
        devices=tuple(device.name for device in machine.devices) if machine else (),
    )


def processes_with(path: Path) -> dict[int, str]:
    """Return the commands of the other processes of this host that have a file open, by pid."""
    commands = {}
    for process in psutil.process_iter(["cmdline", "open_files"]):
        files = {file.path for file in process.info["open_files"] or ()}
        if os.path.realpath(path) in files and process.pid != os.getpid():
            commands[process.pid] = " ".join(process.info["cmdline"] or ())
    return commands


def start_engine(
    settings: Settings, *arguments: str, log: str = LOG, stdin: int | None = None, stdout: int | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m engine ...` with these settings, in a new session so that no terminal's Ctrl-C reaches it.

    log: a file of the runs folder. stdin: by default empty; stdout: by default the log. stderr goes to the log.
    """
    with (settings.runs_dir / log).open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "engine", *arguments],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=out if stdout is None else stdout,
            stderr=out,
            env=environment(settings),
            start_new_session=True,
        )


def detach(process: subprocess.Popen[bytes]) -> None:
    """Let a process outlive us. If it ends first, a daemon thread waits for it, so that no zombie remains."""
    threading.Thread(target=process.wait, name=f"end of {process.pid}", daemon=True).start()


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables that give a process these settings, in any working directory."""
    variables = {f"VITALS_{name.upper()}": str(value) for name, value in settings.model_dump(mode="json").items()}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | variables | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
