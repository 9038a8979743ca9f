"""Delete runs with their rows and files, after a dialog that asks for confirmation."""

from collections.abc import Sequence

import streamlit as st

from engine.jobs import delete_run
from engine.specs import Refused
from engine.store import Run, storage
from pages.shared import announce, backend, run_storage
from pages.shared.text import plural, shortened, size

NAMED = 5
"""Most runs named in the dialog."""
REQUESTED, DONE = "runs_delete_asked", "runs_deleted"


def take_deleted() -> bool:
    """Return whether runs were just deleted, and clear that mark."""
    return bool(st.session_state.pop(DONE, False))


def request(run_ids: Sequence[int]) -> None:
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
    runs = [run for run_id in run_ids if (run := _find(run_id))]
    active = [run for run in runs if not run.state.ended]
    if active:
        numbers = shortened([str(run.id) for run in active], NAMED)
        message = f"{len(active)} of these {len(runs)} runs have not ended: {numbers}. Cancel them or leave them out."
        st.error(message, icon=":material/error:")
        return
    for run in runs[:NAMED]:
        st.text(f"{run.id}  {run.name or run.spec.summary}")
    if len(runs) > NAMED:
        st.text(f"and {len(runs) - NAMED} more")
    files = storage.of_runs(backend.settings(), list(run_ids))
    subject = "this run" if len(runs) == 1 else f"these {len(runs)} runs"
    content = f"rows, log and {plural(files.files, 'file')} ({size(files.bytes / 1e9)})"
    st.text(f"This deletes {subject} with {content}.")
    number = run_ids[0] if len(run_ids) == 1 else len(run_ids)
    meaning = "the run's number" if len(run_ids) == 1 else "the number of runs"
    typed = st.text_input(f"To delete, type {meaning}: {number}", key="runs_delete_number", live="100ms")
    st.button(
        "Delete",
        type="primary",
        icon=":material/delete:",
        key="runs_delete_sure",
        disabled=(typed or "").strip() != str(number),
        on_click=_delete,
        args=(run_ids,),
    )


def _find(run_id: int) -> Run | None:
    try:
        return backend.store().run(run_id)
    except LookupError:
        return None


def _delete(run_ids: Sequence[int]) -> None:
    """Delete the runs. If one is refused, show why and delete the others."""
    _dismiss()
    refused: list[str] = []
    for run_id in run_ids:
        try:
            delete_run(backend.store(), backend.settings(), run_id)
        except (Refused, LookupError) as refusal:
            refused.append(str(refusal))
    run_storage.clear_cache()
    if count := len(run_ids) - len(refused):
        st.session_state[DONE] = True
        announce.show_later(f"{plural(count, 'run')} deleted", ":material/delete:")
    for problem in refused:
        show = announce.show_later if count else announce.show
        show(problem, ":material/error:")
