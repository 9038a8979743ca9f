"""Deleting runs with all they wrote: asked twice, because nothing brings them back."""

from collections.abc import Sequence

import streamlit as st

from engine.jobs import delete_run
from engine.specs import Refused
from engine.store import Run, storage
from pages.shared import announce, backend, run_storage
from pages.shared.text import size

NAMED = 5
ASKED, DONE = "runs_delete_asked", "runs_deleted"


def deleted() -> bool:
    """Whether runs have just been deleted; asked once after each time."""
    return bool(st.session_state.pop(DONE, False))


def ask(run_ids: Sequence[int]) -> None:
    """Ask from now on, however often the page is drawn anew, until that is answered."""
    st.session_state[ASKED] = list(run_ids)


def question() -> None:
    """Draw the question where one is open."""
    if asked := st.session_state.get(ASKED):
        _question(asked)


def _dismiss() -> None:
    st.session_state.pop(ASKED, None)


@st.dialog("Delete for good?", on_dismiss=_dismiss)
def _question(run_ids: Sequence[int]) -> None:
    """Say what would go, and take a number for a yes."""
    if DONE in st.session_state:
        st.rerun()
    runs = [run for run_id in run_ids if (run := _find(run_id))]
    going = [run for run in runs if not run.state.ended]
    if going:
        named = ", ".join(str(run.id) for run in going[:NAMED]) + (", ..." if len(going) > NAMED else "")
        st.error(
            f"{len(going)} of these {len(runs)} have not ended: {named}. Cancel or leave them out.",
            icon=":material/error:",
        )
        return
    for run in runs[:NAMED]:
        st.text(f"{run.id}  {run.name or run.spec.summary}")
    if len(runs) > NAMED:
        st.text(f"and {len(runs) - NAMED} more")
    files = storage.of_runs(backend.settings(), list(run_ids))
    what = "This run" if len(runs) == 1 else f"These {len(runs)} runs"
    st.text(f"{what}, with rows, log and {files.files:,} files of {size(files.bytes / 1e9)} together, would be gone.")
    number = run_ids[0] if len(run_ids) == 1 else len(run_ids)
    meaning = "the run's number" if len(run_ids) == 1 else "how many they are"
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
    """Forget the runs; a refusal is told, and the others go all the same."""
    _dismiss()
    refused: list[str] = []
    for run_id in run_ids:
        try:
            delete_run(backend.store(), backend.settings(), run_id)
        except (Refused, LookupError) as refusal:
            refused.append(str(refusal))
    run_storage.forget()
    if gone := len(run_ids) - len(refused):
        st.session_state[DONE] = True
        announce.later(f"{gone} run{'s' * (gone != 1)} deleted", ":material/delete:")
    for problem in refused:
        tell = announce.later if gone else announce.at_once
        tell(problem, ":material/error:")
