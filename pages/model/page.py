"""The page of one model: costs, memory, published accuracies, timings, trainings, and commands to reproduce them."""

import streamlit as st

from engine.names import LIBRARIES
from engine.report.catalog import model
from engine.specs import ModelName, Refused
from pages.model import costs, history, memory
from pages.shared import backend
from pages.shared.chart.chart import tabs
from pages.shared.rerun import PageEnd
from pages.shared.runs import launch
from pages.shared.text import plain

CHOICE = "model_choice"


def update_address() -> None:
    """Write the model chosen in the field into the address."""
    st.query_params.from_dict({"name": st.session_state[CHOICE]} if st.session_state[CHOICE] else {})


def linked_model() -> ModelName | None:
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
    st.title("Model", anchor=False)
    st.caption("Choose a model to see its costs, memory, published accuracies, timings and trainings.")
    st.page_link("catalog/page.py", label="All models", icon=":material/table_view:")
    raise PageEnd

sizes = model.sizes(backend.catalogue(), name)
accuracies = model.published(backend.published_accuracies(), name, launch.families())
st.set_page_config(page_title=f"{name.model} – Model Vitals")
costs.draw_head(name, sizes, accuracies)
contents = {
    "Counts": lambda: costs.counts(sizes),
    "Modules": lambda: costs.draw_modules(name, sizes["image_size"].iloc[0]),
    "Memory": lambda: memory.draw(name, sizes),
    "Speed": lambda: history.draw_speeds(name, sizes),
    "Published": lambda: history.draw_published(name, accuracies),
    "Timed here": lambda: history.draw_timings(name),
    "Trained here": lambda: history.draw_trainings(name),
    "Commands": lambda: costs.draw_commands(name, accuracies),
}
if name.library != model.TRAINABLE:
    del contents["Trained here"]
tabs(contents, key="model_part", bind="query-params")
