"""Browser tests of charts: theme, updates, selection, zoom, full screen and errors."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from engine.specs import BenchmarkSpec, ProfileSpec, RecurrentSpec
from engine.store import Store, open_store
from tests.support.browser import DRAWN, PHONE, Server, select_rows
from tests.support.clip import curve_points, queue_train, record, train_row
from tests.support.page import benchmark_row, finish, profile_row, recurrent_row

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]
POINTS = "chart => chart.querySelectorAll('.scatterlayer .point').length"
SPAN = "chart => chart._fullLayout.xaxis.range"
FEW = "?catalog_search=timm:resnet18*"
"""Address of a plot with few points, which is drawn sooner."""


def catalogue_plot(page: Page) -> Locator:
    """Wait until the page is drawn, and return the plot of the catalogue."""
    page.wait_for_function(DRAWN)
    return page.get_by_role("figure", name=re.compile(" against .* on the Pareto front"))


def drag(page: Page, chart: Locator, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag the mouse in the plot. start, end: fractions of its width from the left and of its height from the top."""
    box = chart.locator(".nsewdrag").first.bounding_box()
    assert box
    (x, y), (to_x, to_y) = (
        (box["x"] + box["width"] * across, box["y"] + box["height"] * down) for across, down in (start, end)
    )
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move((x + to_x) / 2, (y + to_y) / 2, steps=3)
    page.mouse.move(to_x, to_y, steps=3)
    page.mouse.up()


def test_filter_updates_the_plot_and_keeps_selection_and_zoom(server: Server, page: Page) -> None:
    page.goto(server.url)
    chart = catalogue_plot(page)
    all_points = chart.evaluate(POINTS)
    assert all_points > 1500
    chart.evaluate("chart => { chart.same = true }")

    chart.hover()
    chart.get_by_role("button", name="Zoom in").click()
    zoomed = chart.evaluate(SPAN)
    chart.get_by_role("button", name="Box Select").click()
    drag(page, chart, (0.3, 0.3), (0.7, 0.7))
    chosen = page.get_by_role("button", name=re.compile(r"Download [\d,]+ selected"))
    expect(chosen.first).to_be_visible()
    before = int(re.sub(r"\D", "", chosen.first.inner_text()))

    page.get_by_label("Search", exact=True).fill("resnet")
    expect(page.get_by_text(re.compile(r"^\d{3} of [\d,]+ rows shown"))).to_be_visible()
    chart = catalogue_plot(page)
    assert chart.evaluate("chart => chart.same") is True, "the same element was updated"
    assert 0 < chart.evaluate(POINTS) < all_points
    assert chart.evaluate(SPAN) == zoomed
    remaining = int(re.sub(r"\D", "", chosen.first.inner_text()))
    assert 0 < remaining < before
    highlighted = "chart => chart._fullData.flatMap(trace => trace.selectedpoints ?? []).length"
    assert chart.evaluate(highlighted) == remaining, "the plot highlights as many points as the page counts"

    chart.locator(".nsewdrag").first.dblclick()
    expect(chosen).to_have_count(0)


