"""Copies of runs' files below an fsspec URL, for machines that share the store but no runs folder.

URL/7-20261124T184512000000/index.json   the snapshot: the attempt that made it, the version of each file, the exit
URL/7-20261124T184512000000/files/...    the files, one object per version
URL/deleted/7-20261124T184512000000      an empty mark: the run was deleted

A snapshot is what the run's folder held at one moment. Its objects are written first and never overwritten, then the
index, so that a reader gets the old snapshot or the new one and never a part of a file. The host of the latest attempt
writes; all others read. Credentials come from the places where fsspec's file systems look for them.
"""

import json
import logging
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, ValidationError

from engine import atomic
from engine.settings import Settings
from engine.specs import Refused, error_message
from engine.store.copies.remote import Unreachable, reaching, replace_file
from engine.store.files import INDEX, RunFiles, held_by, is_own_file
from engine.store.model import Exit, Run

log = logging.getLogger(__name__)

LOOK_S, FAILED_S = 2.0, 15.0
"""Seconds between two looks at a snapshot, and between two tries after a failure: pages ask all the time."""
MOST_SCANS = 20
"""Scan a folder at most this many times until two scans agree. A checkpoint is rarely replaced in between."""
PUSH_PREFIX = ".push-"


def _check_name(name: str) -> str:
    parts = PurePosixPath(name).parts
    host_record = is_own_file(name) and not name.startswith("log")
    if host_record or name != "/".join(parts) or any(part.startswith((".", "/")) for part in parts):
        raise ValueError(f"{name!r} is not the name of a file that is copied")
    return name


class Version(NamedTuple):
    """The version of a file."""

    size: int
    modified_ns: int


class Index(BaseModel, frozen=True):
    """A snapshot of a run's files."""

    attempt: int
    exit: dict[str, Any] | None = None
    """How the attempt ended; None while it runs."""
    files: dict[Annotated[str, AfterValidator(_check_name)], Version] = {}


def is_light(name: str) -> bool:
    """Return whether a file is not a checkpoint. Checkpoints are large, so they are fetched one by one."""
    return not name.endswith(".pt")


def fetch(settings: Settings, run: Run, wanted: Callable[[str], bool] = is_light) -> None:
    """Bring files of a run from the URL into the runs folder, unless they are made here. Errors: Unreachable."""
    if settings.artifacts_url and not (place := _Place(settings, run)).made_here(run.attempt):
        with place.lock:
            place.fetch(run.attempt, wanted)


def look(settings: Settings, run: Run) -> Index | None:
    """Return the snapshot of a run whose files are made elsewhere, without fetching any. Errors: Unreachable."""
    if not settings.artifacts_url or (place := _Place(settings, run)).made_here(run.attempt):
        return None
    with place.lock:
        return place.look(run.attempt)


def begin(settings: Settings, run: Run, number: int) -> None:
    """Fetch what earlier attempts have made elsewhere. From now on this host writes. Errors: Unreachable."""
    if not settings.artifacts_url:
        return
    place = _Place(settings, run)
    for folder in place.files.dir.glob(f"{PUSH_PREFIX}*"):  # of a process that died: its links keep deleted checkpoints
        shutil.rmtree(folder)
    known = place.read()
    if made_elsewhere := number > 1 and not (known and known.attempt == number - 1 and place.made_here(known.attempt)):
        _looks.pop(place.url, None)
        log.info("fetching the files of attempt %d from %s", number - 1, place.url)
        place.fetch(number - 1, lambda name: True)
        known = place.read()
    index = Index(attempt=number, files=known.files if known else {})
    if made_elsewhere:  # a live earlier attempt then stops copying, before it deletes files that the index names
        place.publish(index)
    place.write(index)


def push(settings: Settings, run: Run, number: int, exit: dict[str, Any] | None = None) -> None:
    """Write a snapshot of an attempt's files, if anything changed. exit: how it ended. Errors: Unreachable; OSError.

    Does nothing before `begin`, after a later attempt has begun elsewhere, and when the run was deleted.
    """
    place = _Place(settings, run)
    if (known := place.read()) is None or known.attempt != number:
        return
    with TemporaryDirectory(dir=place.files.dir, prefix=PUSH_PREFIX) as folder:
        links = Path(folder)
        new = Index(attempt=number, exit=exit, files=_snapshot(place.files.dir, known.files, links))
        if new != known:
            place.upload(new, known, links)


