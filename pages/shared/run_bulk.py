"""Actions on several runs at once: download, tag, restart, delete, open and compare."""

from collections.abc import Sequence

import streamlit as st

from engine import jobs
from engine.report.export import bulk
from engine.specs import Refused
from engine.store import RETRYABLE, Run
from engine.store.notes import MOST_TAGS
from pages.shared import announce, backend, comparison_link, run_deletion
from pages.shared.download import formats
from pages.shared.text import plural

TAGGED = "runs_tagged"


def draw(runs: Sequence[Run]) -> None:
    """Draw the actions for the selected runs. They are drawn, disabled, without a selection too.

    So the first tick neither moves the list below nor adds widgets to the page.
    """
    if st.session_state.pop(TAGGED, False):
        st.rerun()  # the filters must offer the new tags and apply them
    ids = [run.id for run in runs]
    mixed = len({run.kind for run in runs}) > 1
    stopped = [run.id for run in runs if run.state in RETRYABLE]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(f"{len(runs)} selected" if runs else "None selected", width=90)
        formats(
            lambda format: bulk.written(bulk.rows(backend.store(), ids), format),
            "rows.zip" if mixed else "rows.{}",
            key="runs_rows",
            label="rows",
            disabled=not runs,
            help="The rows of the selected runs in one table. Runs of several kinds give one table per kind, in a zip.",
        )
        tags = st.popover("Tag", icon=":material/label:", disabled=not runs)
        if st.button(
            f"Restart {len(stopped)}" if stopped else "Restart",
            key="runs_retry",
            icon=":material/replay:",
            disabled=not stopped,
            help="Queue the failed and cancelled runs of the selection again. Their rows are replaced.",
        ):
            retry(stopped)
        if st.button("Delete", key="runs_delete", icon=":material/delete:", disabled=not runs):
            run_deletion.request(ids)
        if len(runs) == 1:
            st.page_link("run/page.py", label="Open", icon=":material/open_in_new:", query_params={"run": str(ids[0])})
        if 1 < len(runs) <= comparison_link.MOST:
            query = {comparison_link.RUNS: ",".join(map(str, ids))}
            st.page_link("compare/page.py", label="Compare", icon=":material/compare:", query_params=query)
    if runs:
        with tags:
            _tag(runs)


def retry(run_ids: Sequence[int]) -> None:
    """Queue runs again under their numbers and redraw the page. Show why a run is refused."""
    for run_id in run_ids:
        try:
            jobs.retry(backend.store(), backend.settings(), run_id)
        except (Refused, LookupError) as refusal:
            announce.show_later(str(refusal), ":material/error:")
    st.rerun()


def _tag(runs: Sequence[Run]) -> None:
    """Draw the fields that add tags to the runs and remove tags from them."""
    options = dict(key="runs_tag_add", accept_new_options=True, max_selections=MOST_TAGS, placeholder="Type or choose")
    add = st.multiselect("Add", list(backend.store().tags()), **options)
    existing = sorted({tag for run in runs for tag in run.tags})
    remove = st.multiselect("Remove", existing, key="runs_tag_remove", disabled=not existing, placeholder="None")
    ids = [run.id for run in runs]
    st.button("Apply", key="runs_tag", on_click=_change_tags, args=(ids, add, remove), disabled=not (add or remove))


def _change_tags(ids: Sequence[int], add: Sequence[str], remove: Sequence[str]) -> None:
    try:
        backend.store().change_tags(ids, add=add, remove=remove)
    except (Refused, LookupError) as refusal:
        announce.show(str(refusal), ":material/error:")
        return
    st.session_state["runs_tag_add"] = st.session_state["runs_tag_remove"] = []
    st.session_state[TAGGED] = True
    announce.show_later(f"Tags of {plural(len(ids), 'run')} changed", ":material/label:")
