"""Open a form filled with a spec, by a link if the address can hold the spec, so that the Back button works."""

from typing import Any

import streamlit as st

from engine.specs import Spec
from pages.shared import backend, history
from pages.shared.backend import LONGEST_ID
from pages.shared.form import spec_form
from pages.shared.form.labels import heading
from pages.shared.kinds import PAGES, form_page

IN_LINK = 40
"""Maximum number of models in a link. Longer links cannot be reloaded."""


FROM = "filled_from"
"""Address parameter: the number of the run whose values a link fills in. The form announces and removes it."""


def form_link(spec: Spec, label: str, *, icon: str, key: str, help: str | None = None, source: str = "") -> None:
    """Draw the link to the form of a spec, or a button if the address cannot hold the spec.

    key: of the button. source: number of the run that the form says its values are from.
    """
    options: dict[str, Any] = {"label": label, "icon": icon, "help": help}
    page, query = form_page(type(spec)), address(spec.kind, spec) | ({FROM: source} if source else {})
    if in_link(spec):
        st.page_link(page, query_params=query, **options)
    elif st.button(key=key, **options):
        put_aside(spec.kind, spec)
        st.switch_page(page, query_params=query)


def filled_from(spec: type[Spec]) -> str:
    """Return a sentence on the fields that a link has just filled from a run, once; empty if there was none."""
    run = st.query_params.pop(FROM, "")
    fields = [name for name in spec.model_fields if spec_form.key(spec.kind, name) in st.query_params]
    if not run.isdecimal() or not fields:
        return ""
    return f"Filled from run {run[:LONGEST_ID]}: {', '.join(heading(spec, name) for name in fields)}."


FILLED = "form_filled_from"


def fill_from_run(page: str) -> bool:
    """Fill the form of a page once with the request of a run, for a bare link such as `/vision?run=4`.

    Return True if the page must not be drawn yet: the browser first has to merge entries of its history, so that Back
    leaves the page, and a drawn form could not be filled. page: path of the page in its address.
    """
    run = backend.linked_run()
    if run is None or PAGES[run.kind] != page or list(st.query_params) != ["run"]:
        return False
    submitted = st.session_state.get(f"{run.kind}_sent", {}).get("runs", ())
    if run.id in (*submitted, st.session_state.get(FILLED)):
        return False
    if not history.merging():
        return True
    st.session_state[FILLED] = run.id
    put_aside(run.kind, run.spec)
    if query := address(run.kind, run.spec):
        st.switch_page(form_page(type(run.spec)), query_params=query | {"run": str(run.id)})
    return False


def address(prefix: str, spec: Spec) -> dict[str, str | list[str]]:
    """Return the query that fills the form with a spec, except for the values that `put_aside` keeps."""
    query: dict[str, str | list[str]] = {}
    for name, value in spec.model_dump().items():
        if name == "configs":
            continue
        if name == "models" and len(value) > IN_LINK:
            query[spec_form.key(prefix, spec_form.LISTED)] = str(len(value))
        elif name == "models":
            query[spec_form.key(prefix, name)] = [model for model in value if not model.startswith("config:")]
        elif getattr(spec, name) == spec.default(name):
            continue
        elif isinstance(value, tuple):
            items = [str(item) for item in value]
            together = "," if spec_form.is_number_list(type(spec), name) else "\n" if name in spec_form.LISTS else ""
            query[spec_form.key(prefix, name)] = together.join(items) if together else items
        else:
            query[spec_form.key(prefix, name)] = str(value).lower() if isinstance(value, bool) else str(value)
    return query


def in_link(spec: Spec) -> bool:
    """Return whether an address can hold the whole spec: no long list of models and no uploaded configurations."""
    return len(getattr(spec, "models", ())) <= IN_LINK and not getattr(spec, "configs", {})


def put_aside(prefix: str, spec: Spec) -> None:
    """Keep the values that an address cannot hold in the session, for the form. They are lost when the tab closes."""
    if configs := getattr(spec, "configs", {}):
        st.session_state[spec_form.key(prefix, "configs")] = configs
    if len(models := getattr(spec, "models", ())) > IN_LINK:
        st.session_state[spec_form.key(prefix, spec_form.LISTED)] = models
