"""The early end of a page that has nothing more to draw."""


class PageEnd(Exception):
    """Ends the page's script. After `st.stop()` the frame could not draw its own messages any more."""
