"""Copies of uploads below VITALS_ARTIFACTS_URL: URL/uploads/NAME.tar. Uploads never change: one copy is enough."""

import tarfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.settings import Settings
from engine.store.copies.remote import reaching

UPLOADS = "uploads"
"""The folder of all uploads, in the runs folder and below the URL."""


def folder_of(settings: Settings, path: Path) -> Path | None:
    """Return the folder of the upload to which a path belongs; None for other paths."""
    uploads = settings.runs_dir.absolute() / UPLOADS
    inside = path.absolute().relative_to(uploads).parts if path.absolute().is_relative_to(uploads) else ()
    return uploads / inside[0] if inside and inside[0] != ".." else None


def push(settings: Settings, folder: Path) -> None:
    """Copy an upload for other machines, unless that was done before. Errors: Unreachable."""
    with (
        reaching(settings.artifacts_url, UPLOADS) as (remote, root),
        TemporaryDirectory(dir=folder.parent, prefix=".") as scratch,
    ):
        copy = f"{root}/{folder.name}.tar"
        if remote.exists(copy):
            return
        packed, part = Path(scratch, "packed.tar"), f"{copy}{Path(scratch).name}"  # another session may copy it too
        with tarfile.open(packed, "w") as tar:
            tar.add(folder, arcname=".")
        remote.put_file(str(packed), part)
        remote.mv(part, copy)


def fetch(settings: Settings, folder: Path) -> None:
    """Bring a copied upload of another machine, unless it is here already or has no copy. Errors: Unreachable."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        reaching(settings.artifacts_url, UPLOADS) as (remote, root),
        TemporaryDirectory(dir=folder.parent, prefix=".") as scratch,
    ):
        packed, unpacked = Path(scratch, "packed.tar"), Path(scratch, "unpacked")
        with suppress(FileNotFoundError):
            remote.get_file(f"{root}/{folder.name}.tar", str(packed))
            with tarfile.open(packed) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 has none
                tar.extractall(unpacked)  # noqa: S202 - `push` has made the tar
            try:
                unpacked.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another run has brought it meanwhile
                    raise


def delete(settings: Settings, folder: Path) -> None:
    """Delete the copy of an upload. Errors: Unreachable."""
    if settings.artifacts_url:
        with reaching(settings.artifacts_url, UPLOADS) as (remote, root), suppress(FileNotFoundError):
            remote.rm_file(f"{root}/{folder.name}.tar")
