"""Commands and logs: text as it is, with a button that copies it."""

from pages.shared.chart.component import component

# Streamlit's own code block brings a highlighter of 1.5 MB, plain text too: half a second of every page with a command.
_draw = component("verbatim")


def verbatim(text: str, *, key: str) -> None:
    """Draw it; what is long is scrolled."""
    _draw(data=text.encode(), key=key)
