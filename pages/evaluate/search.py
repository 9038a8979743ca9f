"""Search the images of an evaluation by text."""

from typing import Any

import streamlit as st
from pydantic import ValidationError

from engine.jobs.references import search_question
from engine.report.frames import hits
from engine.results.answers import Hits
from engine.specs import Refused
from engine.specs.questions import LONGEST_TEXT
from engine.store import Run
from pages.clip import pictures
from pages.shared import backend
from pages.shared.question import draw_answer
from pages.shared.table import download_table
from pages.shared.text import plain, show_error

DEFAULT_SHOWN, MOST_SHOWN = 12, 96
SIMILARITY = (
    "Similarity is the cosine of the text's and the image's embedding, from -1 to 1. It ranks the images of one "
    "model. Even a good match can be far from 1, and values of different models cannot be compared."
)


def draw(run: Run, file: str) -> None:
    """Draw the search field and the images most similar to its text. file: name of the run's file of embeddings."""
    backend.answers().start()  # its imports take some seconds, so they start while the user types
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Search your images by text",
            key=f"search_text_{run.id}",
            placeholder="a photo of a red car",
            max_chars=LONGEST_TEXT,
            help="The text is encoded as typed. Write it like the captions that the model was trained on.",
        ).strip()
        top = st.number_input("Images", 1, MOST_SHOWN, DEFAULT_SHOWN, key=f"search_top_{run.id}", width=140)
    if not text:
        st.caption("Describe the images to find and press Enter.")
        return
    try:
        question = search_question(backend.store(), backend.settings(), run, text, top, file)
    except (Refused, ValidationError) as problem:
        show_error(problem)
        return
    waiting = "Searching. The first search takes longer because it loads the model."
    draw_answer(
        question, f"search_{run.id}", lambda found: _draw_hits(run, Hits.model_validate(found), text), waiting=waiting
    )


def _draw_hits(run: Run, result: Hits, text: str) -> None:
    table = hits(result.hits)
    alt = "{source}, {label}".format_map
    complete = pictures.grid(run, table, _caption, alt)
    if not complete:
        config = {"similarity": st.column_config.NumberColumn(format="%.3f")}
        st.dataframe(table, hide_index=True, column_config=config, alt="Images most similar to the text")
    with st.container(horizontal=True, vertical_alignment="center"):
        download_table(lambda: table, f"search-{run.id}", key=f"search_{run.id}")
        st.caption(plain(f"The {len(table):,} of {result.images:,} images most similar to “{text}”. {SIMILARITY}"))


def _caption(line: dict[Any, Any]) -> str:
    source = line["source"] if len(line["source"]) <= 20 else f"…{line['source'][-19:]}"
    label = f" {plain(line['label'])}" if line["label"] else ""
    return f"**{line['similarity']:.3f}**{label}  \n{plain(source)}"
