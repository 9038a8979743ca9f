"""Ask a question that needs the heavy libraries, and draw its answer when it arrives."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import streamlit as st

from engine.jobs.answers import Answer
from engine.specs import Refused
from engine.specs.questions import Question
from pages.shared import backend, rerun
from pages.shared.text import show_error

TICK_S = 0.5
"""Seconds between checks for the answer."""


def draw_answer(question: Question, key: str, draw: Callable[[dict[str, Any]], None], *, waiting: str) -> None:
    """Ask the question once, and draw its answer. A redraw does not repeat the question.

    key: of the stored answer and of the widgets. draw: draws the answer, which is JSON. waiting: text until it arrives.
    """
    answer_key, digest = f"{key}_answer", sha256(question.model_dump_json().encode()).hexdigest()
    last: tuple[str, Answer] | None = st.session_state.get(answer_key)
    if last is None or last[0] != digest:
        last = digest, backend.answers().ask(question)
        st.session_state[answer_key] = last
    ticking = not last[1].done()
    st.fragment(_draw, run_every=TICK_S if ticking else None, key=key)(last[1], ticking, key, draw, waiting)


def _draw(answer: Answer, ticking: bool, key: str, draw: Callable[[dict[str, Any]], None], waiting: str) -> None:
    if not answer.done():
        st.caption(waiting)
        return
    if ticking:
        rerun.page()  # the answer has arrived: redraw once without the timer
    try:
        result = answer.result()
    except Refused as refused:
        show_error(refused)
        if st.button("Try again", key=f"{key}_again", icon=":material/restart_alt:"):
            del st.session_state[f"{key}_answer"]
            st.rerun()
        return
    draw(result)
