"""Earlier uploads: what they hold, how large they are, and how to be rid of one."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from engine.datasets.base import DataProblem
from engine.datasets.kinds import recognise
from engine.datasets.members import visible
from engine.specs.clip import DataKind, split_sources


@dataclass(frozen=True)
class Kept:
    """A folder that an upload was unpacked into."""

    folder: Path
    data: Path
    """What of it the data are: itself, a folder in it, or a table."""
    kind: DataKind
    size: int
    """Bytes."""

    def of(self, data: str) -> bool:
        """Whether these data, as requests name them, lie in it."""
        return any(Path(part).is_relative_to(self.folder) for part in split_sources(data))


def kept(uploads: Path) -> list[Kept]:
    """Those in the folder of all uploads, the latest first."""
    folders = [each for each in uploads.iterdir() if each.is_dir() and visible(each.name)] if uploads.is_dir() else []
    return [_look(folder) for folder in sorted(folders, key=lambda each: -each.stat().st_mtime_ns)]


def forget(upload: Kept) -> None:
    """Remove it with all that is in it; one that is gone already is fine. Errors: DataProblem."""
    gone = upload.folder.with_name(f".{upload.folder.name}")
    try:
        upload.folder.rename(gone)  # so that half an upload is never offered
        shutil.rmtree(gone)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataProblem(f"{upload.folder} cannot be deleted: {error.strerror or error}") from error


def _look(folder: Path) -> Kept:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        data, kind = recognise(folder)
    except DataProblem:  # somebody has been at it by hand
        data, kind = folder, "auto"
    return Kept(folder, data, kind, size)
