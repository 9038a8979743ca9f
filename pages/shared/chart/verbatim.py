"""Show commands and logs as plain text with a copy button."""

from pages.shared.chart.chart import component

# st.code would load a highlighter of 1.5 MB even for plain text, which delays every page with a command by 0.5 s.
_draw = component("verbatim")


def verbatim(text: str, *, key: str, at_end: bool = False) -> None:
    """Show the text. A long text gets a scrollbar. at_end: show its end first, and follow it when lines are added."""
    _draw(data={"text": text, "at_end": at_end}, key=key)
