"""Format texts and numbers for display. Texts from users and files are shown as they are, never interpreted."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st
from pydantic import ValidationError

from engine.report.style import digits
from engine.specs import Refused, describe_error

LONGEST_QUOTED = 60
"""Maximum number of characters of a text from a link that a message repeats."""


def plain(text: str) -> str:
    """Return Markdown that shows exactly this text: special characters are escaped and line breaks are kept."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text).replace("\n", "  \n")


def show_error(problem: object, **more: Any) -> None:
    """Draw a problem, such as a refusal, as an error message. more: arguments of st.error."""
    text = describe_error(problem.errors()[0]) if isinstance(problem, ValidationError) else str(problem)
    st.error(plain(text), icon=":material/error:", **more)


@contextmanager
def refusals_shown() -> Iterator[None]:
    """Show a refusal that the block or decorated function raises as an error message. The rest of it is skipped."""
    try:
        yield
    except Refused as refusal:
        show_error(refusal)


def quoted(text: str) -> str:
    """Return a text from a link for use in a message: quoted, with control characters escaped, cut if too long."""
    return repr(text) if len(text) <= LONGEST_QUOTED else f"{text[:LONGEST_QUOTED]!r}... ({len(text):,} characters)"


def size(gb: float) -> str:
    """Return a number of gigabytes in a fitting unit: `640 kB`, `53.8 MB`, `1.2 GB`."""
    for factor, unit in ((1, "GB"), (1e3, "MB")):
        if gb * factor >= 1:
            return f"{digits(gb * factor)} {unit}"
    return f"{digits(1e6 * gb)} kB"
