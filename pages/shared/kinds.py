"""Map each kind of run to its page, to the title of the page and to the unit of its progress."""

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
TITLES = {
    "profile": "Profile",
    "benchmark": "Vision speed",
    "recurrent": "Recurrent layers",
    "device": "Device",
    "train": "Train",
    "evaluate": "Evaluate",
}
"""Title of the page in the navigation, by kind of run. A kind has the name of its command."""
UNITS = {
    "profile": ("count",),
    "benchmark": ("process", "es"),
    "recurrent": ("process", "es"),
    "device": ("rate",),
    "train": ("step",),
    "evaluate": ("part",),
}
"""Unit in which the progress of a run is counted, by kind, as `plural` takes it."""


def described(kind: str) -> str:
    """Return a kind of run with the title of its page if it is another word: `benchmark (Vision speed)`."""
    title = TITLES[kind]
    return kind if kind == title.lower() else f"{kind} ({title})"


def form_page(spec: type[Spec]) -> str:
    """Return the path of the page whose form builds this class of specs, as `st.switch_page` expects it."""
    return f"{PAGES[spec.kind]}/page.py"
