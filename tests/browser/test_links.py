"""Browser tests of links: bad values in an address, and the history. Only a browser fills fields from the address."""

import re
import time

import pytest
from playwright.sync_api import Page, expect

from engine.specs import BenchmarkSpec
from engine.store import open_store
from tests.support.browser import DRAWN, PATIENCE_S, TOLD_MS, Server, select_rows, unexpected_errors

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

LINKS = {
    "/recurrent?recurrent_hidden_size=8&recurrent_loops=-1e400&recurrent_seed="
    + "9" * 5000: "Samples '-1e400': must be",
    "/?catalog_max_gmacs=1e400&catalog_library=keras": "catalog_library 'keras': not available here",
}
"""Addresses with fields that the browser fills itself. tests/pages/shared/test_links.py has all kinds of bad values."""


def test_bad_links_show_a_message(server: Server, page: Page) -> None:
    for link, message in LINKS.items():
        page.goto(server.url + link)
        expect(page.get_by_test_id("stAlert").filter(has_text=message)).to_be_visible()
        page.wait_for_function(DRAWN, timeout=PATIENCE_S * 1000)
        expect(unexpected_errors(page)).to_have_count(0)
        if link.startswith("/recurrent"):
            expect(page.get_by_test_id("stAlert").filter(has_text="This page does not accept")).to_be_visible()
            expect(page).to_have_url(re.compile(r"/recurrent\?recurrent_hidden_size=8$"))  # only the accepted value

    page.goto(f"{server.url}/profile?profile_batch_size=1.5&profile_models=timm:resnet18")
    batch = page.get_by_role("textbox", name="Batch sizes")
    count = page.get_by_role("button", name="Count", exact=True)
    expect(batch).to_have_value("1.5")
    expect(count).to_be_disabled()
    expect(count).not_to_have_css("color", "rgb(255, 255, 255)")  # white is unreadable without a background
    batch.fill("2000")
    batch.press("Enter")
    expect(page.get_by_text("Counts 1 model on meta")).to_be_visible()
    expect(page).to_have_url(re.compile("profile_batch_size=2000"))
    page.set_viewport_size({"width": 800, "height": 900})
    expect(page.get_by_role("radio", name="float64")).to_be_in_viewport(ratio=0.9)  # and not cut
    page.goto(f"{server.url}/device")
    page.wait_for_function(DRAWN, timeout=PATIENCE_S * 1000)
    machine, peaks = (page.get_by_role("heading", name=name) for name in ("This machine", "Measured peaks"))
    assert peaks.bounding_box()["y"] > machine.bounding_box()["y"] + 100, "side by side, both tables would be cut"


def test_each_change_is_one_history_entry_and_back_restores_views(server: Server, page: Page) -> None:
    def drawn_view() -> tuple[str, str | None, str]:
        page.wait_for_timeout(TOLD_MS)
        page.wait_for_function(DRAWN, timeout=PATIENCE_S * 1000)
        plot = page.get_by_role("figure").first
        return page.url, plot.get_attribute("aria-label") if plot.count() else None, search.input_value()

    def view_after_change(address: str) -> tuple[str, str | None, str]:
        """Wait for this address, and return its view. The script that draws it starts before the address changes."""
        expect(page).to_have_url(re.compile(address))
        return drawn_view()

    def wait_for_view(expected: tuple[str, str | None, str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (current := drawn_view()) != expected and time.monotonic() < deadline:
            pass  # the address changes before the server draws the page
        assert current == expected

    page.goto(f"{server.url}/?catalog_families=resnet")  # few points, which are drawn sooner
    search = page.get_by_label("Search", exact=True)
    expect(search).to_be_visible()
    views, entries = [drawn_view()], page.evaluate("history.length")
    search.press_sequentially("timm:resnet1")
    search.press_sequentially("8*", delay=300)  # one entry, although the table changes after each key
    views.append(view_after_change("catalog_search=timm%3Aresnet18%2A$"))
    page.get_by_role("button", name="Plot options").click()
    page.get_by_text("Log X", exact=True).click()
    page.keyboard.press("Escape")
    views.append(view_after_change("catalog_log_x=false"))
    select_rows(page.get_by_test_id("stDataFrame").first, 0)
    expect(page.get_by_role("button", name="Download 1 selected")).to_be_visible()
    views.append(drawn_view())
    page.get_by_role("button", name="ImageNet against MACs").click()  # sets several fields
    views.append(view_after_change("catalog_y=ImageNet"))
    page.get_by_test_id("stSidebarNavLink").filter(has_text="Runs").click()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    assert page.evaluate("history.length") == entries + 5
    assert len(set(views)) == 5
    for expected in reversed(views):
        page.go_back()
        wait_for_view(expected)
    for expected in views[1:]:
        page.go_forward()
        wait_for_view(expected)
    page.go_forward()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()


def test_each_link_is_one_history_entry_and_back_restores_the_view(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/?catalog_search=timm:resnet50*")
    search = page.get_by_label("Search", exact=True)
    search.fill("timm:resnet18*")
    expect(page).to_have_url(re.compile("catalog_search=timm%3Aresnet18"))  # else the click may hit the old table
    select_rows(page.get_by_test_id("stDataFrame").first, 0, 1)
    expect(page.get_by_role("button", name="Download 2 selected")).to_be_visible()
    page.get_by_test_id("stMain").get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", name="Compare", exact=True)).to_be_visible()
    page.wait_for_function(DRAWN)
    page.go_back()
    expect(search).to_have_value("timm:resnet18*")
    expect(page.get_by_role("button", name="Download 2 selected")).to_be_visible()
    page.go_forward()
    expect(page.get_by_role("heading", name="Compare", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile(r"/compare\?compare_models=timm"))

    spec = BenchmarkSpec(models="timm:resnet18", batch_size=32)
    store = open_store(server.settings)
    run_id = store.enqueue(spec)
    store.close()
    page.goto(f"{server.url}/runs")
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.goto(f"{server.url}/vision?run={run_id}")  # the page adds the settings of the run to the address
    expect(page).to_have_url(re.compile(r"benchmark_batch_size=32"))
    expect(page.get_by_role("button", name=re.compile("^Remove .*resnet18"))).to_be_visible()
    expect(page.get_by_text(f"Run {run_id}", exact=True).first).to_be_visible()
    page.wait_for_function(DRAWN)
    page.go_back()
    expect(page).to_have_url(f"{server.url}/runs")
