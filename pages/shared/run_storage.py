"""Show the disk space used by all runs, and the largest runs."""

import streamlit as st

from engine.store import storage
from pages.shared import backend
from pages.shared.text import plural, size

MOST_SCANNED = 2000
"""Most runs whose folders are scanned without asking; more take seconds."""
USAGE_S, FOLDERS_S = 30, 600
"""Seconds until the database's totals and the scanned folders are read again."""


def draw() -> None:
    """Draw the totals and the table of the largest runs."""
    usage = _usage(backend.settings().store_url)
    st.text(
        f"{plural(usage.runs, 'run')}. Database: {size(usage.database / 1e9)}. "
        f"{plural(usage.artifacts.files, 'artifact')}: {size(usage.artifacts.bytes / 1e9)}. "
        f"Free on the disk: {size(usage.free / 1e9)}."
    )
    _folders(usage.runs)
    if largest := _largest(backend.settings().store_url):
        st.caption("Runs with the largest artifacts")
        st.dataframe(
            {
                "run": [f"run?run={run.run_id}" for run in largest],
                "kind": [run.kind for run in largest],
                "what": [run.what for run in largest],
                "files": [run.artifacts.files for run in largest],
                "size": [size(run.artifacts.bytes / 1e9) for run in largest],
            },
            key="runs_largest",
            hide_index=True,
            alt="Runs with the largest artifacts",
            column_config={
                "run": st.column_config.LinkColumn("Run", display_text=r"run=(\d+)", width="small"),
                "kind": st.column_config.TextColumn("Kind", width="small"),
                "what": st.column_config.TextColumn("Request", width="large"),
                "files": st.column_config.NumberColumn("Files", width="small"),
                "size": st.column_config.TextColumn("Size", width="small", alignment="right"),
            },
        )


def clear_cache() -> None:
    """Forget the cached sizes, after runs were deleted."""
    for function in (_usage, _largest, _scan):
        function.clear()


def _folders(runs: int) -> None:
    """Draw the size of all files, with logs and checkpoints. With many runs, only when the user asks for it."""
    help = "With this many runs it takes several seconds."
    if runs > MOST_SCANNED and not st.toggle("Scan all folders", key="runs_walk", help=help):
        return
    folders, others = _scan(str(backend.settings().runs_dir))
    st.text(
        f"Run folders: {plural(folders.files, 'file')}, {size(folders.bytes / 1e9)}. "
        f"Uploads and scheduler log: {plural(others.files, 'file')}, {size(others.bytes / 1e9)}."
    )


@st.cache_data(ttl=USAGE_S, max_entries=4, show_spinner=False)
def _usage(url: str) -> storage.Usage:
    return storage.usage(backend.store().database, backend.settings())


@st.cache_data(ttl=USAGE_S, max_entries=4, show_spinner=False)
def _largest(url: str) -> list[storage.Largest]:
    return storage.largest(backend.store().database)


@st.cache_data(ttl=FOLDERS_S, max_entries=4, show_spinner="Scanning all folders")
def _scan(folder: str) -> tuple[storage.Size, storage.Size]:
    return storage.folders(backend.settings())
