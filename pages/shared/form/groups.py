"""Groups of fields that are seldom changed. A group is drawn when it is chosen or one of its fields is set.

Each widget costs the browser about 10 ms, and the form of a training has 60 fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from engine.specs import Spec
from pages.shared import rerun
from pages.shared.form.spec_form import field, key

HELP = "Choose the groups of settings to show. A group with a changed setting is always shown."
UNDRAWN = object()
"""Marks a field in the session state that has not been drawn yet.

Streamlit writes a value set by a preset into the address only if the state already knew the field.
"""


def draw(
    spec: type[Spec],
    groups: Mapping[str, Sequence[str]],
    label: str = "Further settings",
    always_shown: Sequence[str] = (),
    hints: Mapping[str, str] | None = None,
    **choices: Sequence[str],
) -> dict[str, Any]:
    """Draw the choice of groups and the fields of the shown groups. Return the values of all fields.

    always_shown: groups that cannot be hidden. hints, choices: of fields, as for `field`.
    """
    values = {name: _default(spec, name, choices.get(name)) for names in groups.values() for name in names}
    changed = {name for name, default in values.items() if _is_set(key(spec.kind, name), default)}
    in_use = [group for group, names in groups.items() if group in always_shown or changed.intersection(names)]
    widget = key(spec.kind, label)
    chosen: list[str] = st.session_state.get(widget, [])
    if not set(in_use) <= set(chosen):
        st.session_state[widget] = list(dict.fromkeys([*chosen, *in_use]))
    shown = st.pills(label, list(groups), selection_mode="multi", key=widget, help=HELP, wrap=True)
    for group, names in groups.items():
        place = st.container()  # kept even if empty: a field that changes its position would drop out of the address
        if group in shown:
            with place:
                values |= _draw_group(spec, group if len(shown) > 1 else "", names, choices, hints or {})
        else:
            for name in names:
                st.session_state.setdefault(key(spec.kind, name), UNDRAWN)
                rerun.release(key(spec.kind, name))
    return values


def _draw_group(
    spec: type[Spec], heading: str, names: Sequence[str], choices: Mapping[str, Sequence[str]], hints: Mapping[str, str]
) -> dict[str, Any]:
    """Draw the fields of a group, three per row, under its heading if there is one. Return their values."""
    values = {}
    if heading:
        st.caption(heading)
    else:
        st.empty()  # fields that change their position lose what is being typed
    for row in (names[place : place + 3] for place in range(0, len(names), 3)):
        toggles = {name for name in row if isinstance(spec.model_fields[name].default, bool)}
        for column, name in zip(st.columns(3), row, strict=False):
            if name in toggles and len(toggles) < len(row):
                column.space("small")  # as high as the labels of the other fields
            if st.session_state.get(key(spec.kind, name)) is UNDRAWN:
                del st.session_state[key(spec.kind, name)]
            hint = hints.get(name)
            values[name] = field(spec, name, choices.get(name), hint=hint, narrow=True, place=column)
    return values


def _default(spec: type[Spec], name: str, choices: Sequence[str] | None) -> Any:
    default = spec.model_fields[name].default
    return choices[0] if choices and default != "" else default


def _is_set(widget: str, default: Any) -> bool:
    """Return True if the address, a preset or the user has changed a field from its default."""
    if widget in st.query_params:
        return True
    value = st.session_state.get(widget)
    value = tuple(value) if isinstance(value, list) else value
    text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return value not in (UNDRAWN, None, "", (), default, text)
