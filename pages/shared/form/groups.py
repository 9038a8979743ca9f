"""What seldom differs in a form, in groups: one is drawn once it is chosen or something in it is set.

Every widget takes the browser some ten milliseconds, and the form of a training has sixty.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import streamlit as st

from engine.specs import Spec
from pages.shared import redraw
from pages.shared.form.spec_form import field, key

IN_USE = "Groups of settings that are seldom changed. What differs from its default stays in sight."


class Undrawn(Enum):
    """Stands in the state for a field that is not drawn.

    What a preset gives such a field is put into the address only if the state knew the field before.
    """

    YET = "undrawn"


def draw(
    spec: type[Spec],
    prefix: str,
    groups: Mapping[str, Sequence[str]],
    label: str = "Further settings",
    **choices: Sequence[str],
) -> dict[str, Any]:
    """Groups to choose from, and the fields of those chosen or set; answers what all of them hold."""
    values = {name: _by_default(spec, name, choices.get(name)) for names in groups.values() for name in names}
    differing = {name for name, default in values.items() if _is_set(key(prefix, name), default)}
    in_use = [group for group, names in groups.items() if differing.intersection(names)]
    asked = key(prefix, label)
    chosen: list[str] = st.session_state.get(asked, [])
    if not set(in_use) <= set(chosen):
        st.session_state[asked] = list(dict.fromkeys([*chosen, *in_use]))
    shown = st.pills(label, list(groups), selection_mode="multi", key=asked, help=IN_USE, wrap=True)
    for group, names in groups.items():
        place = st.container()  # also where nothing is drawn: a field that moves would be left out of the address
        if group in shown:
            with place:
                values |= _group(spec, prefix, group, names, choices)
        else:
            _put_away(prefix, names)
    return values


def _group(
    spec: type[Spec], prefix: str, heading: str, names: Sequence[str], choices: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Three fields a row under their heading."""
    values = {}
    st.caption(heading)
    for row in (names[place : place + 3] for place in range(0, len(names), 3)):
        for column, name in zip(st.columns(3, vertical_alignment="bottom"), row, strict=False):
            if st.session_state.get(key(prefix, name)) is Undrawn.YET:
                del st.session_state[key(prefix, name)]
            with column:
                values[name] = field(spec, name, prefix, choices.get(name))
    return values


def _put_away(prefix: str, names: Sequence[str]) -> None:
    """Keep in mind which fields are not drawn."""
    for name in names:
        st.session_state.setdefault(key(prefix, name), Undrawn.YET)
        redraw.release(key(prefix, name))


def _by_default(spec: type[Spec], name: str, choices: Sequence[str] | None) -> Any:
    default = spec.model_fields[name].default
    return choices[0] if choices and default != "" else default


def _is_set(asked: str, default: Any) -> bool:
    """Whether the address, a preset or somebody's hand gave a field another value than it has by default."""
    if asked in st.query_params:
        return True
    value = st.session_state.get(asked)
    value = tuple(value) if isinstance(value, list) else value
    return value not in (Undrawn.YET, None, "", (), default, str(default))
