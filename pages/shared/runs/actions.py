"""Delete, restart and tag runs, one or several, and show how much disk they take."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from engine import jobs
from engine.jobs import delete_run, named_files
from engine.report.export import bulk
from engine.specs import Refused
from engine.store import RETRYABLE, Run, storage
from engine.store.model import MOST_TAGS
from engine.words import plural, shortened
from pages.shared import backend, rerun
from pages.shared.runs import comparison_link
from pages.shared.table import download_formats
from pages.shared.text import show_error, size

MOST_SCANNED = 2000
"""With more runs, folders are scanned only on request, because that takes seconds."""
USAGE_S, FOLDERS_S = 30, 600
"""Seconds until the database's totals and the scanned folders are read again."""


def draw_storage() -> None:
    """Draw the totals and the table of the largest runs."""
    url = backend.settings().store_url
    usage = _usage(url)
    st.text(
        f"{plural(usage.runs, 'run')}. Database: {size(usage.database / 1e9)}. "
        f"{plural(usage.artifacts.files, 'artifact')}: {size(usage.artifacts.bytes / 1e9)}. "
        f"Free on the disk: {size(usage.free / 1e9)}."
    )
    folders = _folders(usage.runs)
    if largest := _largest(url, bool(folders), folders):
        title = "Largest runs" if folders else "Runs with the largest artifacts"
        st.caption(title)
        st.dataframe(
            {
                "run": [f"run?run={run.run_id}" for run in largest],
                "kind": [run.kind for run in largest],
                "what": [run.what for run in largest],
                "files": [run.files.files for run in largest],
                "size": [size(run.files.bytes / 1e9) for run in largest],
            },
            key="runs_largest",
            hide_index=True,
            alt=title,
            column_config={
                "run": st.column_config.LinkColumn("Run", display_text=r"run=(\d+)", width="small"),
                "kind": st.column_config.TextColumn("Kind", width="small"),
                "what": st.column_config.TextColumn("Request", width="large"),
                "files": st.column_config.NumberColumn("Files", width="small"),
                "size": st.column_config.TextColumn("Size", width="small", alignment="right"),
            },
        )


def _folders(runs: int) -> Mapping[int, storage.Size]:
    """Draw the size of all files, with logs and checkpoints, and return the size of each run's folder.

    With many runs, wait until the user asks for it. Before that, return no sizes.
    """
    help = f"Scanning the folders of more than {MOST_SCANNED:,} runs takes several seconds."
    if runs > MOST_SCANNED and not st.toggle("Scan all folders", key="runs_walk", help=help):
        return {}
    folders, others = _scan(str(backend.settings().runs_dir))
    total = storage.total(folders.values())
    st.text(
        f"Run folders: {plural(total.files, 'file')}, {size(total.bytes / 1e9)}. "
        f"Uploads and scheduler log: {plural(others.files, 'file')}, {size(others.bytes / 1e9)}."
    )
    return folders


@st.cache_data(ttl=USAGE_S, max_entries=4, show_spinner=False)
def _usage(url: str) -> storage.Usage:
    return storage.usage(backend.store().database, backend.settings())


@st.cache_data(ttl=USAGE_S, max_entries=4, show_spinner=False)
def _largest(url: str, scanned: bool, _folders: Mapping[int, storage.Size]) -> list[storage.Largest]:
    return storage.largest(backend.store().database, _folders)


@st.cache_data(ttl=FOLDERS_S, max_entries=4, show_spinner="Scanning all folders")
def _scan(folder: str) -> tuple[dict[int, storage.Size], storage.Size]:
    return storage.folders(backend.settings())


MOST_NAMED = 5
"""Maximum number of runs that the dialog names."""
REQUESTED, DONE = "runs_delete_asked", "runs_deleted"


def take_deleted() -> bool:
    """Return True if runs were just deleted, and clear that mark."""
    return bool(st.session_state.pop(DONE, False))


def request_deletion(run_ids: Sequence[int]) -> None:
    """Open the confirmation dialog. It stays open when the page is redrawn, until it is answered or dismissed."""
    st.session_state[REQUESTED] = list(run_ids)


def draw_dialog() -> None:
    """Draw the confirmation dialog if it is open."""
    if run_ids := st.session_state.get(REQUESTED):
        _dialog(run_ids)


def _dismiss() -> None:
    st.session_state.pop(REQUESTED, None)


@st.dialog("Delete permanently?", on_dismiss=_dismiss)
def _dialog(run_ids: Sequence[int]) -> None:
    """Show what will be deleted. The user confirms by typing a number."""
    if DONE in st.session_state:
        st.rerun()
    runs = backend.find_runs(run_ids)
    if not runs:
        st.text("These runs are deleted already.")
        return
    run_ids = [run.id for run in runs]  # another session may have deleted some
    active = [run for run in runs if not run.state.ended]
    if active:
        numbers = shortened([str(run.id) for run in active], MOST_NAMED)
        st.error(f"Only ended runs can be deleted. Cancel first or leave out: {numbers}.", icon=":material/error:")
        return
    for run in runs[:MOST_NAMED]:
        st.text(f"{run.id}  {run.name or run.spec.summary}")
    if len(runs) > MOST_NAMED:
        st.text(f"and {len(runs) - MOST_NAMED} more")
    files = storage.of_runs(backend.settings(), list(run_ids))
    subject = "this run" if len(runs) == 1 else f"these {len(runs)} runs"
    if warning := named_files.deletion_warning(backend.store(), backend.settings(), run_ids):
        st.warning(warning, icon=":material/warning:")
    content = f"rows, log and {plural(files.files, 'file')} ({size(files.bytes / 1e9)})"
    st.text(f"This deletes {subject} with {content}.")
    number = run_ids[0] if len(run_ids) == 1 else len(run_ids)
    meaning = "the run's number" if len(run_ids) == 1 else "the number of runs"
    typed = st.text_input(f"To delete, type {meaning}: {number}", key="runs_delete_number", live=True)
    st.button(
        "Delete",
        type="primary",
        icon=":material/delete:",
        key="runs_delete_sure",
        disabled=(typed or "").strip() != str(number),
        on_click=_delete,
        args=(run_ids,),
    )


