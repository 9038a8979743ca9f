"""Compare runs or models. The address holds the whole view, so that a link shows the same comparison."""

from collections.abc import Sequence

import streamlit as st

from engine.report.compare.rows import TIMINGS
from engine.store import Run, State
from engine.words import numbered_runs
from pages.compare import models, settings, timings, training, values
from pages.shared import backend
from pages.shared.runs import comparison_link, view
from pages.shared.text import plain


def check_one_kind(runs: Sequence[Run]) -> bool:
    """Return True if all runs are of one kind. Otherwise draw a link per kind that keeps only its runs."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(str(run.id))
    if len(kinds) == 1:
        return True
    parts = ", ".join(f"{kind} ({', '.join(numbers)})" for kind, numbers in kinds.items())
    message = f"These runs are of different kinds: {parts}. Only runs of one kind can be compared."
    st.info(plain(message), icon=":material/info:")
    with st.container(horizontal=True):
        for kind, numbers in kinds.items():
            query = {comparison_link.RUNS: ",".join(numbers)}
            st.page_link("compare/page.py", label=f"Only {kind}", icon=":material/filter_alt:", query_params=query)
    return False


def draw_states(runs: Sequence[Run]) -> None:
    """Draw the name and state of each run, and a note if some have not ended."""
    for run in runs:
        with st.container(horizontal=True, vertical_alignment="center"):
            link = {"run": str(run.id)}
            st.page_link("run/page.py", label=f"Run {run.id}", icon=":material/receipt_long:", query_params=link)
            view.badge(run)
            st.text(f"{run.name or run.spec.summary}: {view.sentence(run, backend.store())}", width="stretch")
    if active := [run for run in runs if not run.state.ended]:
        queued = all(run.state is State.QUEUED for run in active)
        names = ", ".join(f"run {run.id}" for run in active)
        message = f"{'Not started' if queued else 'Not finished'}: {names}. Only the results so far are compared."
        st.info(message, icon=":material/hourglass_top:")


def draw_runs() -> None:
    """Draw the comparison of runs: states, settings that differ, results."""
    runs = comparison_link.runs()
    if not runs:
        st.info("Choose runs of one kind to compare.", icon=":material/compare_arrows:")
        st.page_link("history/page.py", label="All runs", icon=":material/history:")
        return
    st.set_page_config(page_title=f"Compare {numbered_runs([run.id for run in runs])} – Model Vitals")
    view.follow_several([run.id for run in runs], draw_states, key="compare_states")
    if not check_one_kind(runs):
        return
    kind = runs[0].kind
    if len(runs) == 1 and kind not in TIMINGS:
        st.info("Choose a second run to compare with this one.", icon=":material/compare_arrows:")
        return
    if len(runs) > 1:
        settings.draw(runs)
    if kind in TIMINGS:
        timings.draw(runs)
        return
    rows = {run.id: backend.store().rows(run.id) for run in runs}
    (training.draw if kind == "train" else values.draw)(runs, rows)


st.title("Compare", anchor=False)
if comparison_link.subject() == "models":
    models.draw(comparison_link.models())
else:
    draw_runs()
