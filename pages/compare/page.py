"""Runs or models side by side. The address is the view: whoever opens it sees the same."""

from collections.abc import Sequence

import streamlit as st

from engine.store import Run, State
from pages.compare import models, settings, timings, training, values
from pages.shared import backend, comparison_link
from pages.shared.run_state import badge, sentence
from pages.shared.text import plain

# Kinds that are compared in a way of their own; the figures of all others stand side by side.
DRAW = {"benchmark": timings.draw, "recurrent": timings.draw, "train": training.draw}
ALONE = ("benchmark", "recurrent")  # one run alone has rows to compare with each other


def of_one_kind(runs: Sequence[Run]) -> bool:
    """Whether they are; else offers to leave out all but one kind."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(str(run.id))
    if len(kinds) == 1:
        return True
    said = ", ".join(f"{kind} ({', '.join(numbers)})" for kind, numbers in kinds.items())
    st.info(plain(f"These runs are of different kinds: {said}. Runs of one kind compare."), icon=":material/info:")
    with st.container(horizontal=True):
        for kind, numbers in kinds.items():
            query = {comparison_link.RUNS: ",".join(numbers)}
            st.page_link("compare/page.py", label=f"Only {kind}", icon=":material/filter_alt:", query_params=query)
    return False


def states(runs: Sequence[Run]) -> None:
    """A line per run: what it is and where it stands; what has not ended may still grow."""
    for run in runs:
        with st.container(horizontal=True, vertical_alignment="center"):
            link = {"run": str(run.id)}
            st.page_link("run/page.py", label=f"Run {run.id}", icon=":material/receipt_long:", query_params=link)
            badge(run)
            st.text(f"{run.name or run.spec.summary}: {sentence(run, backend.store())}", width="stretch")
    if going := [run for run in runs if not run.state.ended]:
        waiting = all(run.state is State.QUEUED for run in going)
        names = ", ".join(f"run {run.id}" for run in going)
        said = f"Nothing yet of {names}, which waits." if waiting else f"Not all is there yet of {names}."
        with st.container(horizontal=True, vertical_alignment="center"):
            st.info(f"{said} What there is so far is compared.", icon=":material/hourglass_top:")
            st.button("Look again", icon=":material/refresh:", key="compare_again")


def of_runs() -> None:
    """Settings, warnings, then what the runs found."""
    runs = comparison_link.runs()
    if not runs:
        st.info("Choose runs of one kind to see them side by side.", icon=":material/compare_arrows:")
        st.page_link("history/page.py", label="All runs", icon=":material/history:")
        return
    states(runs)
    if not of_one_kind(runs):
        return
    if len(runs) == 1 and runs[0].kind not in ALONE:
        st.info("Choose another run to compare this one with.", icon=":material/compare_arrows:")
        return
    if len(runs) > 1:
        settings.draw(runs)
    rows = {run.id: backend.store().rows(run.id) for run in runs}
    DRAW.get(runs[0].kind, values.draw)(runs, rows)


st.title("Compare", anchor=False)
if comparison_link.subject() == "models":
    models.draw(comparison_link.models())
else:
    of_runs()
