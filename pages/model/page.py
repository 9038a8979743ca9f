"""The page of one model: costs, memory, published accuracies, timings, trainings, and commands to reproduce them."""

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


def update_address() -> None:
    """Write the model chosen in the field into the address."""
    st.query_params.from_dict({"name": st.session_state[CHOICE]} if st.session_state[CHOICE] else {})


def linked_model() -> str | None:
    """Return the qualified name of the model in the address, or None. Warn about an unknown name."""
    text = st.query_params.get("name", "")
    try:
        return model.find(text, families) if text else None
    except Refused as refusal:
        st.warning(plain(str(refusal)), icon=":material/search_off:")
        return None


families = launch.families()
place = st.container()
name = linked_model()
st.session_state[CHOICE] = name
with place:
    st.selectbox(
        "Model",
        list(families),
        key=CHOICE,
        on_change=update_address,
        placeholder=f"Search {len(families):,} models of {', '.join(LIBRARIES)}",
        label_visibility="collapsed",
    )
if name is None:
    st.title("One model", anchor=False)
    st.caption("Choose a model to see its costs, memory, published accuracies, timings and trainings.")
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
