"""The exception that ends a page early."""


class PageEnd(Exception):
    """Raised to end a page. `st.stop()` would also end the frame, which draws its own messages after the page."""
