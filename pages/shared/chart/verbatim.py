"""Show commands and logs as plain text with a copy button."""

from pages.shared.chart.chart import component

# st.code would load a highlighter of 1.5 MB even for plain text, which delays every page with a command by 0.5 s.
_draw = component("verbatim")


def verbatim(text: str, *, key: str) -> None:
    """Show the text. A long text gets a scrollbar."""
    _draw(data=text.encode(), key=key)
