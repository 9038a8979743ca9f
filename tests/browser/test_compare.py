"""Browser test of the Compare page: it follows its runs, and its address contains all choices."""

import re
import time
from contextlib import closing

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from engine.store import open_store
from engine.store.files import RunFiles
from tests.support.browser import PATIENCE_S, Server, new_tab
from tests.support.page import benchmark_row, finish, queue_benchmark, write_samples

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


def page_text(page: Page) -> str:
    """Return all text of the page."""
    return page.get_by_test_id("stMain").inner_text()


def test_link_shows_the_same_comparison_in_another_tab(profile: BrowserContext, page: Page, server: Server) -> None:
    """A new tab has a new session at the server, as another browser has."""
    with closing(open_store(server.settings)) as store:
        first, second = (queue_benchmark(store, "timm:resnet18") for _ in range(2))
        page.goto(f"{server.url}/compare?compare_runs={first},{second}")
        expect(page.get_by_text(f"Not started: run {first}, run {second}")).to_be_visible()
        for run_id, ms in ((first, 20.0), (second, 10.0)):  # the page follows them
            row = benchmark_row("resnet18", latency_ms=ms)
            folder = RunFiles(server.settings.runs_dir, run_id).dir
            write_samples(folder, row, eager=[[ms, 1.01 * ms, 0.99 * ms] * 10] * 3)
            finish(store, run_id, [row])
    expect(page.get_by_text("same request: Both are runs of the same request")).to_be_visible()
    expect(page.get_by_text(f"Baseline: run {first}")).to_be_visible()
    page.get_by_role("combobox", name="Baseline").click()
    page.get_by_role("option", name=f"run {second}").click()
    expect(page.get_by_text(f"Baseline: run {second}")).to_be_visible()
    assert "compare_baseline=run" in page.url
    assert f"compare_runs={first}" in page.url

    with new_tab(profile) as other:
        other.goto(page.url)
        expect(other.get_by_text(f"Baseline: run {second}")).to_be_visible()
        deadline = time.monotonic() + PATIENCE_S
        while (shown := page_text(other)) != (chosen := page_text(page)) and time.monotonic() < deadline:
            other.wait_for_timeout(200)  # both pages are drawn step by step
        assert shown == chosen

    page.goto(f"{server.url}/compare?compare_models=timm:resnet50")
    field = page.get_by_role("combobox", name=re.compile("^Models"))
    field.fill("timm:resnet18")  # other names begin with it, too
    expect(page.get_by_role("option", name="timm:resnet18", exact=True)).to_be_visible()
    field.press("Enter")
    expect(page).to_have_url(re.compile(r"compare_models=timm(%3A|:)resnet50(%2C|,)timm(%3A|:)resnet18$"))
