"""Presets of a form: buttons that fill some of its fields; the one that the fields agree with is ticked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from pages.shared.form import spec_form

TICKED = ":material/check:"


@dataclass(frozen=True)
class Preset:
    """What it stands for, in a sentence, and the fields with what they are set to."""

    meaning: str
    fields: Mapping[str, Any]


Presets = Mapping[str, Preset]


def prefill(prefix: str, preset: Preset) -> None:
    """Put what a preset stands for into the fields."""
    for field, value in preset.fields.items():
        st.session_state[spec_form.key(prefix, field)] = value


def draw(place: Any, prefix: str, presets: Presets, values: Mapping[str, Any]) -> None:
    """The presets in `place`, which stands before the fields and is drawn when their values are known.

    Buttons, since a choice whose value is set from here would be sent back by a browser that has not heard of it yet,
    together with what is typed next; that looks like a click, and overwrites what was typed.
    """
    with place, st.container(horizontal=True, vertical_alignment="center"):
        st.caption("Presets", width="content")
        for name, preset in presets.items():
            fits = all(_same(values[field], value) for field, value in preset.fields.items())
            options = {"key": f"{prefix}_preset_{name}", "help": preset.meaning, "icon": TICKED if fits else None}
            st.button(name, on_click=prefill, args=(prefix, preset), **options)


def _same(value: Any, preset: Any) -> bool:
    """In which order names were chosen does not matter."""
    return sorted(value) == sorted(preset) if isinstance(preset, list) else bool(value == preset)
