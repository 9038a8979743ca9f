"""Map each kind of run to its page, to the title of the page and to the unit of its progress."""

from typing import NamedTuple

from engine.specs import Spec


class Kind(NamedTuple):
    """The folder of a page, its title in the navigation, and the unit of a run's progress as `plural` takes it."""

    folder: str
    title: str
    unit: tuple[str, ...]
    expected: str
    """When the first results appear, as a sentence."""


KINDS = {
    "profile": Kind("profile", "Profile", ("count",), "Rows appear here as they arrive."),
    "benchmark": Kind("vision", "Vision speed", ("process", "es"), "Rows of a model appear when it is done."),
    "recurrent": Kind("recurrent", "Recurrent layers", ("process", "es"), "Rows of a family appear when it is done."),
    "device": Kind("device", "Device", ("rate",), "Rates appear here as they arrive."),
    "train": Kind("train", "Train", ("step",), "Curves appear after the first steps, a row after each epoch."),
    "evaluate": Kind("evaluate", "Evaluate", ("part",), "The results of a task appear when it is done."),
}
"""The page of each kind of run: its page.py has the form, its results.py draws the results."""


def described(kind: str) -> str:
    """Return a kind of run with the title of its page if it is another word: `benchmark (Vision speed)`."""
    title = KINDS[kind].title
    return kind if kind == title.lower() else f"{kind} ({title})"


def form_page(spec: type[Spec]) -> str:
    """Return the path of the page whose form builds this class of specs, as `st.switch_page` expects it."""
    return f"{KINDS[spec.kind].folder}/page.py"
