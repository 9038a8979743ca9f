"""Browser tests of accessibility: axe-core's rules on every page, contrast in both themes, and the keyboard's focus."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, expect

from engine.specs import ProfileSpec
from engine.store import open_store
from tests.support.browser import DRAWN, WINDOW, Server, new_tab, unexpected_errors, without_runs
from tests.support.page import ADDRESSES
from tests.support.store import fill

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
STREAMLIT_PARTS = ("stSidebarNav", "stFileUploaderDropzone")
"""Streamlit's elements that break rules: a list with boxes around its items, and a decoration with a label."""
DARK = "rgb(13, 17, 23)"
"""Background of the dark theme, from .streamlit/config.toml."""
PAGES = (
    *(address for address in ADDRESSES.values() if address != "run"),
    *("model?name=timm:resnet18", "run?run=99999", "?catalog_search=nosuch"),
)


@pytest.fixture(scope="module")
def server(waiting_server: Server) -> Iterator[Server]:
    """Yield a server with ended runs of all kinds and a queued run."""
    with without_runs(waiting_server) as server, closing(open_store(server.settings)) as store:
        store.enqueue(ProfileSpec(models="timm:resnet18"))  # fill() continues from its number
        fill(store, 60, 3)
        yield server


@pytest.fixture(scope="module")
def tab(profile: BrowserContext) -> Iterator[Page]:
    """Yield a tab for all tests of this module. A page takes a third less CPU time in it than in a new tab."""
    with new_tab(profile) as page:
        yield page


@pytest.fixture
def page(tab: Page) -> Page:
    """Return the tab of this module, in the light theme."""
    tab.emulate_media(color_scheme="light")
    return tab


def violations(page: Page, url: str, tab: str = "") -> list[str]:
    """Open a page, and return the broken rules, each with the first element that breaks it.

    The dark theme differs only in its colours, so only contrast is checked in it. tab: label of a tab to open first.
    """
    page.goto(url)
    page.wait_for_function(DRAWN)
    if tab:
        page.get_by_role("tab", name=tab, exact=True).click()
        expect(page.get_by_role("tab", name=tab, exact=True, selected=True)).to_be_visible()
        page.wait_for_function(DRAWN)
    expect(unexpected_errors(page)).to_have_count(0)
    broken = _broken(page, RULES)
    page.emulate_media(color_scheme="dark")
    expect(page.get_by_test_id("stApp")).to_have_css("background-color", DARK)
    page.wait_for_function(DRAWN)
    return broken + _broken(page, ["color-contrast"])


def _broken(page: Page, rules: list[str]) -> list[str]:
    options = {"runOnly": rules, "resultTypes": ["violations"]}
    context = {"exclude": [[f"[data-testid={part}]"] for part in STREAMLIT_PARTS]}
    found = Axe().run(page, context=context, options=options).response["violations"]
    return [f"{item['help']}: {item['nodes'][0]['html']}" for item in found]


@pytest.mark.parametrize("path", PAGES)
def test_page_meets_the_axe_rules(page: Page, server: Server, path: str) -> None:
    assert violations(page, f"{server.url}/{path}") == []


def test_primary_button_meets_the_contrast_rule(page: Page, server: Server) -> None:
    assert violations(page, f"{server.url}/profile?profile_models=timm:resnet18") == []
    colour = "button => getComputedStyle(button).color"
    count = page.get_by_role("button", name="Count", exact=True)
    on_primary = count.evaluate(colour)  # in the dark theme
    page.goto(
        f"{server.url}/profile?profile_models=timm:resnet18&profile_batch_size=1.5"
    )  # axe does not check disabled buttons
    expect(count).to_be_disabled()
    assert count.evaluate(colour) != on_primary, "a disabled button has no background, so it needs another colour"


@pytest.mark.parametrize("kind", ["profile", "benchmark", "recurrent", "device", "train", "evaluate"])
def test_run_page_meets_the_axe_rules(page: Page, server: Server, kind: str) -> None:
    assert violations(page, run_page(server, kind)) == []


def test_open_tabs_meet_the_axe_rules(page: Page, server: Server) -> None:
    assert violations(page, run_page(server, "profile"), "Request") == []
    page.emulate_media(color_scheme="light")
    assert violations(page, f"{server.url}/model?name=timm:resnet18", "Commands") == []


def test_focus_of_the_keyboard_is_visible(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/runs")
    page.wait_for_function(DRAWN)
    page.keyboard.press("Tab")
    link = page.get_by_test_id("stSidebarNav").get_by_role("link", name="Device")
    link.focus()  # after a key, so that the browser shows the focus
    expect(link).to_have_css("outline-style", "solid")
    toolbar = page.get_by_test_id("stElementToolbar").first
    expect(toolbar).to_have_css("opacity", "0")
    page.get_by_role("button", name="Search: Runs on this page").focus()
    expect(toolbar).to_have_css("opacity", "1")


def test_collapsed_sidebar_has_no_focus(page: Page, server: Server) -> None:
    page.set_viewport_size({"width": 720, "height": 450})  # a window of 1440 px at a zoom of 200 %
    page.goto(server.url)
    page.wait_for_function(DRAWN)
    for _ in range(2):  # after the link that skips to the content
        page.keyboard.press("Tab")
    button = page.get_by_role("button", name="Expand sidebar")
    expect(button).to_be_focused()
    button.press("Enter")
    expect(page.get_by_test_id("stSidebarNav").get_by_role("link", name="Device")).to_be_visible()
    page.set_viewport_size(WINDOW["viewport"])


def run_page(server: Server, kind: str) -> str:
    """Return the address of an ended run of this kind."""
    with closing(open_store(server.settings)) as store:
        return f"{server.url}/run?run={next(run.id for run in store.runs(kind=kind, limit=60) if run.done)}"
