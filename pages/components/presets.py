"""Presets of a form: they fill some of its fields, and the one that the fields agree with is lit."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from pages.components import spec_form

Presets = Mapping[str, Mapping[str, Any]]
"""By name, the fields and what they are set to."""


def prefill(prefix: str, presets: Presets, name: str | None) -> None:
    """Put what a preset stands for into the fields."""
    for field, value in presets.get(name or "", {}).items():
        st.session_state[spec_form.key(prefix, field)] = value


def draw(place: Any, prefix: str, presets: Presets, values: Mapping[str, Any], meaning: str) -> None:
    """The presets in `place`, which stands before the fields and is drawn when their values are known."""
    key = f"{prefix}_preset"
    fits = (name for name, preset in presets.items() if all(_same(values[field], preset[field]) for field in preset))
    st.session_state[key] = next(fits, None)
    with place:
        st.segmented_control(
            "Preset",
            list(presets),
            key=key,
            on_change=lambda: prefill(prefix, presets, st.session_state[key]),
            help=meaning,
            width="stretch",
        )


def _same(value: Any, preset: Any) -> bool:
    """In which order names were chosen does not matter."""
    return sorted(value) == sorted(preset) if isinstance(preset, list) else bool(value == preset)
