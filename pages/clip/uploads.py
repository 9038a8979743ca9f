"""Data of one's own: an upload becomes a folder, earlier ones are offered again, and one can be deleted."""

import re
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import streamlit as st

from engine.datasets import DataProblem, unpack
from engine.datasets.kept import Kept, forget, kept
from engine.datasets.kinds import recognise
from engine.specs.clip import EMBEDDED
from pages.shared import backend
from pages.shared.fold import fold
from pages.shared.form import spec_form
from pages.shared.text import plain, size

UPLOADS = "uploads"
RUNS = 1000  # looked through for what an upload was used for


def folder() -> Path:
    """Of all uploads."""
    return backend.settings().runs_dir / UPLOADS


def earlier() -> list[Kept]:
    """Uploads that are there, the latest first."""
    there = folder()
    return _earlier(str(there), there.stat().st_mtime_ns if there.is_dir() else 0)


@st.cache_data(max_entries=4, show_spinner=False)
def _earlier(there: str, stamp: int) -> list[Kept]:
    return kept(Path(there), backend.settings().roots)


def take_in(prefix: str) -> None:
    """Unpack what was uploaded, once, and make it the data of the form; to be called before its fields are drawn.

    Not on a change of the field: the first message with the file may be a tick, which draws no field of the form, so
    that the browser would never hear of the data, and undo them with its next message.
    """
    key = f"{prefix}_upload"
    file = st.session_state.get(key)
    identity = file and file.file_id
    if identity != st.session_state.get(f"{key}_taken"):
        st.session_state[f"{key}_taken"] = identity
        st.session_state[f"{key}_problem"] = _unpacked(prefix, file) if file else ""


def draw(prefix: str) -> None:
    """The field for a CSV or an archive, what was wrong with it, and earlier ones below."""
    key = f"{prefix}_upload"
    st.file_uploader(
        "Or upload them (.csv, .zip, .tar)",
        type=["csv", "tsv", "zip", "tar", "tgz", "gz"],
        key=key,
        help="A zip or tar of class folders, of images with a .txt each, or of images and a CSV that names them.",
    )
    if problem := st.session_state.get(f"{key}_problem"):
        st.error(plain(problem), icon=":material/error:")
    if uploads := earlier():
        whole = size(sum(each.size for each in uploads) / 1e9)
        label = f"Earlier uploads: {len(uploads)}, {whole}"
        if part := fold(label, icon=":material/folder_open:", key=f"{prefix}_uploads"):
            with part:
                for upload in uploads:
                    _line(prefix, upload)


def _line(prefix: str, upload: Kept) -> None:
    key = f"{prefix}_kept_{upload.folder.name}"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(f"{upload.folder.name}, {size(upload.size / 1e9)}", width="stretch")
        st.button("Use", key=f"{key}_use", on_click=_use, args=(prefix, upload.data, upload.kind))
        if st.button("Delete", key=f"{key}_delete", icon=":material/delete:", type="tertiary"):
            _confirm(prefix, upload)


@st.dialog("Delete this upload?")
def _confirm(prefix: str, upload: Kept) -> None:
    """Asked once, with what goes with it."""
    st.text(f"{upload.folder.name}, {size(upload.size / 1e9)}")
    kinds = (backend.store().runs(kind=kind, limit=RUNS) for kind in ("train", "evaluate"))
    runs = [run for run in chain(*kinds) if _reads(run.spec, upload)]
    if going := [run for run in runs if not run.state.ended]:
        st.warning(f"Run {going[0].id} reads it still: wait for its end, or cancel it.", icon=":material/lock:")
    elif runs:
        many = f"{len(runs)} runs were" if len(runs) > 1 else f"Run {runs[0].id} was"
        st.text(f"{many} made with it: their results stay, but they cannot be repeated or resumed.")
    options: dict[str, Any] = {"type": "primary", "icon": ":material/delete:", "disabled": bool(going)}
    if st.button("Delete", key=f"{prefix}_kept_sure", on_click=_forget, args=(prefix, upload), **options):
        st.rerun()


def _forget(prefix: str, upload: Kept) -> None:
    try:
        forget(upload)
    except DataProblem as problem:
        st.session_state[f"{prefix}_upload_problem"] = str(problem)
        return
    if upload.of(st.session_state.get(spec_form.key(prefix, "data")) or ""):
        _use(prefix, Path(EMBEDDED[0]), "auto")


def _reads(spec: object, upload: Kept) -> bool:
    return any(upload.of(getattr(spec, name, "")) for name in ("data", "val_data"))


def _use(prefix: str, path: Path, kind: str) -> None:
    st.session_state[spec_form.key(prefix, "data")] = str(path)
    st.session_state[spec_form.key(prefix, "data_kind")] = kind


def _unpacked(prefix: str, file: Any) -> str:
    """A folder for each content, used from now on; answers what is wrong with it."""
    digest = sha256(file.getbuffer()).hexdigest()[:16]
    stem = re.sub(r"[^\w-]+", "_", Path(file.name).stem)[:40]
    target = folder() / f"{stem}-{digest}"
    try:
        path, kind = recognise(target, backend.settings().roots) if target.is_dir() else unpack(file, file.name, target)
    except DataProblem as problem:
        return str(problem)
    _use(prefix, path, kind)
    return ""
