"""Browser tests of the catalogue, profile runs, the list of runs and further settings."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from engine.report.catalog import catalog
from engine.report.quantities import title
from engine.settings import Settings
from engine.store import State, open_store
from tests.support.browser import DRAWN, ROW, Server, downloaded, select_rows, serve

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def counting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server that starts profile runs."""
    with serve(tmp_path_factory.mktemp("served"), preload="timm,open_clip,engine.tasks.profile") as server:
        yield server


def test_first_deep_link_on_a_new_server_shows_its_page(counting_server: Server, page: Page) -> None:
    """Open a page other than the default one. This test is the first of the module, so the server is new."""
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.goto(f"{counting_server.url}/runs")
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    expect(page.get_by_test_id("stSidebarNavLink")).to_have_count(9)
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text("Page not found")).to_have_count(0)
    assert page.title() == "Runs – Model Vitals"
    icons = page.locator("link[rel~=icon]").evaluate_all("icons => icons.map(icon => icon.href)")
    assert [icon.partition(";")[0] for icon in icons] == ["data:image/svg+xml"]  # our icon, without a request
    other_hosts = [url for url in urls if not url.startswith((counting_server.url, "data:", "blob:"))]
    assert not other_hosts, "the browser requests other hosts"


def test_models_of_the_catalogue_are_profiled_and_downloaded(counting_server: Server, page: Page) -> None:
    search = "ViT-S-32-alt, timm:test_resnet, timm:test_vit"
    page.goto(f"{counting_server.url}/?catalog_search={search}")
    matches = catalog.select(catalog.read(Settings().catalog_dir), search=search)
    expect(page.get_by_role("button", name=f"Download {len(matches)} rows")).to_be_visible()
    profile = page.get_by_role("link", name=re.compile(r"^Profile \d+ model"))
    expect(profile).to_have_count(0)
    select_rows(page.get_by_test_id("stDataFrame"), 0, 1, 2)
    expect(profile).to_have_text(re.compile("Profile 3 models"))
    profile.click()

    expect(page.get_by_role("heading", name="Profile", exact=True)).to_be_visible()
    selection = list(matches["name"].iloc[:3])
    for name in selection:
        expect(
            page.get_by_role("button", name=f"Remove {name}").or_(page.get_by_text(name, exact=True)).first
        ).to_be_visible()
    page.get_by_role("button", name="Count", exact=True).click()
    expect(page.get_by_text("3 of 3 counts done; the run took")).to_be_visible()
    run_id = int(re.search(r"[?&]run=(\d+)", page.url)[1])

    with downloaded(page, "CSV", "Download").open(newline="") as file:
        csv_rows = list(csv.DictReader(file))
    store = open_store(counting_server.settings)
    rows = {f"{row.library}:{row.model}": row for row in store.rows(run_id)}
    store.close()
    assert sorted(rows) == sorted(selection)
    assert {f"{line['library']}:{line['model']}" for line in csv_rows} == set(selection)
    for line in csv_rows:
        assert float(line["gmacs"]) == rows[f"{line['library']}:{line['model']}"].gmacs
    header = downloaded(page, "CSV as open_clip's profiler (torch)", "Download").read_text().splitlines()[0]
    assert header.startswith("model,image_size,image_width,text_width,embed_dim,mparams")

    select_rows(page.get_by_test_id("stDataFrame").first, 0)
    expect(page.get_by_test_id("stMetric").first).to_be_visible()
    page.get_by_role("tab", name="Operators").click()
    expect(page.get_by_role("figure", name="Share of MACs and traffic by operator")).to_be_visible()


def test_run_continues_during_a_reload_and_can_be_cancelled(counting_server: Server, page: Page) -> None:
    page.goto(f"{counting_server.url}/profile?profile_models=timm:maxvit_*")  # few enough models for one process
    page.get_by_role("button", name="Count", exact=True).click()
    expect(page.get_by_text(re.compile(r"[1-9]\d* of \d+ counts done"))).to_be_visible()
    link = page.url
    before = int(re.search(r"(\d+) of \d+ counts done", page.get_by_test_id("stMain").inner_text())[1])
    page.reload()
    expect(page.get_by_text(re.compile(r"[1-9]\d* of \d+ counts done"))).to_be_visible()
    assert page.url == link
    assert int(re.search(r"(\d+) of \d+ counts done", page.get_by_test_id("stMain").inner_text())[1]) >= before
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("stopped on request")).to_be_visible()
    run_id = int(re.search(r"[?&]run=(\d+)", page.url)[1])
    store = open_store(counting_server.settings)
    assert store.run(run_id).state is State.CANCELLED
    assert len(store.rows(run_id)) >= before
    store.close()


