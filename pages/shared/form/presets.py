"""Presets of a form: buttons that fill some of its fields. A preset is ticked while its fields have its values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from engine.specs.fields.clip import short_name
from pages.shared import rerun
from pages.shared.form import spec_form

TICKED = ":material/check:"


@dataclass(frozen=True)
class Preset:
    """Values for some fields of a form."""

    help: str
    """Purpose of the preset, in one or two sentences."""
    fields: Mapping[str, Any]
    """Value of each field, by name."""


Presets = Mapping[str, Preset]


def prefill(prefix: str, preset: Preset) -> None:
    """Put the values of a preset into the fields. Keep a message for `draw` if they replace other data."""
    data, other = st.session_state.get(spec_form.key(prefix, "data")), preset.fields.get("data")
    if other and data and data != other:
        st.session_state[f"{prefix}_replaced"] = f"Data changed to {other}. Before: {short_name(data)}"
    for field, value in preset.fields.items():
        st.session_state[spec_form.key(prefix, field)] = value


def draw(place: Any, prefix: str, presets: Presets, values: Mapping[str, Any]) -> None:
    """Draw the presets in `place`, a container above the fields that is filled when their values are known.

    The presets are buttons, because a selection widget would lose input. A browser that has not received a selection
    set by the server sends the old selection with the next typed character. Streamlit would treat that as a click and
    overwrite the typed text.
    """
    if message := st.session_state.pop(f"{prefix}_replaced", ""):
        rerun.show(message, ":material/swap_horiz:")
    with place, st.container(horizontal=True, vertical_alignment="center"):
        st.caption("Presets", width="content")
        for name, preset in presets.items():
            matches = all(_has_value(values[field], value) for field, value in preset.fields.items())
            key, icon = f"{prefix}_preset_{name}", TICKED if matches else None
            st.button(name, key=key, help=preset.help, icon=icon, on_click=prefill, args=(prefix, preset))


def _has_value(value: Any, preset: Any) -> bool:
    """Return True if a field has a preset's value. The order of names in a list does not matter."""
    return sorted(value) == sorted(preset) if isinstance(preset, list) else bool(value == preset)
