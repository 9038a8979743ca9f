"""Tags and notes of a run. A change is saved at once."""

import streamlit as st

from engine.specs import Refused
from engine.store.model import LONGEST_NOTES, MOST_TAGS
from pages.shared import backend
from pages.shared.text import show_error

PROBLEM = "run_notes_problem"


@st.fragment
def draw(run_id: int) -> None:
    """Draw the fields for tags and notes."""
    store = backend.store()
    run = backend.current_run(run_id)
    fixed = not backend.may_change(run)
    left, right = st.columns(2)
    left.multiselect(
        "Tags",
        sorted({*store.tags(), *run.tags, *st.session_state.get(f"run_tags_{run.id}", [])}),
        default=list(run.tags),
        key=f"run_tags_{run.id}",
        accept_new_options=True,
        max_selections=MOST_TAGS,
        placeholder="Type or choose",
        on_change=_save,
        args=("tags", run.id),
        disabled=fixed,
    )
    right.text_area(
        "Notes",
        run.notes,
        max_chars=LONGEST_NOTES,
        height=90,
        key=f"run_notes_{run.id}",
        placeholder="Purpose and findings of this run",
        on_change=_save,
        args=("notes", run.id),
        disabled=fixed,
    )
    if problem := st.session_state.pop(PROBLEM, ""):
        show_error(problem)


def _save(field: str, run_id: int) -> None:
    save = backend.store().set_tags if field == "tags" else backend.store().set_notes
    try:
        save(run_id, st.session_state[f"run_{field}_{run_id}"])
    except (Refused, LookupError) as refusal:
        st.session_state[PROBLEM] = str(refusal)
