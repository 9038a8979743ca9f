"""The way to a form filled with a spec: a link, so that Back leads here again, wherever an address can hold it."""

from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st

from engine.specs import Spec
from pages.components import spec_form


def form_link(spec: Spec, label: str, *, icon: str, key: str, help: str | None = None) -> None:
    """Leads to the form of a spec, filled with it. key: of the button that stands there for what no link can hold."""
    look: dict[str, Any] = {"label": label, "icon": icon, "help": help}
    page, address = form_page(type(spec)), spec_form.address(spec.kind, spec)
    if spec_form.in_link(spec):
        st.page_link(page, query_params=address, **look)
    elif st.button(key=key, **look):
        spec_form.put_aside(spec.kind, spec)
        st.switch_page(page, query_params=address)


@cache
def form_page(spec: type[Spec]) -> str:
    """The page whose form builds specs of this class, as `st.switch_page` names it. Errors: LookupError."""
    pages = Path(__file__).parent.parent
    for page in sorted(pages.glob("*/*.py")):
        if f"build({spec.__name__}," in page.read_text(encoding="utf-8"):
            return str(page.relative_to(pages))
    raise LookupError(f"no page calls spec_form.build({spec.__name__}, ...)")