def test_plot_and_first_table_rows_are_in_the_viewport(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/?catalog_y=ImageNet+top-1+%28%25%29&catalog_families=resnet")
    plot, table = page.get_by_role("figure").first, page.get_by_test_id("stDataFrame").first
    for width, height in ((1366, 768), (1280, 720), (1440, 900), (1100, 800)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function(DRAWN)
        assert height - table.bounding_box()["y"] > 3 * ROW, f"the header and two rows at {width} x {height}"
        assert plot.bounding_box()["height"] >= 280
    page.set_viewport_size({"width": 420, "height": 800})
    expect(plot).to_be_in_viewport(ratio=0.75)
    expect(table).not_to_be_in_viewport()


def test_catalogue_csv_has_one_line_per_row(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/?catalog_search=timm:resnet18&catalog_figure={quote(title('imagenet_top1'))}")
    menu = page.get_by_role("button", name=re.compile(r"^Download \d+ rows"))
    label = re.search(r"Download (\d+) rows", menu.inner_text())
    lines = downloaded(page, "CSV", label[0]).read_text().splitlines()
    assert len(lines) == 1 + int(label[1])
    csv_rows = list(csv.DictReader(lines))
    assert any("; accuracy of a1_in1k published by " in line["provenance"] for line in csv_rows)


def test_selection_follows_its_models_when_a_filter_moves_rows(server: Server, page: Page) -> None:
    search = "timm:resnet18*,timm:resnet50*"
    page.goto(f"{server.url}/?catalog_search={search}")
    matches = catalog.select(catalog.read(Settings().catalog_dir), search=search)
    place = next(place for place, name in enumerate(matches["model"]) if name.startswith("resnet50"))
    select_rows(page.get_by_test_id("stDataFrame"), place)
    profile = page.get_by_role("link", name="Profile 1 model")
    expect(profile).to_be_visible()
    page.get_by_label("Search", exact=True).fill("timm:resnet50*")
    narrowed = int(matches["model"].str.startswith("resnet50").sum())
    expect(
        page.get_by_text(re.compile(rf"^{narrowed} of [\d,]+ rows shown .one per model and image size"))
    ).to_be_visible()
    expect(profile).to_have_attribute("href", re.compile(rf"profile_models=timm(:|%3A){matches['model'].iloc[place]}$"))


def test_html_in_an_address_is_shown_as_text(server: Server, page: Page) -> None:
    evil = "<img src=x onerror=window.struck=1>"
    page.goto(f"{server.url}/profile?profile_models={evil}")
    expect(page.get_by_text("no model matches").first).to_be_visible()
    assert page.evaluate("window.struck") is None
    assert page.locator("img[src=x]").count() == 0


def test_exact_model_name_is_offered_first_by_a_server_without_torch(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/profile")
    models = page.get_by_role("combobox", name="Models")
    for typed, first in {
        "mobilenetv3_large_100": "timm:mobilenetv3_large_100",
        "vit-b-32": "open_clip:ViT-B-32",
    }.items():
        models.fill(typed)
        expect(page.get_by_role("option").first).to_have_text(first)
    models.press("Enter")
    expect(page.get_by_text("Counts 1 model on meta")).to_be_visible()
    memory_maps = Path(f"/proc/{server.pid}/maps")
    if memory_maps.exists():  # only on Linux
        maps = memory_maps.read_text()
        assert "pandas" in maps  # so this is the server process
        for library in ("torch", "timm", "open_clip", "transformers", "sklearn"):
            assert f"/{library}/" not in maps


def test_further_settings_are_in_the_address_and_stay_if_another_group_opens(server: Server, page: Page) -> None:
    page.goto(f"{server.url}/train")
    page.get_by_role("button", name="One batch, to check").click()
    expect(page.get_by_text("--steps 50 --overfit")).to_be_visible()
    expect(page).to_have_url(re.compile("train_steps=50&train_overfit=true"))
    page.reload()
    expect(page.get_by_text("--steps 50 --overfit")).to_be_visible()
    page.get_by_role("button", name="Digits in a minute").click()
    expect(page.get_by_text("--steps 50 --overfit")).to_have_count(0)
    expect(page).to_have_url(re.compile(r"/train$"))
    for group, last in (("Optimizer", "Momentum"), ("Loss", "Gather with gradients")):
        page.get_by_role("button", name=group, exact=True).click()
        expect(page.get_by_label(last, exact=True)).to_be_attached()
        page.wait_for_function(DRAWN)
        if group == "Optimizer":
            momentum = page.get_by_label(last, exact=True).element_handle()
    assert momentum.evaluate("field => field.isConnected"), "a field that is replaced loses the typed text"
    decay = page.get_by_label("Weight decay", exact=True)
    decay.fill("0.3")
    decay.press("Enter")
    expect(page.get_by_text("--wd 0.3")).to_be_visible()
    expect(page).to_have_url(re.compile("train_wd=0.3"))
    page.get_by_test_id("stSidebarNavLink").filter(has_text="Evaluate").click()
    expect(page.get_by_role("heading", name="Evaluate CLIP")).to_be_visible()
    page.get_by_test_id("stSidebarNavLink").filter(has_text="Train").click()
    expect(decay).to_have_value("0.3")
    expect(page).to_have_url(re.compile("train_wd=0.3"))
