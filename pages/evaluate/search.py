"""The images of an evaluation, searched by text."""

from typing import Any

import streamlit as st
from pydantic import ValidationError

from engine.jobs.answers import Answer
from engine.jobs.search import question
from engine.report.search import hits
from engine.results.answers import Hits
from engine.specs import Refused
from engine.specs.questions import Search
from engine.store import Run
from pages.clip import pictures
from pages.shared import backend, download, redraw
from pages.shared.text import plain

TICK_S = 0.5
FEW, MOST_SHOWN = 12, 96
LONGEST_TYPED = 500
MEANT = (
    "Similarity is the cosine between the text and an image as the model encodes them, from -1 to 1. It orders the "
    "images of one model; even a good hit may be far from 1, and other models have other scales."
)


def draw(run: Run) -> None:
    """A field for a text, and the images nearest to it."""
    backend.answers().start()  # it imports for some seconds, while somebody types
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Search your images by text",
            key=f"search_text_{run.id}",
            placeholder="a photo of a red car",
            max_chars=LONGEST_TYPED,
            help="Encoded as typed: what reads like the captions of the training finds most.",
        ).strip()
        top = st.number_input("Pictures", 1, MOST_SHOWN, FEW, key=f"search_top_{run.id}", width=140)
    if not text:
        st.caption("Type what should be on the pictures, and press Enter.")
        return
    try:
        answer = _asked(run, question(backend.settings(), run, text, top))
    except (Refused, ValidationError) as problem:
        st.error(plain(_said(problem)), icon=":material/error:")
        return
    waits = not answer.done()
    st.fragment(_show, run_every=TICK_S if waits else None, key=f"search_{run.id}")(run, answer, waits, text)


def _asked(run: Run, asked: Search) -> Answer:
    """The answer to come: asked once for each text, whatever else is drawn anew."""
    key = f"search_answer_{run.id}"
    known: tuple[Search, Answer] | None = st.session_state.get(key)
    if known is None or known[0] != asked:
        known = asked, backend.answers().ask(asked)
        st.session_state[key] = known
    return known[1]


def _show(run: Run, answer: Answer, ticking: bool, text: str) -> None:
    if not answer.done():
        st.caption("Being looked up. The first search takes a while longer: it loads the model.")
        return
    if ticking:
        redraw.page()  # the last time: from here on nothing changes, so nothing ticks
    try:
        found = Hits.model_validate(answer.result())
    except Refused as refused:
        st.error(plain(str(refused)), icon=":material/error:")
        if st.button("Try again", key=f"search_again_{run.id}", icon=":material/restart_alt:"):
            del st.session_state[f"search_answer_{run.id}"]
            st.rerun()
        return
    _hits(run, found, text)


def _hits(run: Run, found: Hits, text: str) -> None:
    table = hits(found.hits)
    shows = "{source}, {label}".format_map
    whole = pictures.grid(run, table, _caption, shows)
    if not whole:
        config = {"similarity": st.column_config.NumberColumn(format="%.3f")}
        st.dataframe(table, hide_index=True, column_config=config, alt="Images nearest to the text")
    with st.container(horizontal=True, vertical_alignment="center"):
        download.table(lambda: table, f"search-{run.id}", key=f"search_{run.id}", label="hits")
        st.caption(plain(f"The {len(table):,} of {found.images:,} images nearest to “{text}”. {MEANT}"))


def _caption(line: dict[Any, Any]) -> str:
    source = line["source"] if len(line["source"]) <= 20 else f"…{line['source'][-19:]}"
    label = f" {plain(line['label'])}" if line["label"] else ""
    return f"**{line['similarity']:.3f}**{label}  \n{plain(source)}"


def _said(problem: Exception) -> str:
    return problem.errors()[0]["msg"] if isinstance(problem, ValidationError) else str(problem)
