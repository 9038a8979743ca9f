"""What an address asks of a page and none of its fields takes. Streamlit leaves it out in silence; here it is named."""

from typing import Any

import streamlit as st

from engine.specs import Spec
from pages.shared.form import spec_form
from pages.shared.text import plain, quoted

LEFT_OUT = "links_left_out"
MOST_NAMED = 10  # lines of a warning that still leaves the page in sight


def asked() -> dict[str, list[str]]:
    """Return the parameters that fields not drawn yet will read, with all their values. To be called before the page.

    A field that has been drawn follows its user, and the address follows the field.
    """
    return {name: list(st.query_params.get_all(name)) for name in st.query_params if name not in st.session_state}


def report(given: dict[str, list[str]], page: str) -> None:
    """Draw a warning that names the values which no field of the page took, until their fields change.

    given: from `asked`; Streamlit has taken out of the address by now what a field refused. page: its path.
    """
    before: dict[tuple[str, str], tuple[Any, str]] = st.session_state.get(LEFT_OUT, {})
    found = {
        (path, name): (held, line)
        for (path, name), (held, line) in before.items()
        if path == page and name in st.session_state and st.session_state[name] == held
    }
    for name, values in given.items():
        if line := _left_out(name, values):
            found[page, name] = st.session_state[name], line
    st.session_state[LEFT_OUT] = found
    if found:
        lines = [line for _, line in found.values()]
        lines = lines[:MOST_NAMED] + ([f"and {len(lines) - MOST_NAMED} more"] if len(lines) > MOST_NAMED else [])
        message = "\n".join(["This page does not take these values of the link:", *lines])
        st.warning(plain(message), icon=":material/link_off:")


def _left_out(name: str, values: list[str]) -> str:
    """Return a line about the values of a parameter that its field does not hold; empty where it holds all of them."""
    if name not in st.session_state:
        return ""  # the page itself reads it, and answers for it
    held = st.session_state[name]
    several = isinstance(held, list | tuple)
    if st.query_params.get_all(name) == values and (several or len(values) == 1):
        return ""
    lost = [value for value in values if not _holds(held, value)]
    if not lost:
        return ""
    if not several and _holds(held, values[-1]):
        return f"{name} {quoted(lost[0])}: only the last of several values is taken"
    return f"{_problem(name, lost[0])}{f' (and {len(lost) - 1} more)' if len(lost) > 1 else ''}"


def _holds(held: Any, text: str) -> bool:
    """Return whether a field's value is what the text means: a field set to its default leaves the address too."""
    if isinstance(held, list | tuple):
        return text == "" or text in map(str, held)
    if isinstance(held, int | float) and not isinstance(held, bool):
        try:
            return float(text) == held
        except ValueError:
            return False
    return text == "" or text.lower() == str(held).lower()


def _problem(name: str, text: str) -> str:
    """Return what stands against a value: what the spec says of it, where it is of a spec's field."""
    for spec in Spec.__subclasses__():
        field = name.removeprefix(f"{spec.kind}_")
        if field != name and field in spec.model_fields:
            problem = spec_form.problem(spec, field, text) or "is not on offer here"
            return f"{spec_form.heading(spec, field)} {quoted(text)}: {problem}"
    return f"{name} {quoted(text)}: is not on offer here"