def _refusals(action: Callable[..., object], run_ids: Sequence[int]) -> list[str]:
    """Call an action for each run, and return the messages of those that were refused."""
    messages = []
    for run_id in run_ids:
        try:
            action(backend.store(), backend.settings(), run_id)
        except (Refused, LookupError) as refusal:
            messages.append(str(refusal))
    return messages


def _delete(run_ids: Sequence[int]) -> None:
    """Delete the runs. If one is refused, show why and delete the others."""
    _dismiss()
    refused = _refusals(delete_run, run_ids)
    for sizes in (_usage, _largest, _scan):
        sizes.clear()
    if count := len(run_ids) - len(refused):
        st.session_state[DONE] = True
        rerun.show_later(f"{plural(count, 'run')} deleted", ":material/delete:")
    for problem in refused:
        show = rerun.show_later if count else rerun.show
        show(problem, ":material/error:")


TAGGED = "runs_tagged"


def draw_actions(runs: Sequence[Run]) -> None:
    """Draw the actions for the selected runs.

    Without a selection they are drawn disabled, so that the first selection neither moves the list below nor adds
    widgets to the page.
    """
    if st.session_state.pop(TAGGED, False):
        st.rerun()  # the filters must offer the new tags and apply them
    ids = [run.id for run in runs]
    several_kinds = len({run.kind for run in runs}) > 1
    retryable = [run.id for run in runs if run.state in RETRYABLE]
    may_change = all(map(backend.may_change, runs))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(f"{len(runs)} selected" if runs else "None selected", width=90)
        download_formats(
            lambda format: bulk.written(bulk.rows(backend.store(), ids), format),
            "rows.zip" if several_kinds else "rows.{}",
            key="runs_rows",
            label="rows",
            disabled=not runs,
            help="The rows of the selected runs in one table. Runs of several kinds give one table per kind, in a zip.",
        )
        tags = st.popover("Tag", icon=":material/label:", disabled=not (runs and may_change))
        if st.button(
            f"Restart {len(retryable)}" if retryable else "Restart",
            key="runs_retry",
            icon=":material/replay:",
            disabled=not (retryable and may_change),
            help="Queue the failed and cancelled runs of the selection again. Trainings resume. Timings of models skip "
            "finished models. The rows of other runs are replaced.",
        ):
            retry(retryable)
        if st.button("Delete", key="runs_delete", icon=":material/delete:", disabled=not (runs and may_change)):
            request_deletion(ids)
        if len(runs) == 1:
            st.page_link("run/page.py", label="Open", icon=":material/open_in_new:", query_params={"run": str(ids[0])})
        if 1 < len(runs) <= comparison_link.MOST:
            query = {comparison_link.RUNS: ",".join(map(str, sorted(ids)))}
            st.page_link("compare/page.py", label="Compare", icon=":material/compare:", query_params=query)
    if runs and may_change:
        with tags, st.container(horizontal=True, vertical_alignment="bottom"):  # one line, so that it hides few rows
            _tag(runs)


def retry(run_ids: Sequence[int]) -> None:
    """Queue runs again under their numbers and redraw the page. If runs are refused, show why."""
    refused = _refusals(jobs.retry, run_ids)
    if len(refused) == len(run_ids):
        show_error("\n".join(refused))
        return
    for problem in refused:
        rerun.show_later(problem, ":material/error:")
    st.rerun()


def _tag(runs: Sequence[Run]) -> None:
    """Draw the fields that add tags to the runs and remove tags from them."""
    known, existing = list(backend.store().tags()), sorted({tag for run in runs for tag in run.tags})
    new_tags: dict[str, Any] = {"accept_new_options": True, "max_selections": MOST_TAGS, "select_all": False}
    add = st.multiselect("Add", known, key="runs_tag_add", placeholder="Type or choose", width=220, **new_tags)
    removal: dict[str, Any] = {"key": "runs_tag_remove", "placeholder": "None", "disabled": not existing}
    remove = st.multiselect("Remove", existing, width=220, **removal)
    ids = [run.id for run in runs]
    st.button("Apply", key="runs_tag", on_click=_change_tags, args=(ids, add, remove), disabled=not (add or remove))


def _change_tags(ids: Sequence[int], add: Sequence[str], remove: Sequence[str]) -> None:
    try:
        backend.store().change_tags(ids, add=add, remove=remove)
    except (Refused, LookupError) as refusal:
        rerun.show(str(refusal), ":material/error:")
        return
    st.session_state["runs_tag_add"] = st.session_state["runs_tag_remove"] = []
    st.session_state[TAGGED] = True
    rerun.show_later(f"Tags of {plural(len(ids), 'run')} changed", ":material/label:")
