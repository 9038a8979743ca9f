"""Fixtures of browser tests: one browser and one server for all of them, and a new tab for each test.

The browser and the server are fixtures of this package, so a worker starts them once, and they end before its first
test outside of this package. A first page of a new browser or server costs 1 to 4 CPU-seconds more than the next.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from engine.store import Store, open_store
from tests.support.browser import WINDOW, Server, chromium, new_tab, serve, unexpected_errors, without_runs


@pytest.fixture(scope="package")
def running_browser() -> Iterator[Browser]:
    """Run a browser. Playwright's event loop must end before tests that run their own."""
    with chromium(shell=True) as browser:
        yield browser


@pytest.fixture(scope="package")
def profile(running_browser: Browser) -> Iterator[BrowserContext]:
    """Yield a browser profile with an empty tab.

    Tabs that the empty tab opens share its process, so Streamlit's scripts are loaded and compiled once per server.
    """
    with running_browser.new_context(**WINDOW) as profile:
        empty = profile.new_page()
        empty.route("**", lambda route: route.fulfill(body=""))
        empty.goto("http://127.0.0.1/")
        yield profile


@pytest.fixture
def browser(running_browser: Browser, profile: BrowserContext) -> Iterator[Browser]:
    """Yield the browser, for a test that opens profiles of its own. They are closed afterwards."""
    yield running_browser
    for context in running_browser.contexts:
        if context is not profile:
            context.close()


@pytest.fixture
def page(profile: BrowserContext) -> Iterator[Page]:
    """Yield a new tab. Afterwards, fail if the page in it shows an exception."""
    with new_tab(profile) as page:
        yield page
        expect(unexpected_errors(page)).to_have_count(0)


@pytest.fixture(scope="package")
def waiting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server with too little disk space to start a run. Tests use it through the fixture `server`."""
    with serve(tmp_path_factory.mktemp("served"), preload="", min_free_gb="1000000") as server:
        yield server


@pytest.fixture
def server(waiting_server: Server) -> Iterator[Server]:
    """Yield a server without runs, on which queued runs stay queued."""
    with without_runs(waiting_server) as server:
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    """Open the store of the test's server."""
    with closing(open_store(server.settings)) as store:
        yield store
