"""Which page belongs to which kind of run."""

from engine.specs import Spec

PAGES = {
    "profile": "profile",
    "benchmark": "vision",
    "recurrent": "recurrent",
    "device": "device",
    "train": "train",
    "evaluate": "evaluate",
}
"""The folder of the page that has the form (page.py) and draws the results (results.py), by kind of run."""


def form_page(spec: type[Spec]) -> str:
    """Return the page whose form builds specs of this class, as `st.switch_page` names it."""
    return f"{PAGES[spec.kind]}/page.py"