def test_plot_and_table_share_a_selection_and_wheel_scrolls_the_page(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/?catalog_search=timm:resnet*")
    chart = catalogue_plot(page)
    labels = "chart => chart._fullData.flatMap(t => (t.selectedpoints ?? []).map(place => t.customdata[place][0]))"
    select_rows(page.get_by_test_id("stDataFrame").first, 0)
    expect(page.get_by_role("button", name="Download 1 selected")).to_be_visible()
    page.wait_for_function(DRAWN)
    (row,) = chart.evaluate(labels)
    drag(page, chart, (0.6, 0.05), (0.95, 0.5))
    files = page.get_by_role("button", name=re.compile(r"Download (?!1 )\d+ selected"))
    expect(files).to_be_visible()
    boxed = chart.evaluate(labels)
    assert row not in boxed
    select_rows(page.get_by_test_id("stDataFrame").first, 0)
    expect(page.get_by_role("button", name=f"Download {len(boxed) + 1} selected")).to_be_visible()
    page.wait_for_function(DRAWN)
    assert set(chart.evaluate(labels)) == {row, *boxed}, "the click adds a row to the points in the box"

    span = chart.evaluate(SPAN)
    chart.hover()
    page.mouse.wheel(0, 200)
    page.wait_for_function("() => document.querySelector('[data-testid=stMain]').scrollTop > 100")
    assert chart.evaluate(SPAN) == span
    page.mouse.wheel(0, -400)
    page.keyboard.down("Control")
    chart.hover()
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_function(f"span => ({SPAN})(document.querySelector('.chart')).join() !== span.join()", arg=span)


def test_selected_row_without_a_point_does_not_fade_points(server: Server, page: Page) -> None:
    opacities = "chart => [...chart.querySelectorAll('.scatterlayer .point')].map(point => point.style.opacity)"
    view = f"{server.url}/?catalog_search=timm:resnet18,ViT-S-32-alt&catalog_y=ImageNet+top-1+%28%25%29"
    page.goto(view)
    usual = catalogue_plot(page).evaluate(opacities)
    assert usual
    page.goto(f"{view}&catalog_rows=open_clip:ViT-S-32-alt+224")  # no accuracy is published for it
    expect(page.get_by_role("button", name="Download 1 selected")).to_be_visible()
    assert catalogue_plot(page).evaluate(opacities) == usual


def test_charts_of_sweeps_are_drawn_in_all_tabs(server: Server, page: Page) -> None:
    """Points of these charts contain numbers, which plotly encodes differently from text."""
    store = open_store(server.settings)
    sizes = (1, 4, 16)
    profiled = [profile_row(model, batch_size=size) for model in ("resnet18", "resnet34") for size in sizes]
    timed = [benchmark_row("resnet18", batch_size=size, batch_size_requested="sweep") for size in sizes]
    recurrent = [recurrent_row(runner, hidden_size=size) for runner in ("aten", "py") for size in sizes]
    requests = [
        (ProfileSpec(models="timm:resnet18,timm:resnet34", batch_size=sizes), profiled),
        (BenchmarkSpec(models="timm:resnet18", batch_size="sweep"), timed),
        (RecurrentSpec(runners="aten,py", sweep="hidden_size", sweep_values=sizes), recurrent),
    ]
    runs = [store.enqueue(spec) for spec, _ in requests]
    for run, (_, rows) in zip(runs, requests, strict=True):
        finish(store, run, rows)
    store.close()
    for run in runs:
        page.goto(f"{server.url}/run?run={run}")
        page.wait_for_function(DRAWN)
        tabs = page.get_by_role("tab").all_inner_texts()
        charts = 0
        for tab in tabs[: tabs.index("Log")]:
            page.get_by_role("tab", name=tab, exact=True).click()
            page.wait_for_function(DRAWN)
            expect(page.get_by_text("could not be drawn")).to_have_count(0)
            charts += page.locator(".chart .main-svg").count()
        assert charts


def test_curves_of_a_training_are_below_each_other_in_a_narrow_window(server: Server, store: Store, page: Page) -> None:
    record(store, run_id := queue_train(store), [*curve_points(22), train_row(1)])
    page.goto(f"{server.url}/run?run={run_id}")
    for width, places in ((1440, 1), (800, 2)):
        page.set_viewport_size({"width": width, "height": 1400})
        page.wait_for_function(DRAWN)
        tops = {chart.bounding_box()["y"] for chart in page.locator(".chart").all()}
        assert len(tops) == places


def test_buttons_of_a_chart_do_not_cover_its_legend_on_a_phone(server: Server, browser: Browser) -> None:
    store = open_store(server.settings)
    run = store.enqueue(BenchmarkSpec(models="timm:resnet18", batch_size="sweep"))
    finish(store, run, [benchmark_row("resnet18", batch_size=size, batch_size_requested="sweep") for size in (1, 4)])
    store.close()
    page = browser.new_context(**PHONE).new_page()
    page.goto(f"{server.url}/run?run={run}&charts_{run}=Batch+sizes")
    page.wait_for_function(DRAWN)
    buttons, legend = (page.locator(f".chart {part}").bounding_box() for part in (".modebar", ".legend"))
    assert buttons["y"] + buttons["height"] <= legend["y"]


def test_texts_beside_bars_and_intervals_are_inside_the_chart(server: Server, page: Page) -> None:
    store = open_store(server.settings)
    run = store.enqueue(BenchmarkSpec(models="timm:resnet18", variants="eager,compile"))
    unlimited = {"speedup": 4.0, "speedup_low": 0.0, "speedup_high": None, "verdict": "needs 3 processes"}
    flags = {"flags": ("unstable", "contended"), "error": ""}
    finish(store, run, [benchmark_row("resnet18", **flags), benchmark_row("resnet18", "compile", **unlimited)])
    store.close()
    ends = "texts => texts.map(text => text.getBoundingClientRect().right)"
    for tab, text in (("Latency", "unstable, contended"), ("Speed-up", "no upper limit")):
        page.goto(f"{server.url}/run?run={run}&charts_{run}={tab}")
        for width in (1024, 420):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_function(DRAWN)
            chart = page.locator(".chart")
            expect(chart).to_contain_text(text)
            box = chart.bounding_box()
            assert max(chart.locator(".annotation-text").evaluate_all(ends)) <= box["x"] + box["width"], (tab, width)


def test_texts_beside_bars_that_do_not_fit_are_shortened(server: Server, page: Page) -> None:
    store = open_store(server.settings)
    run = store.enqueue(BenchmarkSpec(models="timm:vit_base_patch16_224", variants="eager"))
    finish(store, run, [benchmark_row("vit_base_patch16_224", flags=("single_process", "contended", "below_floor"))])
    store.close()
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(f"{server.url}/run?run={run}")
    page.wait_for_function(DRAWN)
    chart = page.locator(".chart")
    expect(chart.locator(".annotation-text")).to_have_text(re.compile("^20 ms .*single process.*…$"))
    ends = [part.bounding_box() for part in (chart.locator(".annotation-text"), chart)]
    assert ends[0]["x"] + ends[0]["width"] <= ends[1]["x"] + ends[1]["width"]
    page.set_viewport_size({"width": 1024, "height": 800})
    expect(chart).to_contain_text("single process, contended, below floor")


def test_chart_follows_the_theme_and_enters_and_leaves_full_screen(server: Server, page: Page) -> None:
    styles = "chart => [chart, chart.querySelector('.xtitle')].map(element => getComputedStyle(element))"
    colours = f"chart => {{ const [page, title] = ({styles})(chart); return [page.color, title.fill]; }}"
    page.emulate_media(color_scheme="light")
    page.goto(f"{server.url}/{FEW}")
    light = catalogue_plot(page).evaluate(colours)
    assert light[0] == light[1]
    page.emulate_media(color_scheme="dark")
    expect(catalogue_plot(page).locator(".xtitle")).not_to_have_css("fill", light[1])
    dark = catalogue_plot(page).evaluate(colours)
    assert dark[0] == dark[1] != light[0]

    chart = catalogue_plot(page)
    height: Any = "chart => chart._fullLayout.height"
    usual = chart.evaluate(height)
    chart.hover()
    chart.get_by_role("button", name="Full screen").click()
    page.wait_for_function("() => document.fullscreenElement?._fullLayout?.height > 1000")
    chart.get_by_role("button", name="Full screen").click()
    page.wait_for_function(f"() => document.querySelector('.chart')._fullLayout.height === {usual}")


def test_chart_without_plotly_shows_a_message_and_the_page_works(server: Server, page: Page) -> None:
    page.route("**/plotly.min.js", lambda route: route.abort())
    page.goto(f"{server.url}/{FEW}")
    expect(page.get_by_text("This chart could not be drawn")).to_be_visible()
    expect(page.get_by_test_id("stDataFrame").first).to_be_visible()
