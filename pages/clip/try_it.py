"""Try a trained or evaluated model on one picture: which of several texts fits it best."""

from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
from pydantic import ValidationError

from engine.datasets import DataProblem, Unreadable, class_names, images, prompts
from engine.jobs.references import match_question
from engine.results.answers import Matches
from engine.specs import Refused, describe_error
from engine.specs.fields.clip import split_lines
from engine.specs.questions import LARGEST_IMAGE_MB, MOST_TEXTS
from engine.store import Run
from pages.clip import data
from pages.shared import backend
from pages.shared.question import draw_answer
from pages.shared.rerun import fold
from pages.shared.table import PERCENT, download_table, in_percent
from pages.shared.text import plain, show_error

PLAIN_PROMPT = ("a photo of a {}.",)
"""The prompt for class names when neither the run nor its data have any."""


def draw(run: Run) -> None:
    """Draw a collapsed section with the picture, the texts and how well each text fits."""
    fold("Try it on a picture", partial(content, run), key=f"try_{run.id}", icon=":material/image_search:")


def content(run: Run) -> None:
    """Draw the picture, the texts and how well each text fits."""
    backend.answers().start()  # its imports take some seconds, so they start while the user chooses a picture
    classes, templates = _names(run)
    left, right = st.columns([1, 2])
    with left:
        types = [name.lower() for name in images.FORMATS]
        file = st.file_uploader("Picture", ["jpg", *types], key=f"try_file_{run.id}", max_upload_size=LARGEST_IMAGE_MB)
    with right:
        help = f"At most {MOST_TEXTS:,}. Class names are put into prompts; captions are used as typed."
        text = st.text_area(
            "Texts, one per line", "\n".join(classes[:MOST_TEXTS]), key=f"try_texts_{run.id}", help=help
        )
        if len(classes) > MOST_TEXTS:
            st.caption(f"The first {MOST_TEXTS:,} of {len(classes):,} classes are filled in.")
        of_classes = st.toggle("The texts are class names", bool(classes), key=f"try_names_{run.id}")
        if of_classes:
            st.caption(plain(f"Prompts: {', '.join(templates[:3])}{', ...' if len(templates) > 3 else ''}"))
    texts = list(dict.fromkeys(split_lines(text)))
    if file is None or len(texts) < 2:
        st.caption("Choose a picture and type at least two texts to choose between.")
        return
    _match(run, file.getvalue(), texts, templates if of_classes else ())


def _match(run: Run, image: bytes, texts: list[str], templates: tuple[str, ...]) -> None:
    try:
        images.check(image, "the picture")
        question = match_question(backend.store(), backend.settings(), run, image, texts, templates)
    except ValidationError as error:
        show_error(f"Texts: {describe_error(error.errors()[0])}")
        return
    except (Refused, Unreadable, LookupError) as problem:
        show_error(problem)
        return
    picture, answer = st.columns([1, 2])
    with picture:
        st.image(image, width="stretch", alt="The uploaded picture")
    with answer:
        waiting = "Comparing. The first comparison takes longer because it loads the model."
        draw_answer(question, f"try_{run.id}_match", lambda answer: _draw(run, answer), waiting=waiting)


def _draw(run: Run, answer: dict[str, Any]) -> None:
    table = pd.DataFrame([match.model_dump() for match in Matches.model_validate(answer).texts])
    config = {
        "text": st.column_config.TextColumn("Text"),
        "similarity": st.column_config.NumberColumn("Cosine", format="%.3f"),
        "probability": st.column_config.ProgressColumn("Probability", format=PERCENT, min_value=0, max_value=100),
    }
    st.dataframe(
        in_percent(table, ["probability"]),
        hide_index=True,
        column_config=config,
        alt="Texts by how well they fit the picture",
    )
    download_table(lambda: table, f"match-{run.id}", key=f"try_{run.id}_csv")


def _names(run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return class names and prompts of a run or of its data, as far as there are any."""
    spec: Any = run.spec
    try:
        pairs = data.pairs(data.zeroshot_source(spec.model_dump()))
        classes, templates = class_names(spec.classes, pairs.classes), pairs.templates
    except DataProblem:  # the data of an older or imported run may be gone
        classes, templates = class_names(spec.classes, ()), ()
    return classes, prompts(spec.templates, templates, spec.classes) or PLAIN_PROMPT
