"""Browser test of choosing a model: limits, shortlist, timings on this machine, comparison, and its link."""

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from engine.results import BenchmarkRow
from engine.store import State, open_store
from tests.support.browser import WINDOW, Server, select_rows, serve

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]
SHORTLIST = {"timm:test_convnext2", "timm:test_convnext3"}
"""timm's test models with at most 0.055 GMACs and at least 50 % ImageNet top-1, according to the tables in data/."""
TIMED_S = 600


def wait_for_rows(server: Server) -> list[BenchmarkRow]:
    """Wait for the end of the only run, and return its rows."""
    store = open_store(server.settings)
    try:
        deadline = time.monotonic() + TIMED_S
        while not all(run.state.ended for run in store.runs()) and time.monotonic() < deadline:
            time.sleep(0.5)
        (run,) = store.runs()
        assert run.state is State.FINISHED, run.error
        return [row for row in store.rows(run.id) if isinstance(row, BenchmarkRow)]
    finally:
        store.close()


def assert_compared(page: Page) -> None:
    """Check that costs, published accuracies and timings of the shortlist are side by side."""
    expect(page.get_by_role("heading", name="Compare", exact=True)).to_be_visible()
    costs = page.get_by_text(
        re.compile(r"^Costs are per image \(CLIP: image and text\), each model at its own image size")
    )
    for name in SHORTLIST:
        expect(costs).to_contain_text(f"{name} at 160 px")
    expect(page.get_by_role("heading", name="Published accuracy")).to_be_visible()
    expect(page.get_by_role("heading", name="Measured speed")).to_be_visible()
    expect(page.get_by_role("figure", name=re.compile("^Speed-up of every row"))).to_be_visible()


def test_shortlist_by_limits_is_timed_compared_and_shared_by_link(browser: Browser, page: Page, tmp_path: Path) -> None:
    with serve(tmp_path, probed=False) as server:
        page.set_viewport_size({"width": 1440, "height": 1600})
        page.goto(server.url)
        page.get_by_role("button", name="ImageNet against MACs").click()
        expect(page.get_by_text(re.compile(r"rows shown .* on the Pareto front"))).to_be_visible()
        page.get_by_label("Search", exact=True).fill("timm:test_*")
        page.get_by_label("≤ MACs (G)").fill("0.055")
        page.get_by_label("≤ MACs (G)").press("Enter")
        page.get_by_role("combobox", name="Published accuracy").click()
        page.get_by_role("option", name="ImageNet top-1 (%)", exact=True).click()
        page.get_by_label("≥ ImageNet top-1 (%)").fill("50")
        page.get_by_label("≥ ImageNet top-1 (%)").press("Enter")
        expect(page.get_by_text(re.compile(r"^2 of [\d,]+ rows shown .*; 2 on the Pareto front"))).to_be_visible()

        page.get_by_role("button", name=re.compile("^Time 2 models on this machine")).click()
        expect(page.get_by_role("link", name=re.compile("^Run 1: (queued|starting|running)"))).to_be_visible()
        rows = wait_for_rows(server)
        assert {f"{row.library}:{row.model}" for row in rows} == SHORTLIST
        assert all(row.status == "ok" and row.image_size == "160" for row in rows)

        # the page shows the timings without a reload
        expect(page.get_by_role("link", name="Run 1: finished")).to_be_visible()
        expect(page.get_by_text(re.compile("^Pareto front: 2 of 2 models timed"))).to_be_visible()
        expect(page.get_by_role("button", name="Time on this machine")).to_be_disabled()
        select_rows(page.get_by_test_id("stDataFrame"), 0, 1)
        page.get_by_test_id("stMain").get_by_role("link", name="Compare", exact=True).click()
        assert_compared(page)

        reader = browser.new_context(**WINDOW | {"viewport": {"width": 1440, "height": 1600}}).new_page()
        reader.goto(page.url)
        assert_compared(reader)
        reader.context.close()
