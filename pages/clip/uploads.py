"""Uploads of the user's own data. An upload is unpacked into a folder, can be used again, and can be deleted."""

import re
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import streamlit as st

from engine.datasets import DataProblem, unpack
from engine.datasets.kinds import recognise
from engine.datasets.uploads import FORMATS, Kept, forget, kept
from engine.jobs import named_files
from engine.specs import Refused
from engine.specs.fields.clip import EMBEDDED, DataKind, short_name
from engine.store import ENDED, UNFINISHED, Filter, Role, Run
from engine.store.copies import uploads
from pages.shared import backend
from pages.shared.form import spec_form
from pages.shared.rerun import fold
from pages.shared.text import show_error, size

MOST_CHECKED = 1000
"""Maximum number of unfinished and of ended runs that are checked for the use of an upload before it is deleted."""


def folder() -> Path:
    """Return the folder of all uploads."""
    return backend.settings().runs_dir / uploads.UPLOADS


def earlier() -> list[Kept]:
    """Return the stored uploads, the latest first."""
    path = folder()
    return _earlier(str(path), path.stat().st_mtime_ns if path.is_dir() else 0)


@st.cache_data(max_entries=4, show_spinner=False)
def _earlier(path: str, stamp: int) -> list[Kept]:
    return kept(Path(path), backend.settings().roots)


def take_in(prefix: str) -> None:
    """Unpack a new upload once and make it the data of the form. Call this before the form's fields are drawn.

    A callback of the upload field cannot do this. The first message with the file may come from a timer, whose run
    draws no field of the form. The browser would not receive the new value and would overwrite it.
    """
    key = f"{prefix}_upload"
    file = st.session_state.get(key)
    identity = file and file.file_id
    if identity != st.session_state.get(f"{key}_taken"):
        st.session_state[f"{key}_taken"] = identity
        st.session_state[f"{key}_problem"] = _unpack_and_use(prefix, file) if file else ""


def draw(prefix: str) -> None:
    """Draw the upload field, the problem with the last upload, and the earlier uploads."""
    key = f"{prefix}_upload"
    if not backend.may_start():
        return
    st.file_uploader(
        "Or upload data (.csv, .parquet, .json, .zip, .tar)",
        type=[ending.rpartition(".")[2] for ending in FORMATS],  # a browser knows .gz, not .tar.gz
        key=key,
        help="Upload a table, or a zip or tar of class folders, of images with a .txt each, or of images with a CSV, a "
        "Parquet or a .json of captions (COCO or Karpathy).",
    )
    if problem := st.session_state.get(f"{key}_problem"):
        show_error(problem)
    if stored := earlier():
        total = size(sum(upload.size for upload in stored) / 1e9)
        label = f"Uploads: {len(stored)}, {total}"
        fold(label, partial(_draw_kept, prefix, stored), icon=":material/folder_open:", key=f"{prefix}_uploads")


def _draw_kept(prefix: str, stored: Sequence[Kept]) -> None:
    for upload in stored:
        key = f"{prefix}_kept_{upload.folder.name}"
        with st.container(horizontal=True, vertical_alignment="center"):
            owner = f", by {upload.owner}" if upload.owner else ""
            st.text(f"{short_name(str(upload.folder))}, {size(upload.size / 1e9)}{owner}", width="stretch")
            st.button("Use", key=f"{key}_use", on_click=_use, args=(prefix, upload.data, upload.kind))
            options: dict[str, Any] = {"icon": ":material/delete:", "type": "tertiary"}
            if backend.user().may_change(upload.owner) and st.button("Delete", key=f"{key}_delete", **options):
                _confirm(prefix, upload)


def _users(upload: Kept) -> list[Run]:
    """Return the runs that name an upload, unfinished ones first."""
    filters = (Filter(kinds=("train", "evaluate"), states=states) for states in (UNFINISHED, ENDED))
    found = (backend.store().find(wanted, limit=MOST_CHECKED) for wanted in filters)
    return [run for run in chain(*found) if any(upload.of(path) for _, path in named_files.named_paths(run.spec))]


def _still_used(runs: Sequence[Run]) -> str:
    """Return why an upload with these users cannot be deleted; empty if it can."""
    active = [run for run in runs if not run.state.ended]
    return f"Run {active[0].id} still uses it. Wait until it ends, or cancel it." if active else ""


@st.dialog("Delete this upload?")
def _confirm(prefix: str, upload: Kept) -> None:
    """Draw the confirmation dialog, with the runs that used the upload."""
    st.text(f"{short_name(str(upload.folder))}, {size(upload.size / 1e9)}")
    runs = _users(upload)
    if active := _still_used(runs):
        st.warning(active, icon=":material/lock:")
    elif runs:
        users = f"{len(runs)} runs used" if len(runs) > 1 else f"Run {runs[0].id} used"
        st.text(f"{users} it. Results stay, but a run without its data cannot be repeated or resumed.")
    options: dict[str, Any] = {"type": "primary", "icon": ":material/delete:", "disabled": bool(active)}
    if st.button("Delete", key=f"{prefix}_kept_sure", on_click=_forget, args=(prefix, upload), **options):
        st.rerun()


def _forget(prefix: str, upload: Kept) -> None:
    try:
        backend.user().check_owner(upload.owner, upload.folder.name)
        if active := _still_used(_users(upload)):  # since the dialog was drawn
            raise Refused(f"{upload.folder.name} is not deleted. {active}")
        forget(upload)
        uploads.delete(backend.settings(), upload.folder)
    except Refused as problem:
        st.session_state[f"{prefix}_upload_problem"] = str(problem)
        return
    if upload.of(st.session_state.get(spec_form.key(prefix, "data")) or ""):
        _use(prefix, Path(EMBEDDED[0]), "auto")


def _use(prefix: str, path: Path, kind: str) -> None:
    st.session_state[spec_form.key(prefix, "data")] = str(path)
    st.session_state[spec_form.key(prefix, "data_kind")] = kind


def _unpack_and_use(prefix: str, file: Any) -> str:
    """Unpack a file into a folder named by content and owner, and use it as data. Return the error message, if any."""
    owner = backend.user().email
    digest = sha256(owner.encode())  # each user has a copy, so that nobody deletes another one's data
    digest.update(file.getbuffer())
    stem = re.sub(r"[^\w-]+", "_", Path(file.name).stem)[:40]
    target = folder() / f"{stem}-{digest.hexdigest()[:16]}"
    try:
        backend.user().require(Role.RUNNER)
        path, kind = _unpack_once(file, target, owner)
    except Refused as problem:
        data = st.session_state.get(spec_form.key(prefix, "data")) or EMBEDDED[0]
        return f"{str(problem).rstrip('.')}. The data stay {short_name(data)}."
    _use(prefix, path, kind)
    return ""


def _unpack_once(file: Any, target: Path, owner: str) -> tuple[Path, DataKind]:
    """Unpack a file unless that was done before. Return the path of the data and their kind. Errors: DataProblem."""
    if not target.is_dir():
        try:
            return unpack(file, file.name, target, owner)
        except DataProblem:
            if not target.is_dir():  # else another session has unpacked the same file meanwhile
                raise
    return recognise(target, backend.settings().roots)
