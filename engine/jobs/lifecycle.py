"""How a scheduler comes, is replaced and leaves. At most one per host and executor: the holder of the lease."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from engine.jobs.hosts import this_host
from engine.jobs.processes import Identity
from engine.jobs.wake import nudge
from engine.settings import ROOT, Settings
from engine.store import ACTIVE, Filter, State, Store, Unavailable, find, leases, open_store
from engine.store.database import Database
from engine.store.leases import Lease

STOP_S = 20.0
HEALTH_BUSY_S = 1.0
"""Seconds that a look at the health waits for a locked store: monitors expect an answer within a few seconds."""
LOG_BYTES = 1_000_000


def lease_name(settings: Settings) -> str:
    """Return the name of the scheduler's lease: one for each executor on each host."""
    return f"{settings.executor}@{this_host()}"


def fingerprint() -> str:
    """Changes with our code and with the libraries that a warm process keeps in memory."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted((ROOT / "engine").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(path.read_bytes())
    for package in ("torch", "torchvision", "timm", "open_clip_torch"):
        try:
            digest.update(f"{package} {version(package)}".encode())
        except PackageNotFoundError:
            continue
    return digest.hexdigest()


def at_work(lease: Lease | None, code: str) -> bool:
    """Return whether a scheduler of this very code (a fingerprint) holds the lease and lives."""
    return bool(lease and not lease.expired and lease.fingerprint == code and _holder(lease))


def _holder(lease: Lease) -> Identity | None:
    """Return the process that holds a lease; None if it is dead, or if a damaged store no longer tells which it is."""
    try:
        holder = Identity.read(lease.holder)
    except (ValueError, TypeError):
        return None
    return holder if holder.alive() else None


def ensure_scheduler(settings: Settings, store: Store | None = None) -> None:
    """Start a scheduler, detached, unless one with this very code is at work; then only wake it.

    store: that of the settings, where the caller has it open.
    """
    if at_work(_lease(settings, store), fingerprint()):
        nudge(settings.runs_dir)
        return
    log = settings.runs_dir / "scheduler.log"
    trim(log)
    detach(start_engine(settings, "scheduler", log=log))


def trim(log: Path) -> None:
    """Set a log aside that has grown long; the one before it goes."""
    if log.is_file() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".older.log"))


def stop_scheduler(settings: Settings) -> bool:
    """End the scheduler and its warm process; False when there was none. Runs under way end by themselves."""
    try:
        lease = _lease(settings)
        holder = _holder(lease) if lease else None
        schedulers = [holder] if holder else []
    except Unavailable:
        schedulers = _schedulers(settings)
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
    """How the store and the scheduler are, in words for everybody: without paths and names."""

    well: bool
    store: str
    """`ok`, or what is wrong."""
    scheduler: str
    """`working`; `idle` when none is alive and no run needs one; or what is wrong."""


def look_at_health(settings: Settings) -> Health:
    """Look at the store and at this host's scheduler, without waiting long for a locked store."""
    database = Database(settings.store_url, busy_s=HEALTH_BUSY_S)
    if database.sqlite and not Path(database.place).is_file():  # which opening would make
        return Health(well=False, store="there is no store yet", scheduler="unknown")
    try:
        lease = leases.read(database, lease_name(settings))
        working = bool(lease and not lease.expired and _holder(lease))
        waiting = find.count(database, Filter(states=(State.QUEUED, *ACTIVE)))
    except Unavailable as error:
        return Health(well=False, store=error.cause, scheduler="unknown")
    finally:
        database.close()
    if working or not waiting:
        return Health(well=True, store="ok", scheduler="working" if working else "idle")
    return Health(well=False, store="ok", scheduler="runs wait, and no scheduler is alive")


def _lease(settings: Settings, store: Store | None = None) -> Lease | None:
    with nullcontext(store) if store else closing(open_store(settings)) as opened:
        return leases.read(opened.database, lease_name(settings))


def _schedulers(settings: Settings) -> list[Identity]:
    """Return the scheduler processes that were started for a store, when it can no longer tell who holds its lease."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):  # None where we may not look
        command, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        same = variables.get("VITALS_RUNS_DIR") == str(settings.runs_dir)
        if same and command[-3:] == ["-m", "engine", "scheduler"]:
            found.append(Identity.of(process.pid))
    return found


def processes_with(path: Path) -> dict[int, str]:
    """Return the other processes of this host that have a file open: their commands by pid."""
    found = {}
    for process in psutil.process_iter(["cmdline", "open_files"]):
        files = {file.path for file in process.info["open_files"] or ()}
        if os.path.realpath(path) in files and process.pid != os.getpid():
            found[process.pid] = " ".join(process.info["cmdline"] or ())
    return found


def start_engine(
    settings: Settings, *arguments: str, log: Path, stdin: int | None = None, stdout: int | None = None
) -> subprocess.Popen[bytes]:
    """`python -m engine ...` with these settings, in a session of its own: no terminal's Ctrl-C reaches it.

    stdin: nothing can be read from it unless given; stdout: the log unless given.
    """
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "engine", *arguments],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=out if stdout is None else stdout,
            stderr=out,
            env=environment(settings),
            start_new_session=True,
        )


def detach(process: subprocess.Popen[bytes]) -> None:
    """Leave a process to itself: it may outlive us, and if it does not, a thread has waited for it."""
    threading.Thread(target=process.wait, name=f"end of {process.pid}", daemon=True).start()


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a process that is to have these settings, wherever it runs."""
    own = {f"VITALS_{name.upper()}": str(value) for name, value in settings.model_dump(mode="json").items()}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | own | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
