"""What the list of runs is narrowed down by: fields that the page's address holds."""

from typing import Any

import streamlit as st

from engine.results import kinds
from engine.specs import Refused
from engine.store import Filter, State, Store
from pages.shared import backend, redraw
from pages.shared.text import plain

PREFIX = "runs"
BIND = "query-params"
EMPTY: dict[str, Any] = {"text": "", "model": "", "device": None, "tags": [], "states": [], "kinds": []}
LIVE = "50ms"


def key(name: str) -> str:
    """The widget of a filter, and its name in the page's address."""
    return f"{PREFIX}_{name}"


def first_page() -> None:
    """A list that is filtered anew is shown from its beginning."""
    st.session_state[key("page")] = 1


def clear() -> None:
    """Forget every filter, in the address too."""
    for name, value in EMPTY.items():
        st.session_state[key(name)] = value
    first_page()


@st.cache_data(max_entries=8, show_spinner=False)
def _choices(url: str, revision: int) -> tuple[list[str], list[str]]:
    """Devices and tags, as of a revision of the store."""
    store = backend.store()
    return store.devices(), list(store.tags())


def fields(store: Store) -> Filter | None:
    """Draw the fields and return the filter that they stand for; None where they hold what cannot be searched for."""
    shared: dict[str, Any] = {"bind": BIND, "on_change": first_page}
    devices, known = _choices(backend.settings().store_url, store.revision())
    text, model, device, tags, states = st.columns([3, 2, 2, 2, 2])
    values = {
        "text": text.text_input(
            "Search",
            key=key("text"),
            live=LIVE,
            placeholder="Name, what, notes, error",
            icon=":material/search:",
            **shared,
        ),
        "model": model.text_input(
            "Model",
            key=key("model"),
            live=LIVE,
            placeholder="Part of a name, or vit_*",
            help="Runs that were asked for this model or have a row of it. With * or ?, the whole name has to match. "
            "A library in front of a colon is not looked at.",
            **shared,
        ),
        "device": device.selectbox("Device", devices, index=None, key=key("device"), placeholder="any", **shared),
        "tags": tags.multiselect("Tags", known, key=key("tags"), placeholder="any", **shared),
        "states": states.multiselect(
            "State", [state.value for state in State], key=key("states"), placeholder="any", **shared
        ),
    }
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        many: dict[str, Any] = {"selection_mode": "multi", "wrap": True, **shared}
        values["kinds"] = st.pills("Kind", sorted(kinds()), key=key("kinds"), **many)
        order = st.segmented_control(
            "Order", ["newest first", "oldest first"], default="newest first", required=True, key=key("order"), **shared
        )
        for name in (*values, "order"):
            redraw.hold(key(name))
        if any(values.values()):
            st.button("Clear filters", icon=":material/filter_alt_off:", key=key("clear"), on_click=clear)
    try:
        return Filter(
            kinds=tuple(values["kinds"]),
            states=tuple(State(state) for state in values["states"]),
            model=(values["model"] or "").strip(),
            device=values["device"] or "",
            tags=tuple(values["tags"]),
            text=(values["text"] or "").strip(),
            oldest_first=order == "oldest first",
        )
    except Refused as refusal:
        st.error(plain(str(refusal)), icon=":material/error:")
        return None
