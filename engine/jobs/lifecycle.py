"""How a scheduler comes, is replaced and leaves. At most one per host and executor: the holder of the lease."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from engine.jobs.hosts import this_host
from engine.jobs.processes import Identity
from engine.jobs.wake import nudge
from engine.settings import ROOT, Settings
from engine.store import leases, open_store
from engine.store.leases import Lease

STOP_S = 20.0
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
    """Whether a scheduler of this very code (a fingerprint) holds the lease and lives."""
    return bool(lease and not lease.expired and lease.fingerprint == code and Identity.read(lease.holder).alive())


def ensure_scheduler(settings: Settings) -> None:
    """Start a scheduler, detached, unless one with this very code is at work; then only wake it."""
    store = open_store(settings)
    lease = leases.read(store.database, lease_name(settings))
    store.close()
    if at_work(lease, fingerprint()):
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
    store = open_store(settings)
    lease = leases.read(store.database, lease_name(settings))
    store.close()
    if lease is None or not (scheduler := Identity.read(lease.holder)).alive():
        return False
    scheduler.send(signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while scheduler.alive():
        if time.monotonic() > deadline:
            scheduler.send(signal.SIGKILL)
        time.sleep(0.02)
    return True


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
    """The environment of a process that is to have these settings, wherever it runs."""
    own = {f"VITALS_{name.upper()}": str(value) for name, value in settings.model_dump(mode="json").items()}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | own | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
