"""Tags and notes of a run. A change is saved at once, and changes made elsewhere in the meantime are kept."""

import streamlit as st

from engine.specs import Refused
from engine.store.model import LONGEST_NOTES, MOST_TAGS
from pages.shared import backend
from pages.shared.text import show_error

PROBLEM, MERGED = "run_notes_problem", "run_notes_merged"


@st.fragment
def draw(run_id: int) -> None:
    """Draw the fields for tags and notes."""
    store = backend.store()
    run = backend.current_run(run_id)
    read_only = not backend.may_change(run)
    tags_key, notes_key = (_key(field, run.id) for field in ("tags", "notes"))
    new = [field for field in ("tags", "notes") if _key(field, run.id) not in st.session_state]
    left, right = st.columns(2)
    tags = left.multiselect(
        "Tags",
        sorted({*store.tags(), *run.tags, *st.session_state.get(tags_key, [])}),
        default=list(run.tags),
        key=tags_key,
        accept_new_options=True,
        max_selections=MOST_TAGS,
        select_all=False,
        placeholder="Type or choose",
        on_change=_save,
        args=("tags", run.id),
        disabled=read_only,
    )
    notes = right.text_area(
        "Notes",
        run.notes,
        max_chars=LONGEST_NOTES,
        height=90,
        key=notes_key,
        placeholder="Purpose and findings of this run",
        on_change=_save,
        args=("notes", run.id),
        disabled=read_only,
    )
    for field, shown in (("tags", tags), ("notes", notes)):
        if field in new:  # after a lost session, the browser may show older values than the stored ones
            st.session_state[_base_key(field, run.id)] = shown
    if problem := st.session_state.pop(PROBLEM, ""):
        show_error(problem)
    if st.session_state.pop(MERGED, False):
        st.info("These notes were also changed elsewhere. Both texts were kept.", icon=":material/merge:")


def _key(field: str, run_id: int) -> str:
    """Return the key of a field: another one each time a saved value was joined with changes of other sessions.

    Until the browser receives the joined value, its messages have the value before it. With one key, that would count
    as a change that removes what other sessions have added.
    """
    joined = st.session_state.get(f"run_joined_{field}_{run_id}", 0)
    return f"run_{field}_{run_id}" + (f"_{joined}" if joined else "")


def _base_key(field: str, run_id: int) -> str:
    """Return the key of the value on which this session's changes of a field are based."""
    return f"run_stored_{field}_{run_id}"


def _save(field: str, run_id: int) -> None:
    """Save a field and show the stored value, which includes changes of other sessions."""
    store, key = backend.store(), _key(field, run_id)
    value, base = st.session_state[key], st.session_state[_base_key(field, run_id)]
    try:
        if field == "tags":
            added, removed = set(value) - set(base), set(base) - set(value)
            store.change_tags([run_id], add=[tag for tag in value if tag in added], remove=removed)
        else:
            st.session_state[MERGED] = store.set_notes(run_id, value, before=base)
        run = store.run(run_id)
    except (Refused, LookupError) as refusal:
        st.session_state[PROBLEM] = str(refusal)
        return
    stored: list[str] | str = list(run.tags) if field == "tags" else run.notes
    if stored != (sorted(value) if field == "tags" else value):
        joined = f"run_joined_{field}_{run_id}"
        st.session_state[joined] = st.session_state.get(joined, 0) + 1
    st.session_state[_key(field, run_id)] = st.session_state[_base_key(field, run_id)] = stored
