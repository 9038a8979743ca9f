"""Earlier uploads: what they hold, how large they are, and how to be rid of one."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from engine.datasets.base import DataProblem
from engine.datasets.kinds import recognise
from engine.datasets.members import visible
from engine.roots import Roots, files_within, scan_within, stat_within
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
        """Return whether these data, as requests name them, lie in it."""
        return any(Path(part).is_relative_to(self.folder) for part in split_sources(data))


def kept(uploads: Path, roots: Roots = None) -> list[Kept]:
    """Return the uploads in the folder of all uploads, the latest first. roots: the folders that links may lead to."""
    entries = scan_within(uploads, roots) if stat_within(uploads, roots) else []
    folders = [entry for entry in entries if entry.is_folder and visible(entry.path.name)]
    return [_look(entry.path, roots) for entry in sorted(folders, key=lambda entry: -entry.status.st_mtime_ns)]


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


def _look(folder: Path, roots: Roots) -> Kept:
    size = sum(entry.status.st_size for entry in files_within(folder, roots))
    try:
        data, kind = recognise(folder, roots)
    except DataProblem:  # somebody has been at it by hand
        data, kind = folder, "auto"
    return Kept(folder, data, kind, size)
