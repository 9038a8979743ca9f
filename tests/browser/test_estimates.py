"""Browser test of estimated speeds: calibration, and Pareto front over latency."""

import re
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from engine.estimate import work
from engine.jobs import submit
from engine.report.timings import estimates
from engine.settings import ROOT
from engine.specs import BenchmarkSpec, Refused
from engine.store import State, Store, open_store
from tests.support.browser import Server, serve
from tests.support.page import calibrated_by_hand

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]
FEW = "?catalog_search=timm:re*,timm:ef*"
"""Address of a plot with a tenth of all points, which is drawn sooner. Some of these models are in a calibration."""
SYMBOLS = """charts => charts.flatMap(chart => chart._fullData).flatMap(trace => [trace.marker?.symbol].flat())"""


def run_calibration(server: Server, page: Page, store: Store) -> None:
    """Run a calibration with 10 s of samples and wait for its end, which takes about two minutes."""
    spec = estimates.calibration(work.read(ROOT / "data" / "catalog"), budget_s=10)
    run_id = submit(store, server.settings, spec, name=estimates.CALIBRATION)
    while not store.run(run_id).state.ended:
        page.wait_for_timeout(500)
    assert store.run(run_id).state is State.FINISHED, store.run(run_id).error


@pytest.mark.parametrize("measured", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_calibration_leads_to_estimates_and_a_latency_front(
    request: pytest.FixtureRequest, page: Page, tmp_path: Path, *, measured: bool
) -> None:
    """On the server of all tests, the cancelled calibration stays queued, and the timings are made by hand."""
    with serve(tmp_path) if measured else nullcontext(request.getfixturevalue("server")) as server:
        page.set_viewport_size({"width": 1440, "height": 1600})
        page.goto(f"{server.url}/{FEW}")
        page.get_by_role("button", name="Calibrate this machine").click()
        page.get_by_role("button", name=re.compile(r"^Calibrate \(.* to .*\)")).click()
        expect(page.get_by_role("link", name=re.compile(r"^Calibration: run \d+"))).to_be_visible()
        store = open_store(server.settings)
        (run,) = store.runs()
        assert isinstance(run.spec, BenchmarkSpec)
        assert len(run.spec.models) == 48
        store.request_cancel(run.id)  # the whole calibration would take ten minutes
        expect(page.get_by_role("button", name="Calibrate this machine")).to_be_visible()
        page.get_by_role("button", name="Calibrate this machine").click()
        page.get_by_role("button", name=re.compile(r"^Calibrate \(.* to .*\)")).click()
        expect(page.get_by_role("link", name=re.compile(r"^Calibration: run \d+"))).to_be_visible()
        store.request_cancel(store.runs()[0].id)
        while store.runs()[0].id != run.id:  # until its process has ended, if it was started
            page.wait_for_timeout(100)
            with suppress(Refused):
                store.delete(store.runs()[0].id)  # by somebody else, maybe before the page has seen the end
        expect(page.get_by_role("button", name="Calibrate this machine")).to_be_visible()

        run_calibration(server, page, store) if measured else calibrated_by_hand(store)
        store.close()
        page.reload()
        page.get_by_role("button", name="ImageNet against latency here").click()
        expect(page.get_by_role("combobox", name="X axis")).to_have_value("Latency p50 (ms)")
        page.get_by_role("combobox", name="Estimate speed on").click()
        page.get_by_role("option", name=re.compile("^eager, batch 1, float32 on")).click()
        expect(page.get_by_text(re.compile(r"rows shown .* on the Pareto front"))).to_be_visible()
        expect(page.get_by_text("Hollow points are estimates")).to_be_visible()
        symbols = page.locator(".js-plotly-plot").evaluate_all(SYMBOLS)
        hollow = [symbol for symbol in symbols if symbol and symbol.endswith("-open")]
        assert len(hollow) > 20
        if not measured:  # a loaded machine may flag all timings, and flagged points are hollow, too
            assert any(symbol and not symbol.endswith("-open") for symbol in symbols), "measured points are filled"
