"""Wait for a run without an open page."""

import time
from collections.abc import Callable

from playwright.sync_api import Page

LONG_S = 1500
"""Wait at most this many seconds for a run: importing and compiling are slow on a loaded machine."""


def wait(page: Page, until: Callable[[], bool]) -> None:
    """Empty the tab, then wait until a condition holds. The page of an active run is redrawn every second."""
    page.goto("about:blank")
    deadline = time.monotonic() + LONG_S
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.2)
