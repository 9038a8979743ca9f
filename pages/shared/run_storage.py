"""What all runs take up, and which the most."""

import streamlit as st

from engine.store import storage
from pages.shared import backend
from pages.shared.text import size

QUICK = 2000
"""So many runs' folders are looked at without being asked for."""
FRESH_S, LOOKED_S = 30, 600


def draw() -> None:
    """A line of totals, then the largest runs."""
    used = _usage(backend.settings().store_url)
    st.text(
        f"{used.runs:,} runs. The database has {size(used.database / 1e9)}; "
        f"{used.artifacts.files:,} artifacts have {size(used.artifacts.bytes / 1e9)}; "
        f"{size(used.free / 1e9)} are free on the disk."
    )
    _folders(used.runs)
    if largest := _largest(backend.settings().store_url):
        st.caption("The runs with the largest artifacts")
        st.dataframe(
            {
                "run": [f"run?run={each.run_id}" for each in largest],
                "kind": [each.kind for each in largest],
                "what": [each.what for each in largest],
                "files": [each.artifacts.files for each in largest],
                "size": [size(each.artifacts.bytes / 1e9) for each in largest],
            },
            key="runs_largest",
            hide_index=True,
            alt="Runs with the largest artifacts",
            column_config={
                "run": st.column_config.LinkColumn("Run", display_text=r"run=(\d+)", width="small"),
                "kind": st.column_config.TextColumn("Kind", width="small"),
                "what": st.column_config.TextColumn("What", width="large"),
                "files": st.column_config.NumberColumn("Files", width="small"),
                "size": st.column_config.TextColumn("Size", width="small", alignment="right"),
            },
        )


def forget() -> None:
    """What was counted is no longer so."""
    for cached in (_usage, _largest, _walked):
        cached.clear()


def _folders(runs: int) -> None:
    """All files, logs and checkpoints included: at once where there are few, else when asked for."""
    if runs > QUICK and not st.toggle("Look at every folder", key="runs_walk", help="Takes a while with so many runs."):
        return
    mine, others = _walked(str(backend.settings().runs_dir))
    st.text(
        f"In the folders of runs: {mine.files:,} files of {size(mine.bytes / 1e9)}; "
        f"beside them (uploads, the scheduler's log): {others.files:,} of {size(others.bytes / 1e9)}."
    )


@st.cache_data(ttl=FRESH_S, max_entries=4, show_spinner=False)
def _usage(url: str) -> storage.Usage:
    return storage.usage(backend.store().database, backend.settings())


@st.cache_data(ttl=FRESH_S, max_entries=4, show_spinner=False)
def _largest(url: str) -> list[storage.Largest]:
    return storage.largest(backend.store().database)


@st.cache_data(ttl=LOOKED_S, max_entries=4, show_spinner="Looking at every folder")
def _walked(folder: str) -> tuple[storage.Size, storage.Size]:
    return storage.folders(backend.settings())
