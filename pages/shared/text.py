"""Format texts and numbers for display. Texts from users and files are shown as they are, never interpreted."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st
from pydantic import ValidationError

from engine.report.style import digits
from engine.report.timings.needs import Span
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


def duration(seconds: float) -> str:
    """Return a duration in readable units: `0.8 s`, `42 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def span(seconds: Span) -> str:
    """Return a range of durations, rounded outwards: `40 s to 2 min 10 s`, `14 min to 31 min`."""
    return f"{duration(_round(seconds.low, math.floor))} to {duration(_round(seconds.high, math.ceil))}"


def _round(seconds: float, to_integer: Callable[[float], int]) -> float:
    """Round a duration to 10 s from one minute on, and to 1 min from ten minutes on."""
    if seconds < 60:
        return seconds
    step = 60 if seconds >= 600 else 10
    return to_integer(seconds / step) * step


def size(gb: float) -> str:
    """Return a number of gigabytes in a fitting unit: `640 kB`, `53.8 MB`, `1.2 GB`."""
    for factor, unit in ((1, "GB"), (1e3, "MB")):
        if gb * factor >= 1:
            return f"{digits(gb * factor)} {unit}"
    return f"{digits(1e6 * gb)} kB"
