"""Warn about values in a link that no field of the page accepts, because Streamlit drops them without a message."""

import re
from difflib import get_close_matches
from typing import Any

import streamlit as st

from engine.specs import Spec
from pages.shared.form import labels, link, spec_form
from pages.shared.kinds import KINDS
from pages.shared.text import plain, quoted

OF_RUNS = re.compile(r"run|\w+_\d+")
"""Parameters of every page that shows runs, such as `charts_7` of run 7."""
PARAMETERS = {
    "model": "name model_part model_way model_memory_size model_memory_gb model_speed_size".split(),
    "runs": [
        f"runs_{name}" for name in "text model device tags states kinds days order size page columns selected".split()
    ],
    "compare": [f"compare_{name}" for name in "runs models what how figure baseline smooth accuracy setting".split()],
    "device": ["device_where"],
}
"""Parameters that a page reads itself, or whose fields it draws only in some views, by the path of the page."""
LEFT_OUT = "links_left_out"
MOST_NAMED = 10
"""Maximum number of lines of the warning, so that the page below stays visible."""


def parameters() -> dict[str, list[str]]:
    """Return the address parameters of fields that are not drawn yet, with all values. Call this before the page runs.

    A field that is drawn holds its own value, and the address follows it.
    """
    return {name: list(st.query_params.get_all(name)) for name in st.query_params if name not in st.session_state}


def report(parameters: dict[str, list[str]], page: str) -> None:
    """Show a warning with the values that no field of the page accepted, until these fields change.

    parameters: from `parameters`; by now Streamlit has removed refused values from the address. page: its path.
    """
    earlier_warnings: dict[tuple[str, str], tuple[Any, str]] = st.session_state.get(LEFT_OUT, {})
    warnings = {
        (path, name): (value, line)
        for (path, name), (value, line) in earlier_warnings.items()
        if path == page and name in st.session_state and st.session_state[name] == value
    }
    for name, values in parameters.items():
        if line := _describe_refused(name, values):
            warnings[page, name] = st.session_state[name], line
    st.session_state[LEFT_OUT] = warnings
    unknown = [_describe_unknown(name, page) for name in parameters if name not in st.session_state]
    lines = [*(line for _, line in warnings.values()), *filter(None, unknown)]
    if lines:
        if len(lines) > MOST_NAMED:
            lines[MOST_NAMED:] = [f"and {len(lines) - MOST_NAMED:,} more"]
        message = "\n".join(["This page does not accept these values of the link:", *lines])
        st.warning(plain(message), icon=":material/link_off:")


def _describe_refused(name: str, values: list[str]) -> str:
    """Return a line about the values that a field did not accept; empty if it accepted all of them."""
    if name not in st.session_state:
        return ""  # not a field: the page reads and checks this parameter itself
    current = st.session_state[name]
    is_list = isinstance(current, list | tuple)
    accepted = st.query_params.get_all(name)
    if accepted == values and (is_list or len(values) == 1):
        return ""
    refused = [value for value in values if not (_holds(current, value) or (is_list and value in accepted))]
    if not refused:
        return ""
    if not is_list and _holds(current, values[-1]):
        return f"{name} {quoted(refused[0])}: only the last of several values is used"
    return f"{_problem(name, refused[0])}{f' (and {len(refused) - 1} more)' if len(refused) > 1 else ''}"


def _describe_unknown(name: str, page: str) -> str:
    """Return a line about a parameter for which the page has no field; empty if the field may only be hidden."""
    kinds = {kind for kind, of_page in KINDS.items() if of_page.folder == page}
    spec = next((spec for spec in Spec.__subclasses__() if spec.kind in kinds), None)
    prefix = f"{spec.kind if spec else page or 'catalog'}_"
    fields = [prefix + field for field in (*spec.model_fields, spec_form.LISTED)] if spec else []
    fields += PARAMETERS.get(page, [])
    if name in (*fields, link.SOURCE) or OF_RUNS.fullmatch(name):
        return ""
    known = fields or [str(key) for key in st.session_state if str(key).startswith(prefix)]
    spellings = (name, prefix + name)  # also of a field without its prefix
    nearest = [match for spelling in spellings for match in get_close_matches(spelling, known, 1, 0.8)][:1]
    return f"{quoted(name)}: no such field here" + "".join(f"; did you mean {field}?" for field in nearest)


def _holds(value: Any, text: str) -> bool:
    """Return True if the value of a field is what the text means. The address omits a field that has its default."""
    if isinstance(value, list | tuple):
        return text == "" or text in map(str, value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return text == "" or text.lower() == str(value).lower()


def _problem(name: str, text: str) -> str:
    """Return a line with the reason why a value is not accepted: for a field of a spec, the spec's error message."""
    for spec in Spec.__subclasses__():
        field = name.removeprefix(f"{spec.kind}_")
        if field != name and field in spec.model_fields:
            problem = spec_form.problem(spec, field, text) or "not available here"
            return f"{labels.heading(spec, field)} {quoted(text)}: {problem}"
    return f"{name} {quoted(text)}: not available here"
