"""Open a form filled with a spec, by a link if the address can hold the spec, so that the Back button works."""

from typing import Any

import streamlit as st

from engine.specs import Spec
from engine.specs.fields.clip import LINE_FIELDS
from pages.shared import backend, browser_history
from pages.shared.backend import LONGEST_ID
from pages.shared.form import spec_form
from pages.shared.form.labels import heading
from pages.shared.kinds import KINDS, form_page

MOST_IN_LINK = 40
"""Maximum number of models in a link. Longer links cannot be reloaded."""
SOURCE = "filled_from"
"""Address parameter: the number of the run whose values a link fills in. The form announces and removes it."""
LAST_SOURCE = "form_filled_from"
"""Session key: the number of the run from which a bare link has last filled a form."""
Query = dict[str, str | list[str]]


def form_link(spec: Spec, label: str, *, icon: str, key: str, help: str | None = None, source: str = "") -> None:
    """Draw a link to the form of a spec, or a button if no address can hold it. source: the run named by the form."""
    options: dict[str, Any] = {"label": label, "icon": icon, "help": help}
    query, session = split(spec)
    query |= {SOURCE: source} if source else {}
    if not session:
        st.page_link(form_page(type(spec)), query_params=query, **options)
    elif st.button(key=key, **options):
        st.session_state.update(session)
        st.switch_page(form_page(type(spec)), query_params=query)


def fill_message(spec: type[Spec]) -> str:
    """Return a sentence on the fields that a link has just filled from a run, once; empty if there was none."""
    run = st.query_params.pop(SOURCE, "")
    fields = [name for name in spec.model_fields if spec_form.key(spec.kind, name) in st.query_params]
    if not run.isdecimal() or not fields:
        return ""
    return f"Filled from run {run[:LONGEST_ID]}: {', '.join(heading(spec, name) for name in fields)}."


def fill_from_run(page: str) -> bool:
    """Fill the form of a page once with the request of a run, for a bare link such as `/vision?run=4`.

    Return True if the page must not be drawn yet: the browser first has to merge entries of its history, so that Back
    leaves the page, and a drawn form could not be filled. page: path of the page in its address.
    """
    run = backend.linked_run()
    if run is None or KINDS[run.kind].folder != page or list(st.query_params) != ["run"]:
        return False
    submitted = st.session_state.get(f"{run.kind}_sent", {}).get("runs", ())
    if run.id in (*submitted, st.session_state.get(LAST_SOURCE)):
        return False
    if browser_history.MERGING not in st.session_state:
        return True
    st.session_state[LAST_SOURCE] = run.id
    query, session = split(run.spec)
    st.session_state.update(session)
    if query:
        st.switch_page(form_page(type(run.spec)), query_params=query | {"run": str(run.id)})
    return False


def split(spec: Spec) -> tuple[Query, dict[str, Any]]:
    """Return the query that fills the form with a spec, and values for the session that no address can hold.

    The session holds uploaded configurations and long lists of models. They are lost when the tab closes.
    """
    query: Query = {}
    session: dict[str, Any] = {}
    for name, value in spec.model_dump().items():
        key = spec_form.key(spec.kind, name)
        if name == "models" and len(value) > MOST_IN_LINK:
            session[spec_form.key(spec.kind, spec_form.LISTED)] = value
            query[spec_form.key(spec.kind, spec_form.LISTED)] = str(len(value))
        elif name == "models":
            query[key] = [model for model in value if not model.startswith("config:")]
        elif getattr(spec, name) == spec.default(name):
            continue
        elif name == "configs":
            session[key] = value
        elif isinstance(value, tuple):
            items = [str(item) for item in value]
            separator = "," if spec_form.is_number_list(type(spec), name) else "\n" if name in LINE_FIELDS else ""
            query[key] = separator.join(items) if separator else items
        else:
            query[key] = str(value).lower() if isinstance(value, bool) else str(value)
    if not query and not session:  # without a field, a page could fill in its preset for the first visit
        name = next(name for name, value in spec if isinstance(value, str | int) and value)
        query[spec_form.key(spec.kind, name)] = str(getattr(spec, name)).lower()
    return query, session
