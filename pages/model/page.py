"""One model's everything: what it costs, what is published of it, what was measured and trained here, and how again."""

import streamlit as st

from engine.names import LIBRARIES
from engine.report.catalog import model
from engine.specs import Refused
from pages.model import commands, head, memory, modules, published, timings, trainings
from pages.shared import backend, launch
from pages.shared.chart.chart import tabs
from pages.shared.page_end import PageEnd
from pages.shared.text import plain

CHOICE = "model_choice"


def chosen() -> None:
    """The model that was chosen from the list becomes the page's."""
    st.query_params.from_dict({"name": st.session_state[CHOICE]} if st.session_state[CHOICE] else {})


def asked() -> str | None:
    """The model that the address names, qualified; None where it names none, which is said."""
    given = st.query_params.get("name", "")
    try:
        return model.find(given, families) if given else None
    except Refused as refusal:
        st.warning(plain(str(refusal)), icon=":material/search_off:")
        return None


families = launch.families()
place = st.container()
name = asked()
st.session_state[CHOICE] = name
with place:
    st.selectbox(
        "Model",
        list(families),
        key=CHOICE,
        on_change=chosen,
        placeholder=f"Search {len(families):,} models of {', '.join(LIBRARIES)}",
        label_visibility="collapsed",
    )
if name is None:
    st.title("One model", anchor=False)
    st.caption("Choose a model to see all that is known of it: counts, memory, accuracies, timings and trainings here.")
    st.page_link("catalog/page.py", label="All models", icon=":material/table_view:")
    raise PageEnd

sizes = model.sizes(backend.catalogue(), name)
accuracies = model.published(backend.published_accuracies(), name, launch.families())
head.draw(name, sizes)
contents = {
    "Counts": lambda: head.counts(sizes),
    "Modules": lambda: modules.draw(name),
    "Memory": lambda: memory.draw(name, sizes),
    "Published": lambda: published.draw(name, accuracies),
    "Timed here": lambda: timings.draw(name),
    "Trained here": lambda: trainings.draw(name),
    "Commands": lambda: commands.draw(name, accuracies),
}
if not name.startswith(f"{model.TRAINABLE}:"):
    del contents["Trained here"]
tabs(contents, key="model_part", bind="query-params")
