"""Filters of the list of runs, kept in the address."""

from collections.abc import Mapping
from datetime import datetime, time, timedelta
from typing import Any

import streamlit as st

from engine.results import kinds
from engine.specs import Refused
from engine.store import Filter, Store
from engine.store.find import OUTCOMES, Order
from pages.shared import backend, rerun
from pages.shared.kinds import KINDS, described
from pages.shared.text import show_error

PREFIX = "runs"
DAYS = {"today": 0, "since yesterday": 1, "last 7 days": 6, "last 30 days": 29}
"""Choices for the day of submission, with the number of days before today."""
ORDERS: dict[str, Order] = {
    "newest first": "newest",
    "oldest first": "oldest",
    "lowest training loss": "loss",
    "lowest held-out loss": "held_out_loss",
    "highest top-1": "accuracy",
    "lowest latency": "latency",
}


def key(name: str) -> str:
    """Return the key of a filter's widget, which is also its parameter in the address."""
    return f"{PREFIX}_{name}"


def go_to_first_page() -> None:
    """Go to the first page of the list. Call this after a filter has changed."""
    st.session_state[key("page")] = 1


def clear(values: Mapping[str, Any]) -> None:
    """Clear these filters, in the address too. values: their current values by name."""
    for name, value in values.items():
        st.session_state[key(name)] = [] if isinstance(value, list) else None
    go_to_first_page()


@st.cache_data(max_entries=8, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _choices(store: Store) -> tuple[list[str], list[str]]:
    """Return the devices and tags of all runs."""
    return store.devices(), list(store.tags())


def _midnight(days: int) -> float:
    """Return when the day `days` days ago began in the local time zone, in seconds since the epoch."""
    return datetime.combine(datetime.now().astimezone().date() - timedelta(days=days), time()).timestamp()


def fields(store: Store) -> Filter | None:
    """Draw the filters and return them as a Filter, or None with an error message if a value is invalid."""
    shared: dict[str, Any] = {"bind": "query-params", "on_change": go_to_first_page}
    devices, all_tags = _choices(store)
    grid = st.grid(6, min_column_width=130)
    values = {
        "text": grid.cell(column_span=2).text_input(
            "Search",
            key=key("text"),
            live=True,
            placeholder="Name, request, notes, error",
            icon=":material/search:",
            **shared,
        ),
        "model": grid.text_input(
            "Model",
            key=key("model"),
            live=True,
            placeholder="Part of a name, or vit_*",
            help="Show runs submitted for this model or with a row of it. A pattern with * or ? must match the "
            "whole name. With a library in front, such as timm:resnet18, only its models are found.",
            **shared,
        ),
        "device": grid.selectbox("Device", devices, index=None, key=key("device"), placeholder="any", **shared),
        "tags": grid.multiselect("Tags", all_tags, key=key("tags"), placeholder="any", **shared),
        "states": grid.multiselect("State", list(OUTCOMES), key=key("states"), placeholder="any", **shared),
    }
    with st.container(horizontal=True, horizontal_alignment="distribute"):
        options: dict[str, Any] = {"selection_mode": "multi", "wrap": True, **shared}
        help = f"The command of the run, with the title of its page: {', '.join(map(described, sorted(KINDS)))}."
        values["kinds"] = st.pills("Kind", sorted(kinds()), key=key("kinds"), help=help, **options)
        values["days"] = st.selectbox(
            "Submitted", list(DAYS), index=None, key=key("days"), placeholder="any day", width=180, **shared
        )
        help = "Order over all pages. Runs without the value come last."
        order = st.selectbox("Order", list(ORDERS), key=key("order"), width=180, help=help, **shared)
    for name in (*values, "order"):
        rerun.hold(key(name))
    if any(values.values()):
        st.button("Reset filters", icon=":material/filter_alt_off:", key=key("clear"), on_click=clear, args=[values])
    try:
        return Filter(
            kinds=tuple(values["kinds"]),
            outcomes=tuple(values["states"]),
            model=(values["model"] or "").strip(),
            device=values["device"] or "",
            tags=tuple(values["tags"]),
            text=(values["text"] or "").strip(),
            created_after=_midnight(DAYS[values["days"]]) if values["days"] else None,
            order=ORDERS[order],
        )
    except Refused as refusal:
        show_error(refusal)
        return None
