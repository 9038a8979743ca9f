"""Map each kind of run to its page."""

from engine.specs import Spec

PAGES = {
    "profile": "profile",
    "benchmark": "vision",
    "recurrent": "recurrent",
    "device": "device",
    "train": "train",
    "evaluate": "evaluate",
}
"""Folder of the page, by kind of run. Its page.py has the form, its results.py draws the results."""


def form_page(spec: type[Spec]) -> str:
    """Return the path of the page whose form builds this class of specs, as `st.switch_page` expects it."""
    return f"{PAGES[spec.kind]}/page.py"