def upload(settings: Settings, run: Run) -> None:
    """Write the files that this host has of an ended run, for other machines. Errors: Unreachable; OSError; Refused."""
    if not settings.artifacts_url:
        return
    place = _Place(settings, run)
    known = place.read()
    if not run.state.ended:
        raise Refused(f"run {run.id} is {run.state}: its files are copied when it ends")
    if not place.files.dir.is_dir() or (not place.made_here(run.attempt) and place.remote()):
        raise Refused(f"the files of run {run.id} were not made here")
    if known is None or known.attempt != run.attempt:
        place.write(known := Index(attempt=run.attempt))  # without the exit of an earlier attempt
    push(settings, run, run.attempt, known.exit or asdict(Exit()))


def _snapshot(folder: Path, before: dict[str, Version], links: Path) -> dict[str, Version]:
    """Return the files of a folder at one moment, and link those that are not in `before` into the folder `links`.

    Checkpoints are replaced by renaming, so the links keep what was there at that moment. Errors: OSError.
    """
    last: dict[str, int] | None = None
    for _ in range(MOST_SCANS):
        shutil.rmtree(links)
        links.mkdir()
        found, nodes = dict[str, Version](), dict[str, int]()
        for name in _names(folder):
            path, link = folder / name, links / name
            with suppress(FileNotFoundError):  # removed meanwhile
                status = path.stat()
                if version(status) != before.get(name):
                    link.parent.mkdir(parents=True, exist_ok=True)
                    os.link(path, link)
                    status = link.stat()  # the path may lead to another file by now
                found[name], nodes[name] = version(status), status.st_ino
        if last is not None and all(last.get(name, node) == node for name, node in nodes.items()):
            return found  # no file was replaced between the two scans
        last = nodes
    raise OSError(f"the files of {folder} change too fast to be copied")


def _names(folder: Path) -> Iterator[str]:
    """Yield the names of all files that are copied: no hidden ones, no links, no records of this host's processes."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            with suppress(ValueError):
                name = _check_name(path.relative_to(folder).as_posix())
                if not path.is_symlink():
                    yield name


def place_name(run: Run) -> str:
    """Return the name of a run's folder below the URL. The time tells the run from those of other stores there."""
    return f"{run.id}-{run.created_at:%Y%m%dT%H%M%S%f}"


