"""Files that requests name: check that they may be read, fetch and share them, and find the runs that use them."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from engine.jobs import checkpoints
from engine.roots import expand_home, stat_within
from engine.settings import Settings
from engine.specs import Refused, Spec
from engine.specs.evaluate import split_subject
from engine.specs.fields.clip import EMBEDDED, split_sources
from engine.store import Filter, Run, Store
from engine.store.copies import mirror, uploads
from engine.words import plural, shortened

RUNS_PER_QUERY = 500
"""Run numbers in one query, because SQLite allows 1,000 conditions."""
RUN_FOLDER = re.compile(r"[1-9]\d{0,17}", re.ASCII)
WEIGHTS = (".pt", ".pth", ".bin", ".safetensors", ".ckpt")
HELD_OUT = "held_out_data"
"""The field that names some of the data of other fields again."""
DATA_FIELDS = ("data", "val_data", "zeroshot_data", "probe_data", "more_data", HELD_OUT)
"""Fields of specs that name data sets."""
PATH_FIELDS = (*DATA_FIELDS, "pretrained", "checkpoint", "distill_pretrained", "resume", "more_models")


def fetch_files(store: Store, settings: Settings, spec: Spec) -> None:
    """Fetch the files of other runs that a spec names and other machines have made. Errors: Unreachable."""
    for _, path in named_paths(spec) if settings.artifacts_url else ():
        if upload := uploads.folder_of(settings, expand_home(path)):
            uploads.fetch(settings, upload)
        run_id, name = _in_folder(settings, path)
        if run_id:
            with suppress(LookupError):
                mirror.fetch(settings, store.run(run_id), partial(_is_needed, name))


def _is_needed(name: str, file: str) -> bool:
    """Return whether to fetch `file` of a run: it is no checkpoint, or its path begins with `name`."""
    return mirror.is_light(file) or file.startswith(name)


def _in_folder(settings: Settings, text: str) -> tuple[int, str]:
    """Return the number of the run in whose folder a path lies, and the rest of the path; 0 for other paths."""
    path, runs = expand_home(text).absolute(), settings.runs_dir.absolute()
    if not path.is_relative_to(runs):
        return 0, ""
    number, _, name = path.relative_to(runs).as_posix().partition("/")
    return (int(number), name) if RUN_FOLDER.fullmatch(number) else (0, "")


def deletion_warning(store: Store, settings: Settings, run_ids: Sequence[int]) -> str:
    """Return a text that names the other runs that began from these runs; empty if there are none."""
    if not (users := _users(store, settings, run_ids)):
        return ""
    names = shortened([f"{run.kind} {run.id}" for run in users], 5)
    began = f"{plural(len(users), 'other run')} began from {'these' if len(run_ids) > 1 else 'it'}: {names}."
    keeps = "They keep their" if len(users) > 1 else "It keeps its"
    kept = f"{keeps} results and checkpoints, but cannot be run again"
    return f"{began} {kept}, and an evaluation can no longer try texts or search its images."


def _users(store: Store, settings: Settings, run_ids: Sequence[int]) -> list[Run]:
    """Return the other runs whose requests name files of these runs: trained on, resumed or evaluated from them."""
    named, found = set(run_ids), dict[int, Run]()
    for start in range(0, len(run_ids), RUNS_PER_QUERY):
        wanted = Filter(uses=tuple(run_ids[start : start + RUNS_PER_QUERY]))
        for run in store.find(wanted, limit=store.count(wanted)):
            if run.id not in named and any(_in_folder(settings, path)[0] in named for _, path in named_paths(run.spec)):
                found[run.id] = run
    return sorted(found.values(), key=lambda run: -run.id)


def share_uploads(settings: Settings, spec: Spec) -> None:
    """Copy the uploads that a spec names for other machines. Errors: Unreachable."""
    for _, path in named_paths(spec) if settings.artifacts_url else ():
        if (upload := uploads.folder_of(settings, expand_home(path))) and upload.is_dir():
            uploads.push(settings, upload)


def check_paths(settings: Settings, spec: Spec) -> None:
    """Check that all files of a spec lie below the readable roots.

    Errors: Refused, with the same message for absent and forbidden files, so that it does not reveal which files exist.
    """
    for name, path in named_paths(spec):
        if not is_readable(settings, path):
            allowed = f"Readable folders (VITALS_DATA_ROOTS): {', '.join(map(str, settings.roots))}"
            why = " The run that made it may have been deleted." if _in_folder(settings, path)[0] else ""
            why += " Several shards are written as '{00..07}.tar', or give their folder." if "*" in path else ""
            raise Refused(f"{name}: nothing can be read at {path!r}.{why} {allowed}")


def check_again(store: Store, settings: Settings, run: Run) -> None:
    """Check the files of a stored run as `check_paths` does for a new one. Errors: Refused, as there.

    A stored run may have been imported, and links and roots may have changed since its submission. A training with its
    own checkpoints resumes from them, so its original `resume` path is not checked.
    """
    has_checkpoints = any(path.suffix == ".pt" for path in checkpoints.versions(settings, run))
    spec = run.spec.model_copy(update={"resume": ""}) if has_checkpoints else run.spec
    fetch_files(store, settings, spec)
    check_paths(settings, spec)


def named_paths(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the paths that a spec names, each with its field."""
    for name in PATH_FIELDS:
        value = getattr(spec, name, "") if name != HELD_OUT else ""
        for item in [value] if isinstance(value, str) else value:
            yield from ((name, path) for path in _paths(name, item))


def from_any_folder(spec: Spec) -> Spec:
    """Return a spec with absolute paths, because the process that runs it may have another current folder."""
    values = {name: getattr(spec, name) for name in PATH_FIELDS if hasattr(spec, name)}
    located = {
        name: _located(name, value) if isinstance(value, str) else tuple(_located(name, item) for item in value)
        for name, value in values.items()
    }
    return spec.model_copy(update=located)


def _located(name: str, value: str) -> str:
    """Return a value of the field `name` with absolute paths. A path that begins with `~` stays."""
    if name in DATA_FIELDS:
        return "::".join(part if part in EMBEDDED else _absolute(part) for part in split_sources(value))
    model, comma, checkpoint = value.partition(",") if name == "more_models" else ("", "", value)
    return model + comma + (_absolute(checkpoint.strip()) if _paths(name, value) else checkpoint)


def _absolute(path: str) -> str:
    """Return an absolute path. An address such as `s3://bucket` stays, for the message that refuses it."""
    return path if "://" in path or expand_home(path).is_absolute() else str(Path(path).absolute())


def _paths(name: str, value: str) -> list[str]:
    """Return the paths in a value of the field `name`."""
    if name in DATA_FIELDS:
        return [part for part in split_sources(value) if part not in EMBEDDED]
    path = split_subject(value)[1] if name == "more_models" else value
    is_path = name == "resume" or os.sep in path or "/" in path or path.endswith(WEIGHTS)
    return [path] if path and is_path else []


def is_readable(settings: Settings, text: str) -> bool:
    """Return whether a path exists and may be read. Of a pattern such as `{000..071}.tar`, the folder is checked."""
    begin, brace, _ = text.partition("{")
    path = expand_home(begin)
    path = (path if begin.endswith("/") else path.parent) if brace else path
    return stat_within(path, settings.roots) is not None
