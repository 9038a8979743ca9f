"""Check the free disk space below which no run starts (VITALS_MIN_FREE_GB)."""

import errno
import shutil

from engine.settings import Settings
from engine.specs.base import CLUSTER


class DiskFull(OSError):
    """Raised when there is too little disk space to start."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"too little disk space: {problem}")
        self.errno = errno.ENOSPC  # names the cause


def free_gb(settings: Settings) -> float | None:
    """Return the free space on the disk with the runs folder, in GB; None if there is no such folder yet."""
    return shutil.disk_usage(settings.runs_dir).free / 1e9 if settings.runs_dir.is_dir() else None


def shortage(settings: Settings, target: str = "") -> str:
    """Return why no run starts on this host's disk; empty if there is enough space.

    target: the host or device of a run. Nodes of a cluster have disks of their own if VITALS_ARTIFACTS_URL is set. Only
    their workers can check those.
    """
    if settings.artifacts_url and target.startswith(CLUSTER):
        return ""
    free = free_gb(settings)
    if free is None or free >= settings.min_free_gb:
        return ""
    return (
        f"{free:.2f} GB are free in {settings.runs_dir}, and VITALS_MIN_FREE_GB asks for {settings.min_free_gb:g} GB. "
        "Delete runs, or lower it."
    )


def refuse_shortage(settings: Settings) -> None:
    """Check that there is enough disk space to start. Errors: DiskFull."""
    if problem := shortage(settings):
        raise DiskFull(problem)