class _Place:
    """The files of one run, here and below the URL."""

    def __init__(self, settings: Settings, run: Run) -> None:
        self.files = RunFiles(settings.runs_dir, run.id)
        self.base = settings.artifacts_url, place_name(run)
        self.url = "/".join(self.base)
        self.lock = _locks[self.url]
        if (held := held_by(self.files.dir)) not in ("", self.base[1]):
            raise Unreachable(f"{self.files.dir} holds {held}, a run of another store: rename this folder")

    def made_here(self, attempt: int) -> bool:
        """Return whether an attempt has run with this runs folder."""
        return self.files.process(attempt).is_file()

    def read(self) -> Index | None:
        """Return the last snapshot that was fetched or written here."""
        try:
            return Index.model_validate_json((self.files.dir / INDEX).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def write(self, index: Index) -> None:
        self.files.dir.mkdir(parents=True, exist_ok=True)
        atomic.write(self.files.dir / INDEX, json.dumps(index.model_dump(mode="json") | {"run": self.base[1]}))

    def look(self, latest: int) -> Index | None:
        """Return the latest snapshot, unless the files here are the originals.

        Deletes local checkpoints that it replaces, and local files that it lacks. latest: number of the latest attempt.
        """
        known = self.read()
        if not latest or (known and known.attempt == latest and known.exit is not None):
            return known
        seen_at, failure = max(_looks.get(url, (-FAILED_S, "")) for url in (self.url, self.base[0]))  # latest
        found = None
        if time.monotonic() - seen_at > (FAILED_S if failure else LOOK_S):
            looked_up, failure = self.url, ""
            try:
                found = self.remote()
            except Unreachable as error:
                failure, cause = str(error), error.__cause__ or error
                if not isinstance(cause, ValidationError):  # a page with many runs must not wait once for each of them
                    looked_up = self.base[0]
                    failure = f"the files in {looked_up} cannot be reached: {error_message(cause)}"
            _looks[looked_up] = time.monotonic(), failure
        if failure:
            raise Unreachable(failure)
        original = known is not None and self.made_here(known.attempt)
        if found is None or (original and known and found.attempt <= known.attempt):
            return None if original else known
        if found != known:
            for name, version in (known.files if known else {}).items():
                replaced = name not in found.files or (found.files[name] != version and not is_light(name))
                if replaced and self._has(name, version):
                    (self.files.dir / name).unlink()
            self.write(found)
        return found

    def fetch(self, latest: int, wanted: Callable[[str], bool]) -> None:
        """Fetch the wanted files that differ here. latest: as in `look`. Errors: Unreachable."""
        try:
            if index := self.look(latest):
                self._download(index, wanted)
        except Unreachable as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            _looks.pop(self.url, None)  # a newer snapshot has replaced this one meanwhile
            if index := self.look(latest):
                self._download(index, wanted)

    def remote(self) -> Index | None:
        """Return the snapshot at the URL, if there is one. Errors: Unreachable."""
        with reaching(*self.base) as (remote, root):
            try:
                return Index.model_validate_json(remote.cat_file(f"{root}/index.json"))
            except FileNotFoundError:
                return None

    def _has(self, name: str, wanted: Version) -> bool:
        try:
            return version((self.files.dir / name).stat()) == wanted
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _download(self, index: Index, wanted: Callable[[str], bool]) -> None:
        names = [name for name in index.files if wanted(name) and not self._has(name, index.files[name])]
        if not names:
            return
        with TemporaryDirectory(dir=self.files.dir, prefix=".fetch-") as folder, reaching(*self.base) as (remote, root):
            parts = [Path(folder, str(number)) for number, _ in enumerate(names)]
            remote.get([_object(root, name, index.files[name]) for name in names], [str(part) for part in parts])
            for name, part in zip(names, parts, strict=True):
                path, modified_ns = self.files.dir / name, index.files[name].modified_ns
                os.utime(part, ns=(modified_ns, modified_ns))
                path.parent.mkdir(parents=True, exist_ok=True)
                part.replace(path)

    def publish(self, index: Index) -> None:
        """Write the index that all machines read. Errors: Unreachable."""
        with reaching(*self.base) as (remote, root):
            replace_file(remote, f"{root}/index.json", index.model_dump_json())

    def upload(self, new: Index, old: Index, links: Path) -> None:
        """Write the files in the folder `links`, then the index, and delete the objects that it no longer names."""
        names = [name for name in new.files if (links / name).is_file()]
        with reaching(*self.base) as (remote, root):
            remote.put([str(links / name) for name in names], [_object(root, name, new.files[name]) for name in names])
        latest = self.remote()
        if latest and latest.attempt > new.attempt:
            log.warning("attempt %d writes to %s now: this attempt's files stay here", latest.attempt, self.url)
            self.write(Index(attempt=0, files=old.files))  # the folder is only a copy from now on
            return
        self.publish(new)
        self.write(new)
        try:
            if obsolete := {_object(root, *file) for file in old.files.items() - new.files.items()}:
                remote.rm(list(obsolete))
        except Exception as error:  # noqa: BLE001  what is no longer needed may stay
            log.warning("old files in %s cannot be deleted: %s", self.url, error)


def version(status: os.stat_result) -> Version:
    """Return the version that a file has."""
    return Version(status.st_size, status.st_mtime_ns)


_looks: dict[str, tuple[float, str]] = {}
"""When each run's snapshot was last looked up, and why it cannot be read, else ""; by VITALS_ARTIFACTS_URL, when and
why the URL could not be reached."""
_locks: defaultdict[str, Lock] = defaultdict(Lock)


def _object(root: str, name: str, version: Version) -> str:
    # quoted, because file systems take stars and brackets for patterns
    return f"{root}/files/{quote(name)}@{version.modified_ns}-{version.size}"
