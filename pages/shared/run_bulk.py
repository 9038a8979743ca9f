"""What can be done with several runs at once."""

from collections.abc import Sequence

import streamlit as st

from engine import jobs
from engine.report.export import bulk
from engine.specs import Refused
from engine.store import RETRYABLE, Run
from engine.store.notes import MOST_TAGS
from pages.shared import announce, backend, comparison_link, run_deletion
from pages.shared.download import formats

TAGGED = "runs_tagged"


def draw(runs: Sequence[Run]) -> None:
    """Actions for the runs that are chosen. They stand there without any too, so that to tick one neither moves the
    list nor puts all of them into the page."""
    if st.session_state.pop(TAGGED, False):
        st.rerun()  # filters offer other tags now, and let other runs through
    ids = [run.id for run in runs]
    several = len({run.kind for run in runs}) > 1
    stopped = [run.id for run in runs if run.state in RETRYABLE]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(f"{len(runs)} chosen" if runs else "None chosen", width=90)
        formats(
            lambda format: bulk.written(bulk.rows(backend.store(), ids), format),
            "rows.zip" if several else "rows.{}",
            key="runs_rows",
            label="their rows",
            disabled=not runs,
            help="One table, with the run in front of each row; of several kinds of run a table each, zipped.",
        )
        tags = st.popover("Tag", icon=":material/label:", disabled=not runs)
        if st.button(
            f"Retry {len(stopped)}" if stopped else "Retry",
            key="runs_retry",
            icon=":material/replay:",
            disabled=not stopped,
            help="Queues what has failed or was cancelled again, in its place: its rows are replaced.",
        ):
            retry(stopped)
        if st.button("Delete", key="runs_delete", icon=":material/delete:", disabled=not runs):
            run_deletion.ask(ids)
        if len(runs) == 1:
            st.page_link("run/page.py", label="Open", icon=":material/open_in_new:", query_params={"run": str(ids[0])})
        if 1 < len(runs) <= comparison_link.MOST:
            query = {comparison_link.RUNS: ",".join(map(str, ids))}
            st.page_link("compare/page.py", label="Compare", icon=":material/compare:", query_params=query)
    if runs:
        with tags:
            _tag(runs)


def retry(run_ids: Sequence[int]) -> None:
    """Queue runs again, in their place, and draw the page anew; one that cannot be tried again says so."""
    for run_id in run_ids:
        try:
            jobs.retry(backend.store(), backend.settings(), run_id)
        except (Refused, LookupError) as refusal:
            announce.later(str(refusal), ":material/error:")
    st.rerun()


def _tag(runs: Sequence[Run]) -> None:
    """Give all of them tags, and take some away."""
    offered = dict(key="runs_tag_add", accept_new_options=True, max_selections=MOST_TAGS, placeholder="Type or choose")
    add = st.multiselect("Add", list(backend.store().tags()), **offered)
    there = sorted({tag for run in runs for tag in run.tags})
    remove = st.multiselect("Take away", there, key="runs_tag_remove", disabled=not there, placeholder="None")
    ids = [run.id for run in runs]
    st.button("Apply", key="runs_tag", on_click=_change_tags, args=(ids, add, remove), disabled=not (add or remove))


def _change_tags(ids: Sequence[int], add: Sequence[str], remove: Sequence[str]) -> None:
    try:
        backend.store().change_tags(ids, add=add, remove=remove)
    except (Refused, LookupError) as refusal:
        announce.at_once(str(refusal), ":material/error:")
        return
    st.session_state["runs_tag_add"] = st.session_state["runs_tag_remove"] = []
    st.session_state[TAGGED] = True
    announce.later(f"Tags of {len(ids)} run{'s' * (len(ids) != 1)} changed", ":material/label:")
